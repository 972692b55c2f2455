"""Ways round a budget: errors, other names, old copies, forged files, lost memories."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exposed import unkeyed_checksum, unkeyed_seal, without
from parties import RUN, Consortium, refusal, small_study, write_tables

from cipherbayes.engine.run_folder import RunFolder
from cipherbayes.engine.table_identity import open_table_ledger
from cipherbayes.errors import (
    BudgetError,
    CipherbayesError,
    PrivacyError,
    ProtocolError,
    RunError,
)
from cipherbayes.privacy.events import GaussianSum
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.privacy.ledger_file import facts_of, link_at
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import DecryptReply, SiteReply, decode, encode
from cipherbayes.protocols.pooled.protocol import Pooled
from cipherbayes.protocols.questions import Question
from cipherbayes.protocols.stores import Heads
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.run import resume, run
from cipherbayes.study.schema import Study
from conftest import another_owner

# -- an error as an oracle ----------------------------------------------------


def bits_learnt(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many questions "does this fail at your table?" a budget buys."""
    folder.mkdir()
    three = Consortium(folder, small_study(inference={"rounds": 40}))

    def fails(self: Any, phase: Any, question: Any) -> Any:
        raise ArithmeticError

    learnt = 0
    with monkeypatch.context() as patch:
        patch.setattr(Contributions, "total", fails)
        for number in range(200):
            ledger = three.ledger("a")
            try:
                # As a site does, with a question of the attacker's choice each time.
                ledger.release(
                    run=os.urandom(16), site="a", round=0, purpose="gradient",
                    study=three.plan.study_hash, question=bytes([number]) * 32,
                    event=three.plan.last_phase.release,
                    compute=lambda: three.contributions("a").total(None, None),  # type: ignore[arg-type, return-value]
                )  # fmt: skip
            except ArithmeticError:
                learnt += 1
            except BudgetError:
                pass
            finally:
                ledger.close()
    return learnt


@pytest.mark.slow
def test_whether_an_answer_fails_is_not_told_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with without("charge first"):
        assert bits_learnt(tmp_path / "free", monkeypatch) == 200
    assert bits_learnt(tmp_path / "charged", monkeypatch) <= 40


# -- one table at two sites ---------------------------------------------------


def two_names_of_one_table(folder: Path) -> tuple[bool, int]:
    """Whether both sites send one and the same vector, and what the ledger counts."""
    folder.mkdir()
    pair = Consortium(folder, small_study(("a", "b")))
    for name in ("a", "b"):
        pair.sites[name] = pair.site(
            name, ledger=pair.ledger("a"), contributions=pair.contributions("a")
        )
        pair.sites[name].join(pair.manifest, pair.offer)
    replies = pair.replies(pair.request())
    one, other = (pair.unmasked(replies[name]) for name in ("a", "b"))
    return np.array_equal(one, other), len(list(pair.ledger("a").entries()))


def test_a_ledger_at_two_sites_draws_and_charges_for_both(tmp_path: Path) -> None:
    """Else one draw of noise covers a record that is in the total twice."""
    with without("sites apart"):
        assert two_names_of_one_table(tmp_path / "shared") == (True, 1)
    assert two_names_of_one_table(tmp_path / "apart") == (False, 2)


def same_table(folder: Path) -> Study:
    study = write_tables(folder, small_study(("a", "b")))
    shutil.copy(folder / "a.csv", folder / "b.csv")
    return study


def test_the_same_table_at_two_sites_is_not_certified(tmp_path: Path) -> None:
    with without("distinct tables", "one ledger a table"):
        result = run(same_table(tmp_path / "out"), out=tmp_path / "out" / "run")
        # A claim that is false for every record: each is in the total twice.
        assert result.certificate["epsilon"] == 3.0
    with pytest.raises(PrivacyError, match="have the same table"):
        run(same_table(tmp_path / "in"), out=tmp_path / "in" / "run")


# -- another name for a table -------------------------------------------------

NAMES = {
    "a symbolic link": lambda old, new: new.symlink_to(old),
    "a hard link": lambda old, new: os.link(old, new),
    "a copy": lambda old, new: shutil.copy(old, new),
}


