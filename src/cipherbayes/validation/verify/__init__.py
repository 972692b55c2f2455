"""Check a server's result without trusting the server.

What a result says follows from the study and from the totals that the CSP signed: θ
after every round, ε, the posterior, the certificate. All of it is computed again here,
by the code that a run uses, and compared with what the server wrote.

Formal guarantees
-----------------
Where no check fails, a result is the one that the study and the signed totals imply:
bit for bit, or within the errors that a finding states. What cannot be seen from here
is a finding of its own, and never counts as one that holds.

Edge cases
----------
That the CSP decrypted honestly, that sites drew their noise and that held-out rows
were scored rightly cannot be computed from totals. Whoever has the CSP's signing key
can sign another run.
"""

from cipherbayes.validation.verify.findings import Finding, Findings
from cipherbayes.validation.verify.verification import verify

__all__ = ["Finding", "Findings", "verify"]
