"""Encryption changes nothing: the same integers, the same θ, in any engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parties import small_study, trajectory, write_tables

from cipherbayes.engine.run_folder import RunFolder, noise_source
from cipherbayes.errors import StudyError
from cipherbayes.privacy.ledger import Ledger
from cipherbayes.protocols.contributions import Contributions
from cipherbayes.protocols.messages import DecryptReply, decode
from cipherbayes.protocols.rounds import PhasedRounds
from cipherbayes.protocols.stores import AnswerStore, Checkpoint
from cipherbayes.protocols.study_plan import plan_releases
from cipherbayes.results.run import run
from cipherbayes.study.schema import Study
from cipherbayes.study.tables import open_site
from conftest import logistic_frame


def plaintext_run(study: Study) -> tuple[list[np.ndarray], list[bytes]]:
    """The same study without keys, masks or messages: totals, and θ."""
    plan = plan_releases(study)
    checkpoint = Checkpoint()
    rounds = PhasedRounds(plan, checkpoint)
    tables = {
        name: Contributions(study.model, open_site(study, name, site.data))
        for name, site in study.sites.items()
    }
    noise = {name: noise_source(study, name) for name in study.sites}
    totals = []
    while not rounds.finished:
        phase = rounds.phase
        question = rounds.asked()
        total = np.zeros(phase.dimension, dtype=np.int64)
        for name, table in tables.items():
            total += phase.noised(
                table.total(phase, question), noise[name], f"round {rounds.round}"
            )
        totals.append(total)
        rounds.take(total, len(tables))
    return totals, [theta.tobytes() for theta in checkpoint.trajectory()]


def decrypted_totals(out: Path) -> list[np.ndarray]:
    store = AnswerStore(out / "csp" / "answers.sqlite")
    return [
        decode(store.answer(number), DecryptReply).values  # type: ignore[arg-type]
        for number in range(store.rounds())
    ]


SITES = ("a", "b", "c", "d", "e")


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 2, 5])
@pytest.mark.parametrize("method", ["psgld", "averaged"])
def test_an_encrypted_run_has_the_integers_and_theta_of_a_plaintext_run(
    tmp_path: Path, sites: Any, method: str
) -> None:
    inference = {"rounds": 12, "method": method}
    study = write_tables(tmp_path, small_study(SITES[:sites], inference=inference))
    run(study, out=tmp_path / "run")
    totals, thetas = plaintext_run(study)
    encrypted = decrypted_totals(tmp_path / "run")
    assert len(encrypted) == 12
    assert all(map(np.array_equal, encrypted, totals))
    assert trajectory(tmp_path / "run") == thetas


@pytest.mark.parametrize(
    ("method", "sizes"),
    [("private-moments", [4]), ("private-scales", [64, 64, 3])],
)
def test_preparation_under_encryption_has_the_integers_of_a_plaintext_run(
    tmp_path: Path, method: str, sizes: list[int]
) -> None:
    changes: dict[str, Any] = {
        "privacy": {"records": None},
        "preparation": {"method": method},
    }
    study = write_tables(tmp_path, small_study(SITES[:3], **changes))
    run(study, out=tmp_path / "run")
    totals, thetas = plaintext_run(study)
    encrypted = decrypted_totals(tmp_path / "run")
    assert [total.size for total in encrypted] == [1, *sizes, 3, 3, 3, 3]
    assert all(map(np.array_equal, encrypted, totals))
    assert trajectory(tmp_path / "run") == thetas


def test_the_order_in_which_sites_are_named_does_not_matter(tmp_path: Path) -> None:
    forwards = write_tables(tmp_path, small_study(("a", "b", "c")))
    backwards = forwards.model_copy(
        update={"sites": dict(reversed(forwards.sites.items()))}
    )
    assert forwards.fingerprint() == backwards.fingerprint()
    roomy = {n: s.model_copy(update={"budget": 9.0}) for n, s in forwards.sites.items()}
    run(forwards, out=tmp_path / "one")
    backwards = backwards.model_copy(update={"sites": dict(reversed(roomy.items()))})
    run(backwards, out=tmp_path / "other")
    assert trajectory(tmp_path / "one") == trajectory(tmp_path / "other")


@pytest.mark.slow
def test_parties_in_processes_of_their_own_give_the_same_theta(tmp_path: Path) -> None:
    study = write_tables(tmp_path / "one", small_study(("a", "b")))
    run(study, out=tmp_path / "one" / "run")
    apart = write_tables(
        tmp_path / "other",
        small_study(("a", "b"), header={"engine": "local-processes"}),
    )
    result = run(apart, out=tmp_path / "other" / "run")
    assert trajectory(tmp_path / "other" / "run") == trajectory(
        tmp_path / "one" / "run"
    )
    timing = result.record["timing"]
    assert min(timing["site_s"], timing["csp_s"], timing["server_s"]) > 0.0
    # Keys and answers are gone, as after a run in one process.
    keys = {file.name for file in (tmp_path / "other" / "run").rglob("*.key")}
    assert keys <= {"identity.key"}
    for name in ("a", "b"):
        ledger = Ledger.read(tmp_path / "other" / f"{name}.csv.ledger")
        assert [entry.kept for entry in ledger.entries()] == [False] * 4


def test_processes_need_files(tmp_path: Path) -> None:
    study = small_study(("a", "b"), header={"engine": "local-processes"})
    frames = {name: logistic_frame(60) for name in study.sites}
    with pytest.raises(StudyError, match="files"):
        run(study, frames, out=tmp_path / "run")


# -- secure sum and pooled ------------------------------------------------------


def test_one_site_and_a_pooled_table_have_the_same_noise() -> None:
    alone = plan_releases(small_study(("a",))).last_phase.sums
    pooled = plan_releases(small_study(("a",), header={"protocol": "pooled"}))
    assert pooled.last_phase.sums == alone


def test_noise_in_a_secure_sum_is_that_of_a_pooled_run_but_for_colluders() -> None:
    study = small_study(SITES, privacy={"colluders": 2})
    shared = plan_releases(study).last_phase.sums
    pooled = plan_releases(small_study(SITES, header={"protocol": "pooled"}))
    ratio = shared.noise_sd(5) / pooled.last_phase.sums.noise_sd(1)
    assert ratio == pytest.approx((5 / 3) ** 0.5, rel=1e-9)


@pytest.mark.slow
def test_secure_sum_and_pooled_agree_where_noise_is_small(tmp_path: Path) -> None:
    """Same rows, same sums: a point estimate within the noise of either."""
    means = {}
    for protocol in ("secure-sum", "pooled"):
        study = small_study(
            ("a", "b", "c"),
            header={"protocol": protocol},
            privacy={"epsilon": 1000.0, "records": 1500},
            inference={"rounds": 25, "method": "averaged"},
        )
        frames = {name: logistic_frame(500, seed=ord(name)) for name in study.sites}
        result = run(study, frames)
        means[protocol] = np.array([row["mean"] for row in result.summary()])
    assert means["secure-sum"] == pytest.approx(means["pooled"], rel=0.01, abs=0.01)


def test_a_folder_opens_as_the_run_it_was_made_for(tmp_path: Path) -> None:
    study = write_tables(tmp_path, small_study(("a", "b")))
    made = RunFolder.create(tmp_path / "run", study, {"a": None, "b": None})
    again = RunFolder.open(tmp_path / "run")
    assert (again.run, again.plan.study_hash) == (made.run, made.plan.study_hash)
    assert again.pinned() == made.pinned()
    assert set(again.pinned()) == {"a", "b", "csp"}
    assert all(site.data is None for site in again.study.sites.values())