def second_budget(folder: Path, how: str) -> bool:
    """Whether a table that is spent can be spent again under another name."""
    study = write_tables(folder, small_study(("a", "b")))
    run(study, out=folder / "first")
    sites = {}
    for name, site in study.sites.items():
        other = folder / f"other-{name}.csv"
        NAMES[how](folder / f"{name}.csv", other)  # type: ignore[no-untyped-call]
        sites[name] = site.model_copy(update={"data": str(other)})
    try:
        run(study.model_copy(update={"sites": sites}), out=folder / "second")
    except PrivacyError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("how", NAMES)
def test_another_name_buys_no_second_budget(tmp_path: Path, how: str) -> None:
    with without("one ledger a table"):
        assert second_budget(tmp_path / "names", how)
    assert not second_budget(tmp_path / "table", how)


# -- an old copy --------------------------------------------------------------


def after_a_restore(folder: Path) -> bool:
    """Whether a spent table can be spent again with its ledger of yesterday."""
    study = write_tables(folder, small_study(("a", "b")))
    for name in ("a", "b"):
        path = folder / f"{name}.csv"
        ledger = Path(f"{path}.ledger")
        open_table_ledger(path, ledger, epsilon=3.0, delta=1e-5).close()
        shutil.copy(ledger, folder / f"{name}.yesterday")
    run(study, out=folder / "first")
    for name in ("a", "b"):
        for file in folder.glob(f"{name}.csv.ledger*"):
            file.unlink()
        shutil.copy(folder / f"{name}.yesterday", folder / f"{name}.csv.ledger")
    try:
        run(study, out=folder / "second")
    except PrivacyError as error:
        return "old copy" not in str(error)
    return True


@pytest.mark.slow
def test_a_ledger_put_back_from_an_old_copy_is_not_believed(tmp_path: Path) -> None:
    with without("marks"):
        assert after_a_restore(tmp_path / "unmarked")
    assert not after_a_restore(tmp_path / "marked")


def met_again(folder: Path) -> str:
    """What the CSP and a peer say of a site whose whole machine was put back."""
    folder.mkdir()
    three = Consortium(folder, small_study())
    memories = {party: Heads(folder / f"{party}.heads") for party in ("csp", "b")}
    three.csp.heads, three.sites["b"].heads = memories["csp"], memories["b"]
    three.convene()
    spare = folder / "copy"
    spare.mkdir()
    for file in folder.glob("a.ledger*"):
        shutil.copy(file, spare)
    three.play(3)
    for file in folder.glob("a.ledger*"):
        file.unlink()
    for file in spare.iterdir():
        shutil.copy(file, folder)
    refused = ""
    with without("marks"):  # the state folder went back with the machine
        three.sites["a"] = three.site("a")
        manifest = three.server.convene(
            [three.sites[name].enrol() for name in three.names], three.offer
        )
    for party, join in (
        ("csp", lambda: three.csp.join(manifest)),
        ("b", lambda: three.sites["b"].join(manifest, three.offer)),
    ):
        try:
            join()  # type: ignore[no-untyped-call]
        except ProtocolError as error:
            if "site a" in str(error) and "old copy" in str(error):
                refused += party + " "
    return refused.strip()


def test_a_site_that_went_back_in_time_is_noticed_by_csp_and_peers(
    tmp_path: Path,
) -> None:
    with without("remembered ledgers"):
        assert met_again(tmp_path / "forgetful") == ""
    assert met_again(tmp_path / "mindful") == "csp b"


# -- forged files -------------------------------------------------------------


def believes_a_forged_budget(folder: Path) -> bool:
    """A file's content is all that the forger has: no key."""
    folder.mkdir()
    path = folder / "north.ledger"
    ledger = Ledger.open(path, dataset="north", epsilon=1.0, delta=1e-5)
    ledger.release(
        run=b"r", site="a", round=0, purpose="gradient", study=b"s", question=b"q",
        event=GaussianSum(5.0), compute=lambda: b"answer",
    )  # fmt: skip
    ledger.close()
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE about SET value = '99.0' WHERE name = 'epsilon'")
        link = link_at(database, 2)
        assert link is not None
        seal = unkeyed_seal(facts_of(database), link, None)
        database.execute("UPDATE about SET value = ? WHERE name = 'seal'", (seal,))
    database.close()
    try:
        return Ledger.read(path).epsilon == 99.0
    except PrivacyError:
        return False


