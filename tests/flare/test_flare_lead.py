"""A lead that attacks: loosened kits, exchanged keys, approvals nobody gave."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parties import small_study

from cipherbayes.crypto.identity.signatures import SigningKey
from cipherbayes.errors import (
    CipherbayesError,
    CryptoError,
    ProtocolError,
    RunError,
    StudyError,
)
from cipherbayes.study.schema import Study

pytest.importorskip("nvflare", reason="the extra 'flare' is not installed")
from cipherbayes.engine.flare import kits as kits_module
from cipherbayes.engine.flare import layout, provisioning
from cipherbayes.engine.flare.approving import study_in_words
from cipherbayes.engine.flare.certificates import make_key, read_requests, write_request
from cipherbayes.engine.flare.installing import install, request
from cipherbayes.engine.flare.kits import Kit, is_loopback, write_identity
from cipherbayes.engine.flare.provisioning import Deployment, deploy
from cipherbayes.engine.flare.starting import check_ready, environment
from flare_machines import own_folders

SITES = ("a", "b")
RUN = "00" * 16
HOST = "flare.example.org"


def study() -> Study:
    return small_study(SITES, privacy={"randomness": "secure"})


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parties with keys of their own, and what an honest lead sent them."""
    folder = tmp_path_factory.mktemp("consortium")
    own_folders(folder, study(), HOST, 8002, folder / "requests", folder / "sent")
    return folder


@pytest.fixture
def fresh(consortium: Path, tmp_path: Path) -> Path:
    """A copy: making certificates takes a while."""
    return Path(shutil.copytree(consortium, tmp_path / "all"))


def edited(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def ready(kit: Path) -> Kit:
    """A site's kit, complete but for what a test does to it."""
    (kit / "site.toml").write_text('data = "table.csv"')
    opened = Kit.open(kit)
    check_ready(opened)
    return opened


# -- private keys ----------------------------------------------------------


@pytest.mark.slow
def test_the_lead_holds_no_key_but_its_own(consortium: Path) -> None:
    sent = consortium / "sent"
    holding = {
        path.relative_to(sent).as_posix()
        for path in sent.rglob("*")
        if path.is_file() and b"PRIVATE KEY" in path.read_bytes()
    }
    assert holding == {"admin/startup/client.key", "authority/cert.json"}
    for name in ("server", "csp", *SITES):
        keys = list((consortium / name).rglob("*.key"))
        assert keys
        assert all(oct(path.stat().st_mode)[-3:] == "600" for path in keys)
        secrets = [path.read_bytes() for path in keys]
        for path in (*sent.rglob("*"), *(consortium / "requests").rglob("*")):
            assert not path.is_file() or path.read_bytes() not in secrets


def test_keys_are_not_made_for_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = Deployment(study(), HOST)
    with pytest.raises(RunError, match="every party makes its own key"):
        deploy(far, tmp_path / "kits")
    # Without that refusal the lead would hold them, and the party still says no.
    with monkeypatch.context() as patch:
        patch.setattr(provisioning, "_refuse_requests", lambda *_: None)
        made = deploy(far, tmp_path / "kits")
    assert (made["a"] / "startup" / "client.key").exists()
    Kit.open(made["a"]).pin([])
    with pytest.raises(RunError, match="no key was made here"):
        ready(made["a"])


def test_a_certificate_for_a_key_of_the_leads_is_refused(
    fresh: Path, tmp_path: Path
) -> None:
    requests = tmp_path / "requests"
    shutil.copytree(fresh / "requests", requests)
    identity = json.loads((requests / "a.request.json").read_text())["identity"]
    key = make_key(tmp_path / "leads.key")
    write_request(requests / "a.request.json", "site", "a", key, identity)
    made = deploy(Deployment(study(), HOST), tmp_path / "kits", read_requests(requests))
    with pytest.raises(CryptoError, match="another key than the one made here"):
        install(fresh / "a", made["a"])


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(party="b"),
        lambda content: content.update(role="csp"),
        lambda content: content.update(identity="00"),
        lambda content: content.update(version=2),
        lambda content: content.update(csr=content["csr"].replace("A", "B")),
        lambda content: content.pop("csr"),
    ],
)
def test_a_request_that_is_not_its_makers_is_not_signed(
    fresh: Path, change: Any
) -> None:
    edited(fresh / "requests" / "a.request.json", change)
    with pytest.raises(RunError, match="is not a party's request"):
        read_requests(fresh / "requests")


