"""*Security*: how messages were encrypted, and who signed them."""

from __future__ import annotations

from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.crypto.ckks.parameters import CKKS_SETS
from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.protocols.protocol import Fact
from cipherbayes.report.markup import Content, Markup, facts, join, table, tag
from cipherbayes.report.run_contents import Contents

Facts = list[tuple[str, Content]]


def security_section(contents: Contents) -> Markup:
    """The whole section."""
    lead, done = contents.protocol.security(contents.record["privacy"])
    if contents.study.hierarchy is not None:
        lead += (
            " Sites may differ, so what was opened has noised numbers of each site by "
            "itself: see what a site gave away."
        )
    told = protocol_facts(done)
    if contents.scheme is None:
        return join(tag("p", lead), facts(told)) if told else tag("p", lead)
    pairs: Facts = [
        *told,
        *_parameters(contents.scheme),
        ("Encryption key", tag("code", contents.key or "not kept", class_="long")),
        ("Run", tag("code", contents.run or "not kept")),
        ("Study hash", tag("code", contents.record["study_hash"], class_="long")),
    ]
    return join(tag("p", lead), facts(pairs), _who_signed(contents))


def _parameters(scheme: str) -> Facts:
    found = PARAMETER_SETS.get(scheme) or CKKS_SETS.get(scheme)
    if found is None:  # of another cipherbayes
        return [("Parameter set", tag("code", scheme))]
    return [
        ("Security", f"{found.security_bits} bits (Homomorphic Encryption Standard)"),
        ("Ring", f"n = {found.ring:,}"),
        ("Modulus", f"{found.modulus_bits} bits"),
        ("Parameter set", tag("code", scheme)),
    ]


def protocol_facts(found: list[Fact]) -> Facts:
    """What a protocol says of itself; what is alarming stands out."""
    return [
        (fact.name, tag("strong", fact.text, class_="bad"))
        if fact.alarming
        else (fact.name, fact.text)
        for fact in found
    ]


def _who_signed(contents: Contents) -> Markup:
    lost = dict(contents.lost)
    rows: list[list[Content]] = []
    order = sorted(contents.identities, key=lambda name: (name != "csp", name))
    for name in order:
        identity = contents.identities[name]
        if name == "csp":
            did = "its key, and every decrypted value"
        elif name in lost:
            did = f"its enrolment, and messages until round {lost[name]}, when lost"
        else:
            did = "its enrolment, and its message of every round"
        rows.append(
            [
                "CSP" if name == "csp" else name,
                tag("code", Identity.from_hex(identity).fingerprint),
                tag("code", identity, class_="long"),
                did,
            ]
        )
    if not rows:
        return tag("p", "The parties’ identities were not kept with this result.")
    return join(
        tag("h3", "Who signed"),
        tag(
            "p",
            "Every message carries an Ed25519 signature over the run, the study’s "
            "hash, the round and the content, and was checked against these keys "
            "before it was used. Compare the fingerprints by telephone. With the "
            "totals that the CSP signed (transcript.bin, which every site gets) ",
            tag("code", "cipherbayes verify"),
            " computes this result again, without believing the server.",
        ),
        table(
            "Identities of the parties",
            ["Party", "Fingerprint", "Ed25519 public key", "Signed"],
            rows,
            words=(1, 2, 3),
            id_="identities",
        ),
    )
