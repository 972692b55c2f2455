"""A page on this machine that follows a running study.

It shows θ after each round, ε, the parties and the pace: what the server holds
anyway, all of it released and private already.

Formal guarantees
-----------------
Reads the server's checkpoint and the public study, read-only; never a table, a
ledger, a key or a site's folder. Listens on the loopback interface only and answers
only requests addressed to it by that name, so that a page on the internet cannot
read it through a name that it points at this machine (DNS rebinding). The page has
no script and loads nothing.

Edge cases
----------
Other users of the same machine can open the page.
"""

from cipherbayes.report.live.live_page import page
from cipherbayes.report.live.serving import following, serving
from cipherbayes.report.live.snapshot import Snapshot, Watcher

__all__ = ["Snapshot", "Watcher", "following", "page", "serving"]