def test_requests_are_those_of_the_study(fresh: Path, tmp_path: Path) -> None:
    requests = read_requests(fresh / "requests")
    far = Deployment(study(), HOST)
    for given, expected in (
        ({k: v for k, v in requests.items() if k != "b"}, "no request of b"),
        ({**requests, "c": requests["b"]}, "c is not in the study"),
        ({**requests, "b": requests["csp"]}, "'b' is not a site"),
    ):
        with pytest.raises(RunError, match=expected):
            deploy(far, tmp_path / "kits", given)
    request(tmp_path / "two" / "x", "site", "a")
    request(tmp_path / "two" / "y", "site", "a")
    with pytest.raises(RunError, match="second request of 'a'"):
        read_requests(tmp_path / "two")


def test_a_folder_with_keys_is_not_begun_again(fresh: Path) -> None:
    with pytest.raises(RunError, match="not empty"):
        request(fresh / "a", "site", "a")


# -- identities ------------------------------------------------------------


def test_an_exchanged_key_of_the_party_itself_is_refused(fresh: Path) -> None:
    forged = SigningKey.generate().identity
    write_identity(fresh / "sent" / "a" / "identities" / "a.json", "a", forged)
    with pytest.raises(CryptoError, match="names another key for a"):
        install(fresh / "a", fresh / "sent" / "a")


def test_an_exchanged_key_of_another_party_shows_on_the_telephone(
    fresh: Path, tmp_path: Path
) -> None:
    forged = SigningKey.generate().identity
    write_identity(fresh / "sent" / "a" / "identities" / "csp.json", "csp", forged)
    # A party that has pinned the true one before keeps it.
    with pytest.raises(CryptoError, match="another key of 'csp' is pinned"):
        install(fresh / "a", fresh / "sent" / "a")
    # A new one sees a fingerprint that is not what the CSP reads out.
    (fresh / "a" / "roster.json").unlink()
    shown = install(fresh / "a", fresh / "sent" / "a")["csp"].fingerprint
    assert shown != Kit.open(fresh / "csp").enrol().fingerprint


# -- approvals -------------------------------------------------------------


def test_an_approval_that_the_lead_put_into_a_kit_is_not_taken(
    fresh: Path, tmp_path: Path
) -> None:
    sent = Kit.open(fresh / "sent" / "a")
    sent.approve(study())
    shutil.copy(fresh / "a" / "roster.json", sent.path)
    # Somebody who takes the lead's folder as it is has approved what the lead wants.
    assert sent.run(RUN, study()).study == study()
    install(fresh / "a", sent.path)
    assert not (fresh / "a" / "studies").exists()
    with pytest.raises(ProtocolError, match="not approved here"):
        Kit.open(fresh / "a").run(RUN, study())


def test_no_name_in_a_study_hides_what_is_approved() -> None:
    sly = study().model_dump(mode="json", exclude_none=True)
    sly["features"]["M\x1b[2J\u202e\r"] = {"levels": ["no", "yes"]}
    shown = study_in_words(Study.model_validate(sly))
    assert all(line.isprintable() for line in shown)
    assert any("epsilon 3" in line for line in shown)


# -- loosened settings -----------------------------------------------------


def bring_code(content: Any) -> None:
    content["permissions"]["project_admin"]["byoc"] = "any"


def another_class(content: Any) -> None:
    content["class_allow_list"].append("nvflare.app_common.np.np_trainer.NPTrainer")


def no_list(content: Any) -> None:
    content["class_list_enforcement_mode"] = "off"


def stream_logs(content: Any) -> None:
    content["allow_log_streaming"] = True


def launch(content: Any) -> None:
    content["components"][0]["path"] = "os.system"


def in_the_clear(content: Any) -> None:
    content["client"]["connection_security"] = "clear"


def direct_connections(content: Any) -> None:
    content["allow_adhoc_conns"] = True


LOOSENED = {
    "local/authorization.json": bring_code,
    "local/resources.json": another_class,
    "local/comm_config.json": direct_connections,
    "startup/fed_client.json": in_the_clear,
}


def loosened(kit: Path, name: str) -> None:
    edited(kit / name, LOOSENED[name])


