"""Bounded contributions, exact noise, accounting, and the ledger that says no."""
