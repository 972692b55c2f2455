"""A party's own folder: keys made here, then the lead's kit, checked file by file.

    cipherbayes site request north      north/: keys, north.request.json for the lead
    cipherbayes site install north KIT  the certificate and everyone's public keys

What the lead sends is read, compared and never trusted as a whole: settings are
written anew by this release, and no key, approval or roster is taken from it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from cipherbayes.crypto.identity.signatures import Identity
from cipherbayes.crypto.key_folder import KeyFolder
from cipherbayes.engine.flare.certificates import (
    SUFFIX,
    Request,
    certified_key,
    make_key,
    read_request,
    write_request,
)
from cipherbayes.engine.flare.hardening import keep_jobs_in
from cipherbayes.engine.flare.kits import (
    CSP,
    SERVER,
    Kit,
    read_identity,
    write_identity,
)
from cipherbayes.engine.flare.layout import (
    check_settings,
    is_name,
    lay_out,
    server_place,
)
from cipherbayes.engine.flare.provisioning import add_pages
from cipherbayes.errors import CryptoError, RunError
from cipherbayes.storage.folders import require_new_folder
from cipherbayes.study.schema import Study


def request(folder: Path, role: str, party: str) -> Path:
    """Make a party's folder and keys, here; the file that goes to the lead.

    Formal guarantees
    -----------------
    Both private keys are made from the operating system's randomness on this machine,
    in files 0600 that nothing here ever sends.
    """
    named = party == role if role in (CSP, SERVER) else party not in (CSP, SERVER)
    if not is_name(party) or not named:
        raise RunError(
            f"'{party}' cannot be a {role}'s name",
            where="request",
            remedy="give the name that the study has for it",
        )
    require_new_folder(folder, remedy="choose another --out")
    startup = folder / "startup"
    startup.mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    key = make_key(startup / f"{_stem(role)}.key")
    identity = None
    if role != SERVER:
        identity = KeyFolder(folder / "keys").identity().identity
        write_identity(folder / "identity.json", party, identity)
    path = folder / f"{party}{SUFFIX}"
    write_request(path, role, party, key, None if identity is None else identity.id)
    return path


def install(folder: Path, sent: Path) -> dict[str, Identity]:
    """Take the lead's kit into a party's folder; everyone's pinned identity.

    Formal guarantees
    -----------------
    Nothing is written unless the certificate is for the key that was made here, the
    kit's settings are those of this release, and the kit names this party's own
    signing key. Of the kit come the certificate, the authority's certificate, the
    proposed study and public identities, which are pinned: a key that was pinned
    before is not exchanged.

    Edge cases
    ----------
    Whether the other identities are theirs only a comparison by telephone can tell.
    """
    mine = own_request(folder)
    theirs = Kit.open(sent).require(mine.role)
    if theirs.name != mine.party:
        raise RunError(
            f"the certificate is of {theirs.name}, not of {mine.party}",
            where=str(sent),
            remedy="ask the lead for this party's own kit",
        )
    stem = _stem(mine.role)
    _check_certificate(mine, sent / "startup", stem)
    check_settings(theirs)
    study = Study.load(sent / "study.toml")
    files = _identities(sent, mine, study)
    place = server_place(theirs)
    clients = [] if mine.role == SERVER else [mine.party]
    with tempfile.TemporaryDirectory() as scratch:
        made = lay_out(place, clients, Path(scratch))[mine.party]
        for settings in ("startup", "local"):
            (folder / settings).mkdir(exist_ok=True, mode=0o700)
            for path in (made / settings).iterdir():
                shutil.copyfile(path, folder / settings / path.name)
    for name in (f"{stem}.crt", "rootCA.pem"):
        shutil.copyfile(sent / "startup" / name, folder / "startup" / name)
    kit = Kit.open(folder)
    if kit.role == SERVER:
        keep_jobs_in(folder)
    pinned = kit.pin(files)
    add_pages(kit, study, place.port, own_key=True, here=True)
    return pinned


def own_request(folder: Path) -> Request:
    """The request that a party's folder began with."""
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if len(found) != 1:
        raise RunError(
            "no key was made here",
            where=str(folder),
            remedy="begin with `cipherbayes site request` (csp, server alike), and "
            "send what it writes to the lead",
        )
    return read_request(found[0])


def _stem(role: str) -> str:
    return "server" if role == SERVER else "client"


def _check_certificate(mine: Request, startup: Path, stem: str) -> None:
    """Refuse a certificate that is not for the key made here."""
    if certified_key(startup / f"{stem}.crt") != mine.key:
        raise CryptoError(
            "the certificate is for another key than the one made here",
            where=str(startup / f"{stem}.crt"),
            remedy="send the lead this folder's request again",
        )
    try:
        issuer = x509.load_pem_x509_certificate((startup / "rootCA.pem").read_bytes())
        given = x509.load_pem_x509_certificate((startup / f"{stem}.crt").read_bytes())
        given.verify_directly_issued_by(issuer)
    except (OSError, ValueError, TypeError, InvalidSignature):
        raise CryptoError(
            "the certificate is not of this kit's authority",
            where=str(startup),
            remedy="ask the lead for the kit again",
        ) from None


def _identities(sent: Path, mine: Request, study: Study) -> list[Path]:
    """The files of everyone's identity; refused if one is missing or is not ours."""
    files = sorted((sent / "identities").glob("*.json"))
    named = dict(read_identity(path) for path in files)
    missing = sorted({CSP, *study.sites} - set(named))
    if missing:
        raise RunError(
            f"no identity of {', '.join(missing)}",
            where=str(sent / "identities"),
            remedy="ask the lead for the whole kit",
        )
    if mine.identity is not None and named.get(mine.party) != mine.identity:
        raise CryptoError(
            f"the kit names another key for {mine.party}",
            where=str(sent / "identities"),
            remedy="somebody exchanged this party's key: do not start, ask the lead",
        )
    return files
