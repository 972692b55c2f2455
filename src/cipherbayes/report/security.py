"""*Security*: how messages were encrypted, and who signed them."""

from __future__ import annotations

from cipherbayes.crypto.signatures import Identity
from cipherbayes.report.contents import Contents
from cipherbayes.report.markup import Content, Markup, facts, join, table, tag


def security(contents: Contents) -> Markup:
    """The whole section."""
    plan = contents.plan
    parameters = None if plan is None else plan.parameters
    if parameters is None:
        return tag(
            "p",
            "All tables were in one place, so nothing was encrypted and nothing had to "
            "be signed. Whoever holds that place can read the rows.",
        )
    pairs: list[tuple[str, Content]] = [
        ("Scheme", "BFV, sums only: exact integers, no multiplication"),
        (
            "Security",
            f"{parameters.security_bits} bits (Homomorphic Encryption Standard)",
        ),
        ("Ring", f"n = {parameters.ring:,}"),
        ("Modulus", f"{parameters.modulus_bits} bits"),
        ("Parameter set", tag("code", parameters.id)),
        ("Masks", "X25519, pairwise, modulo the word size; they cancel in the sum"),
        ("Run", tag("code", contents.run or "not kept")),
        ("Study hash", tag("code", contents.record["study_hash"])),
    ]
    return join(facts(pairs), _who_signed(contents))


def _who_signed(contents: Contents) -> Markup:
    lost = dict(contents.lost)
    rows: list[list[Content]] = []
    order = sorted(contents.identities, key=lambda name: (name != "csp", name))
    for name in order:
        identity = contents.identities[name]
        if name == "csp":
            did = "its key, and every decrypted sum"
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
            "before it was used. Compare the fingerprints by telephone.",
        ),
        table(
            "Identities of the parties",
            ["Party", "Fingerprint", "Ed25519 public key", "Signed"],
            rows,
            words=(1, 2, 3),
            id_="identities",
        ),
    )
