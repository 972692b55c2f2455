"""What a run gives: a posterior, a certificate, effects."""