@pytest.mark.parametrize("name", LOOSENED)
def test_a_loosened_kit_is_caught_where_it_is_installed_and_started(
    fresh: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check = ready(fresh / "a")
    assert check.name == "a"
    for kit, attempt in (
        (fresh / "sent" / "a", lambda: install(fresh / "a", fresh / "sent" / "a")),
        (fresh / "a", lambda: ready(fresh / "a")),
    ):
        loosened(kit, name)
        with pytest.raises(RunError, match="is not what this release writes") as caught:
            attempt()
        assert name in str(caught.value)
    # Without the comparison the party would start with the lead's settings.
    with monkeypatch.context() as patch:
        patch.setattr(layout, "_compare", lambda given, expected: None)
        ready(fresh / "a")


@pytest.mark.parametrize("change", [no_list, stream_logs, launch])
def test_no_other_way_to_loosen_resources_passes(fresh: Path, change: Any) -> None:
    edited(fresh / "a" / "local" / "resources.json", change)
    with pytest.raises(RunError, match=r"resources\.json"):
        ready(fresh / "a")


@pytest.mark.parametrize(
    "name", ["local/custom/x.py", "local/privacy.json", "startup/sub.sh", "local/x"]
)
def test_a_file_that_does_not_belong_into_a_kit_is_refused(
    fresh: Path, name: str
) -> None:
    path = fresh / "a" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    with pytest.raises(RunError, match="does not belong into a kit"):
        ready(fresh / "a")


def test_a_missing_setting_is_refused(fresh: Path) -> None:
    (fresh / "a" / "local" / "authorization.json").unlink()
    with pytest.raises(RunError, match=r"authorization\.json: is missing"):
        ready(fresh / "a")


def test_settings_are_this_releases_own_even_if_they_were_not_compared(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LOOSENED:
        loosened(fresh / "sent" / "a", name)
    with monkeypatch.context() as patch:
        patch.setattr(layout, "_compare", lambda given, expected: None)
        install(fresh / "a", fresh / "sent" / "a")
    ready(fresh / "a")


@pytest.mark.parametrize("party", ["server", "csp", *SITES])
def test_what_an_honest_lead_sends_is_accepted_wherever_it_lies(
    fresh: Path, party: str
) -> None:
    moved = (fresh / party).rename(fresh / "elsewhere")
    if party in SITES:
        ready(moved)
    else:
        check_ready(Kit.open(moved))


@pytest.mark.parametrize(
    "target", ["../../x:8002", "a b:1", ":1", "host:0", "host:x", "host:99999"]
)
def test_a_place_that_is_none_is_refused(fresh: Path, target: Any) -> None:
    def move(content: Any) -> None:
        content["servers"][0]["service"]["target"] = target

    edited(fresh / "a" / "startup" / "fed_client.json", move)
    with pytest.raises(CipherbayesError):
        ready(fresh / "a")


@pytest.mark.slow
def test_code_that_lies_in_a_kit_is_not_imported(tmp_path: Path) -> Any:
    (tmp_path / "nvflare.py").write_text("")
    words = [sys.executable, "-c", "import nvflare; print(nvflare.__file__)"]

    def imported(**changes: str | None) -> str:
        given = {**environment(), **changes}
        kept = {name: value for name, value in given.items() if value is not None}
        done = subprocess.run(
            words, cwd=tmp_path, env=kept, capture_output=True, text=True, check=True
        )
        return str(Path(done.stdout.strip()).resolve())

    planted = str((tmp_path / "nvflare.py").resolve())
    assert imported(PYTHONSAFEPATH=None) == planted
    assert imported() != planted


# -- whose machine ---------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("::1", True),
        ("127.evil.example.org", False),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("LOCALHOST.", False),
        ("127.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_only_this_machine_is_this_machine(host: str, here: Any) -> None:
    assert is_loopback(host) is here


def test_no_host_name_switches_the_noise_off(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insecure = small_study(SITES)
    evil = "127.evil.example.org"
    with pytest.raises(StudyError, match="one machine only"):
        Deployment(insecure, evil)
    away = Kit(fresh / "a", "site", "a", evil)
    with pytest.raises(ProtocolError, match="one machine only"):
        away.approve(insecure, insecure=True)
    # A test of how a name begins would let it pass.
    for module in (kits_module, provisioning):
        monkeypatch.setattr(module, "is_loopback", lambda host: host.startswith("127."))
    Deployment(insecure, evil)
    away.approve(insecure, insecure=True)
    assert away.run(RUN, insecure).study.insecure
