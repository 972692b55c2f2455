"""The page in each party's kit: what to run, what to check."""

from __future__ import annotations

from cipherbayes.engine.flare.kits import CSP, SERVER, Kit
from cipherbayes.study import Study

_HEAD = """\
# {title}

Study **{study}**, fingerprint `{fingerprint}`. Server: `{host}:{port}`.
Keep this folder private (it has mode 0700) and in your backup: it holds keys, and what
this party remembers of runs.

Install the same release of cipherbayes as everyone: `pip install "cipherbayes[flare]"`.
"""

_IDENTITY = """\
## Once

1. Read `studies/{fingerprint}.toml`: it is all that can be asked of you.
2. `cipherbayes {verb} enrol .` makes your signing key **here** and writes
   `identity.json`, its public half. Send that file to every other party.
3. When you have everyone's files: `cipherbayes {verb} pin . FILES`. It prints each
   party's fingerprint. **Compare them by telephone**: this is what keeps anybody from
   standing in for somebody else, the lead included.
"""

_BODIES = {
    "site": """\
4. Write the path of your table, and what it may spend, into `site.toml`. That file is
   read here and never sent.

## Every run

`cipherbayes site start .` and leave it running. It connects out to the server; no port
of yours has to be open.

## Check

- Only encrypted, noised sums leave: never a row, a path or a key.
- `cipherbayes ledger TABLE.ledger`: what your table has spent. It refuses to
  overspend, whatever the server asks, and answers a round only once.
- A study that is not in `studies/` is refused. To allow another one, read it, then
  `cipherbayes site approve . STUDY`.
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
2. `cipherbayes server pin . FILES` with the `identity.json` of the CSP and of every
   site; compare the fingerprints by telephone.

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

- This certificate can submit and stop runs of approved studies. It cannot bring code,
  read files, see logs or restart programs at any party.
""",
}


def readme(kit: Kit, study: Study, fingerprint: str, port: int) -> str:
    """The README.md of a kit."""
    titles = {
        "site": f"Kit of site {kit.name}",
        CSP: "Kit of the CSP",
        SERVER: "Kit of the server",
        "admin": "Kit of the lead",
    }
    parts = [_HEAD, _IDENTITY if kit.role in ("site", CSP) else "", _BODIES[kit.role]]
    return "\n".join(part for part in parts if part).format(
        title=titles[kit.role],
        study=study.name,
        fingerprint=fingerprint,
        host=kit.host,
        port=port,
        verb=kit.role,
    )
