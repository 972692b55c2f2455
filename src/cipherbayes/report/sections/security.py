"""*Security*: how messages were encrypted, and who signed them."""

from __future__ import annotations

from typing import Any

from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS
from cipherbayes.crypto.ckks.parameters import CKKS_SETS
from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.report.markup import Content, Markup, facts, join, table, tag
from cipherbayes.report.run_contents import Contents

Facts = list[tuple[str, Content]]


def security(contents: Contents) -> Markup:
    """The whole section."""
    if contents.scheme is None:
        return tag(
            "p",
            "All tables were in one place, so nothing was encrypted and nothing had to "
            "be signed. Whoever holds that place can read the rows.",
        )
    if contents.study.as_printed:
        lead, done = _as_printed()
    elif contents.study.protocol == "encrypted-update":
        lead, done = _encrypted_update(contents)
    else:
        lead, done = _secure_sum()
    pairs: Facts = [
        *done,
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


def _secure_sum() -> tuple[str, Facts]:
    lead = (
        "Each site’s noised sum was masked and encrypted; only the sum over all sites "
        "was ever decrypted, once a round."
    )
    return lead, [
        ("Scheme", "BFV, sums only: exact integers, no multiplication"),
        ("Masks", "X25519, pairwise, modulo the word size; they cancel in the sum"),
    ]


def _encrypted_update(contents: Contents) -> tuple[str, Facts]:
    privacy = contents.record["privacy"]
    bits = privacy["flooding_bits"]
    lead = (
        "Preconditioner and step were computed under encryption; only the direction in "
        "which the parameters move was ever decrypted, once a round, after every site "
        "had computed it too and signed what it found."
    )
    flooding: Content = (
        f"{bits} statistical bits hide the error of each decrypted value"
    )
    if not bits:
        flooding = tag(
            "strong",
            "none: the server may find the secret key in what is released",
            class_="bad",
        )
    return lead, [
        ("Scheme", f"CKKS, circuit “{privacy['circuit']}”"),
        ("Flooding", flooding),
        ("Replay", "every site recomputes every output; the CSP decrypts no other"),
        *_ring_masks(privacy),
    ]


def _ring_masks(privacy: dict[str, Any]) -> Facts:
    """What hides a single message from whoever has the secret key."""
    # Runs of releases without masks say what that costs.
    single = privacy.get("single_messages")
    if single is not None:
        cost = f"none: against {single['against']} ε is {single['epsilon']:.3g}"
        return [("Masks", cost)]
    masks = "X25519, pairwise, modulo the ciphertext’s modulus; they cancel in the sum"
    key = (
        "not hidden from the server together with a malicious site; no promise to a "
        "record rests on it"
    )
    return [("Masks", masks), ("Secret key", key)]


def _as_printed() -> tuple[str, Facts]:
    lead = (
        "This is the paper’s own protocol, kept for comparison. The CSP decrypts "
        "whatever the server sends, so a server that wants the secret key gets it."
    )
    absent = tag("strong", "none", class_="bad")
    return lead, [
        ("Scheme", "CKKS, the paper’s circuit"),
        ("Flooding", absent),
        ("Replay", absent),
        ("Masks", absent),
        (
            "Noise",
            tag("strong", "drawn by the server, who can remove it", class_="bad"),
        ),
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
