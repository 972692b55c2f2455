"""The page in each party's kit: what to run, what to check."""

from __future__ import annotations

from cipherbayes.engine.flare.kits import CSP, SERVER, Kit
from cipherbayes.study.schema import Study

_HEAD = """\
# {title}

Study **{study}**, fingerprint `{fingerprint}`. Server: `{host}:{port}`.
Keep this folder private (it has mode 0700) and in your backup: it holds keys, and what
this party remembers of runs.

Install the same release of cipherbayes as everyone: `pip install "cipherbayes[flare]"`.
"""

_BACKUP = """\
`cipherbayes {verb} backup . FOLDER` copies what must not be lost, and nothing else.
"""

_LEADS_KEY = """\
**For trying things out on one machine.** Whoever made this kit made its connection key
too, and holds a copy of every party's. Between machines each party makes its own: see
`cipherbayes {verb} request`.
"""

_IDENTITY = """\
## Once

1. `cipherbayes {verb} approve .` shows `study.toml` in words: what it reads, spends and
   sends. Nothing runs here until you have approved it, and nobody else can.
"""

_OWN_KEY = """\
2. **Compare the fingerprints by telephone** that `cipherbayes {verb} install` printed:
   this is what keeps anybody from standing in for somebody else, the lead included.
   Both your keys were made here and have never left.
"""

_ENROL = """\
2. `cipherbayes {verb} enrol .` makes your signing key **here** and writes
   `identity.json`, its public half. Send that file to every other party. When you have
   everyone's: `cipherbayes {verb} pin . FILES`, and **compare the fingerprints by
   telephone**.
"""

_BODIES = {
    "site": """\
3. Write the path of your table, or a query of your database, and what it may spend,
   into `site.toml`. That file is read here and never sent. `cipherbayes site check .`
   says whether the table fits the study; it sends nothing.

## Every run

`cipherbayes site start .` and leave it running. It connects out to the server; no port
of yours has to be open. Settings that are not those of your own release are refused.
`service/` has a systemd unit and a container file; `cipherbayes site health .` says
whether this site can take part; `party.log` has what it did and refused.

## Check

- Only encrypted, noised sums leave: never a row, a path or a key. If the table is
  refused, others learn that, and not why: the reason is in your log.
- `cipherbayes ledger TABLE.ledger`: what your table has spent. It refuses to
  overspend, whatever the server asks, and answers a round only once.
- A study that is not in `studies/` is refused: `cipherbayes site approve . STUDY`.
- `local/`: code from outside is forbidden, two classes may run, no logs are streamed,
  nobody can read files or restart programs here from afar.
""",
    CSP: """\

## Every run

`cipherbayes csp start .` and leave it running. It connects out to the server; no port
of yours has to be open.

## Check

- You hold the secret key. You must not be a site, nor the server, nor share staff with
  them: whoever has this key and a site's masks could read that site's noised vector.
- One sum a round is decrypted, only if every site of the roster signed it; what you
  decrypt is noised already. `runs/` remembers every answer; a round has one.
- A study that is not in `studies/` is refused: `cipherbayes csp approve . STUDY`.
""",
    SERVER: """\
## Once

1. Open port {port} to the parties; nothing else is needed.
2. Compare the fingerprints that `cipherbayes server install` (or `pin`) printed by
   telephone.
3. A study that is not in `studies/` is refused: `cipherbayes server approve . STUDY`.

## Every run

`cipherbayes server start .` and leave it running.

## Check

- You see ciphertexts, noised totals and θ; never a row, a noise value or a secret key.
- `runs/` holds a checkpoint after each round: a run that was cut goes on from there.
- Jobs are kept in `jobs/` in this folder, not in the shared temporary folder.
""",
    "admin": """\
## Every run

`cipherbayes submit STUDY --kit . --out RESULT` when all parties have started. It shows
the rounds and brings back `result.json` and `posterior.nc`. If anything breaks, run the
same command again: it goes on where it stopped, and nothing is released twice.

## Check

- This certificate can submit and stop runs of studies that the parties have approved.
  It cannot approve one, bring code, read files, see logs or restart programs.
""",
}


def readme(
    kit: Kit, study: Study, fingerprint: str, port: int, *, own_key: bool
) -> str:
    """The README.md of a kit.

    Parameters
    ----------
    own_key
        Whether the party made its own key for connections.
    """
    titles = {
        "site": f"Kit of site {kit.name}",
        CSP: "Kit of the CSP",
        SERVER: "Kit of the server",
        "admin": "Kit of the lead",
    }
    parts = [_HEAD] if kit.role == "admin" else [_HEAD, _BACKUP]
    if not own_key and kit.role != "admin":
        parts.append(_LEADS_KEY)
    if kit.role in ("site", CSP):
        parts.append(_IDENTITY + (_OWN_KEY if own_key else _ENROL))
    parts.append(_BODIES[kit.role])
    return "\n".join(parts).format(
        title=titles[kit.role],
        study=study.name,
        fingerprint=fingerprint,
        host=kit.host,
        port=port,
        verb=kit.role,
    )