def test_a_seal_cannot_be_made_without_the_owners_key(tmp_path: Path) -> None:
    with without("keyed seals"):
        assert believes_a_forged_budget(tmp_path / "unkeyed")
    assert not believes_a_forged_budget(tmp_path / "keyed")


def goes_on_from_a_forged_theta(folder: Path) -> bool:
    study = write_tables(folder, small_study(("a", "b")))

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(study, out=folder / "run", progress=stop)
    path = folder / "run" / "server" / "checkpoint.sqlite"
    database = sqlite3.connect(path)
    with database:
        row = database.execute("SELECT * FROM rounds WHERE round = 1").fetchone()
        theta = (np.frombuffer(row[1]) + 1e-3).tobytes()
        checksum = unkeyed_checksum(None, row[0], theta, row[2])
        database.execute(
            "UPDATE rounds SET theta = ?, checksum = ? WHERE round = 1",
            (theta, checksum),
        )
    database.close()
    try:
        resume(folder / "run")
    except RunError as error:
        return "checksum" not in str(error)
    return True


def test_a_checksum_cannot_be_made_without_the_owners_key(tmp_path: Path) -> None:
    with without("keyed checksums"):
        assert goes_on_from_a_forged_theta(tmp_path / "unkeyed")
    assert not goes_on_from_a_forged_theta(tmp_path / "keyed")


# -- what a finished run leaves -----------------------------------------------


def readable_afterwards(folder: Path) -> bool:
    """Whether who takes the machines after a run can read one site's message."""
    study = write_tables(folder, small_study(("a", "b")))
    run(study, out=folder / "run")
    files = [*(folder / "run").rglob("*.key"), *folder.glob("*.ledger")]
    opens = {file.name.split(".", 1)[-1] for file in files}
    database = sqlite3.connect(folder / "a.csv.ledger")
    kept = database.execute("SELECT COUNT(*) FROM vectors").fetchone()[0]
    database.close()
    return bool(kept) and {"pair.key", "exchange.key"} <= opens


def test_nothing_that_opens_a_sites_message_outlives_the_run(tmp_path: Path) -> None:
    with without("the end"):
        assert readable_afterwards(tmp_path / "kept")
    assert not readable_afterwards(tmp_path / "erased")


# -- the order of rounds ------------------------------------------------------


def jumps_ahead(folder: Path) -> bool:
    """Whether whoever holds the pooled tables can be asked for round 2 first."""
    study = write_tables(folder, small_study(("a", "b"), header={"protocol": "pooled"}))
    ledgers = {name: folder / f"{name}.csv.ledger" for name in ("a", "b")}
    made = RunFolder.create(folder / "run", study, ledgers)
    curator = Pooled().curator(made, made.held_tables(None))
    plan = plan_releases(study)
    phase = plan.phase_of(2)
    assert phase is not None
    question = Question(np.zeros(plan.last_phase.sums.dimension))
    try:
        curator.release(2, phase, question)
    except CipherbayesError as error:
        return "in order" not in str(error)
    return True


def test_pooled_rounds_are_answered_in_order(tmp_path: Path) -> None:
    with without("order"):
        assert jumps_ahead(tmp_path / "any")
    assert not jumps_ahead(tmp_path / "order")


def test_a_finished_site_and_csp_refuse_an_old_round(tmp_path: Path) -> None:
    another_owner()
    three = Consortium(tmp_path, small_study())
    request = three.request()
    question = encode(three.question(request))
    decode(three.csp.handle(question), DecryptReply)
    decode(three.sites["a"].handle(request), SiteReply)
    for party, again in ((three.sites["a"], request), (three.csp, question)):
        party.end()
        assert refusal(party.handle(again)).text == "the run is over"
    assert three.ledger("a").rounds(RUN, "a") == 1
