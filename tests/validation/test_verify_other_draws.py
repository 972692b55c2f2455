"""What another machine's draws may explain to `cipherbayes verify`, and what not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from verified_runs import (
    Elsewhere,
    Recomputed,
    change_draws,
    change_record,
    elsewhere,
    other_machine,
    recomputed,
    shared,
    states,
)

from cipherbayes.cli.verify import _conclusion
from cipherbayes.inference.flags import Flag, Leeway
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.noise_aware.drawn_flags import DrawnNumbers, not_mixed
from cipherbayes.results.from_private_run import cautions_of
from cipherbayes.results.predictions import thinned
from cipherbayes.results.record import ResultRecord
from cipherbayes.results.result import Result
from cipherbayes.storage.posterior_file import write_posterior
from cipherbayes.typing import Floats
from cipherbayes.validation.verify import result_checks
from cipherbayes.validation.verify.fields import FIELDS
from cipherbayes.validation.verify.findings import Findings
from cipherbayes.validation.verify.sampled_draws import (
    TOO_FEW,
    combinations_differ,
    correlations_differ,
    draws_differ,
    mixing_differs,
    only_moved,
)
from cipherbayes.validation.verify.warning_checks import check_flags
from finished_runs import runs

__all__ = ["elsewhere", "other_machine", "recomputed", "runs", "shared"]


def chains(
    seed: int, *, slow: float = 0.0, stuck: float = 0.0, width: int = 3
) -> Floats:
    """Eight chains of a normal posterior, slow ones or such that disagree."""
    rng = np.random.default_rng(seed)
    draws = rng.normal(size=(8, 200, width))
    for t in range(1, 200):
        draws[:, t] = slow * draws[:, t - 1] + np.sqrt(1 - slow**2) * draws[:, t]
    return np.asarray(draws + stuck * rng.normal(size=(8, 1, width)))


def shuffled(draws: Floats, seed: int = 0) -> Floats:
    flat = draws.reshape(-1, draws.shape[-1])
    order = np.random.default_rng(seed).permutation(len(flat))
    return flat[order].reshape(draws.shape)


def differ(said: Floats, implied: Floats) -> str | None:
    return draws_differ(said, implied, sampled=True, tail=0.05)[0]


# -- draws -----------------------------------------------------------------


def test_another_sampling_of_the_same_posterior_passes() -> None:
    """Of a hundred pairs, all: five errors are exceeded by less than one of them."""
    for seed in range(0, 200, 2):
        one, other = chains(seed, slow=0.3), chains(seed + 1, slow=0.3)
        assert differ(one, other) is None
        assert not only_moved(one, other)
        assert mixing_differs(one, other) is None


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-3, 0.01])
@pytest.mark.parametrize("slow", [0.0, 0.9])
def test_draws_in_another_order_are_those_of_no_machine(
    noise: float, slow: float
) -> None:
    implied = chains(1, slow=slow)
    said = shuffled(implied) + noise * chains(2)
    assert differ(said, implied) is None  # as a posterior it is the same
    assert only_moved(said, implied)
    one_column = implied.copy()
    one_column[..., 1] = said[..., 1]
    assert only_moved(one_column, implied)


def test_chains_that_part_late_are_not_moved() -> None:
    """Nearly the same draws in their own places, as before a rounding tells."""
    implied, other = chains(1), chains(2)
    said = implied + 1e-9
    said[:, 150:] = other[:, 150:]
    assert not only_moved(said, implied)
    assert not only_moved(implied + 0.05, implied)


def test_chains_that_mix_clearly_better_or_worse_are_found() -> None:
    good, bad = chains(1), chains(2, stuck=1.0)
    assert mixing_differs(good, bad) is not None
    assert mixing_differs(bad, good) is not None
    assert mixing_differs(chains(3, slow=0.8), good) is not None


def test_no_number_of_errors_moves_a_mean_by_more_than_a_quarter() -> None:
    """With thirty effective draws five errors are more than one standard deviation."""
    implied = chains(1, slow=0.98)
    for by, passes in ((0.2, True), (0.35, False), (1.0, False)):
        found = differ(implied + by * implied.std(), implied)
        assert (found is None) is passes, by
        assert passes or str(found).endswith(TOO_FEW)
    plenty = chains(1)
    found = differ(plenty + 0.35, plenty)
    assert found is not None
    assert not found.endswith(TOO_FEW)


def test_parameters_that_no_longer_go_together_are_found() -> None:
    """Each by itself is as it was; what is predicted from both is not."""
    rng = np.random.default_rng(1)

    def drawn() -> np.ndarray[Any, Any]:
        one = rng.normal(size=(4, 400, 1))
        return np.concatenate([one, one + 0.7 * rng.normal(size=one.shape)], axis=-1)

    implied = drawn()
    assert correlations_differ(drawn(), implied) is None
    said = drawn()
    said[..., 1] = said[:, ::-1, 1]
    assert differ(said, implied) is None
    assert "go together" in str(correlations_differ(said, implied))


@pytest.mark.parametrize(
    ("width", "slow"), [(3, 0.0), (12, 0.0), (40, 0.0), (3, 0.9), (12, 0.7), (40, 0.5)]
)
def test_another_sampling_differs_in_no_combination(width: int, slow: float) -> None:
    """Where effective draws are enough for so many parameters."""
    for seed in range(0, 20, 2):
        one, other = (chains(seed + k, slow=slow, width=width) for k in (0, 1))
        found, words = combinations_differ(one, other)
        assert found is None
        assert "no combination" in words


def test_parameters_that_all_move_the_same_way_are_found() -> None:
    """Each by so little that it alone would pass; predictions are sums of them."""
    said, implied = chains(1, width=12) + 0.12, chains(2, width=12)
    assert differ(said, implied) is None
    assert correlations_differ(said, implied) is None
    assert "together" in str(combinations_differ(said, implied)[0])


def test_a_combination_that_is_known_better_than_it_is_is_found() -> None:
    """Half of the spread of a sum is little of each parameter's, and of each pair's."""
    said, implied = chains(1, width=20), chains(2, width=20)
    said = said - 0.5 * said.mean(axis=-1, keepdims=True)
    said = said / said.std(axis=(0, 1))
    assert differ(said, implied) is None
    assert correlations_differ(said, implied) is None
    assert "together" in str(combinations_differ(said, implied)[0])


def test_predictions_read_every_draw_that_is_compared() -> None:
    """Else the few that they read could be chosen."""
    most = Effort()
    draws = np.arange(2.0 * most.chains * most.kept).reshape(-1, 2)
    assert np.array_equal(thinned(draws), draws)


def test_a_flag_that_hangs_on_the_draws_is_named_as_not_checked() -> None:
    """A test of the fit that the file's draws pass, and those made here do not."""
    flag = replace(INVENTED, code="fit-missed").as_record(())
    words = {**flag, "message": "p = 0.02 instead of 0.01"}
    found: Any = SimpleNamespace(likeness="sampled")
    study: Any = None
    for numbers, remade, state in (
        ([], [flag], "not checked"), ([flag], [], "not checked"),
        ([flag], [words], "holds"), ([], [], "holds"),
    ):  # fmt: skip
        findings = Findings()
        both: list[dict[str, Any]] = [
            {"flags": each, "cautions": []} for each in (numbers, remade)
        ]
        check_flags(findings, study, found, both[0], both[0], both[1])
        assert states(findings, "flags") == {state}


def test_what_does_not_vary_has_no_error_to_hide_in() -> None:
    rng = np.random.default_rng(2)
    implied = rng.normal(size=(4, 400, 2))
    implied[..., 1] = 0.0
    other = rng.normal(size=(4, 400, 2))
    other[..., 1] = 0.0
    assert differ(other, implied) is None
    other[..., 1] = 0.1
    assert differ(other, implied) is not None


# -- results ---------------------------------------------------------------


def one_bit(file: h5py.File) -> None:
    draws = file["prepared/theta"]
    draws[0, 0, 0] = np.nextafter(draws[0, 0, 0], np.inf)


def another_order(file: h5py.File) -> None:
    for group in ("posterior", "prepared"):
        for name in ("theta", "site_effect", "between"):
            draws = file[f"{group}/{name}"]
            draws[...] = draws[()][::-1]


FORGED: list[tuple[str, str, Any]] = [
    ("characteristics", "describe", lambda said: said[0].update(mean=1.0)),
    ("scores", "metrics", lambda said: said["auc"].update(mean=0.99)),
    ("scores", "metrics", lambda said: said["fit"].clear()),
    ("numbers", "hierarchy", lambda said: said["influence"][0].update(shift=3.0)),
    ("numbers", "hierarchy", lambda said: said["sites"][0].update(mean=3.0)),
    ("warnings", "warnings", lambda said: said.append("Covers all patients.")),
]


def only_these_fail(
    check: Callable[[], Findings], folder: Path, forged: list[tuple[str, str, Any]]
) -> None:
    kept = (folder / "result.json").read_bytes()
    for due, name, forge in forged:
        record = json.loads(kept)
        forge(record[name])
        (folder / "result.json").write_text(json.dumps(record))
        assert {f.check for f in check().failed} == {due}, name
    (folder / "result.json").write_bytes(kept)


@pytest.mark.slow
def test_another_bit_does_not_hide_other_numbers(
    recomputed: Recomputed, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores, Table 1 and sites are compared as closely as roundings allow."""
    change_draws(shared, one_bit)
    made = recomputed.implied
    monkeypatch.setattr(result_checks, "_assembled", lambda *_: made)
    assert recomputed.check(shared).failed == []
    assert "posterior" in {f.check for f in recomputed.check(shared, exact=True).failed}
    only_these_fail(lambda: recomputed.check(shared), shared, FORGED)


@pytest.mark.slow
def test_another_machine_does_not_hide_other_numbers(
    elsewhere: Elsewhere, other_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, folder = elsewhere.here, other_machine
    assert here.check(folder).failed == []  # what is compared is computed anew
    made = here.implied
    monkeypatch.setattr(result_checks, "_assembled", lambda *_: made)
    assert "posterior" in {f.check for f in here.check(folder, exact=True).failed}
    only_these_fail(lambda: here.check(folder), folder, FORGED)


@pytest.mark.slow
def test_this_machines_draws_in_another_order_fail(
    recomputed: Recomputed, shared: Path
) -> None:
    change_draws(shared, another_order)
    (said,) = [f for f in recomputed.check(shared).failed if f.check == "posterior"]
    assert "in another order" in said.said


@pytest.mark.slow
def test_what_cannot_be_told_fails_and_the_rest_is_looked_at(
    recomputed: Recomputed, shared: Path
) -> None:
    """Too few draws to tell a moved mean by: no proof of a lie, and no pass."""
    ours = recomputed.replayed.draws
    assert ours is not None
    moved = ours.theta + 0.3 * ours.theta.std(axis=(0, 1))
    made = result_checks._assembled(
        recomputed.plan, recomputed.replayed, replace(ours, theta=moved)
    )
    write_posterior(shared / "posterior.nc", made.posterior)
    implied = json.loads(json.dumps(made.record))
    of_draws = (*FIELDS["numbers"], *FIELDS["flags"], "metrics", "warnings")
    change_record(
        shared, lambda record: record.update({n: implied[n] for n in of_draws})
    )
    change_draws(shared, lambda _: None)
    findings = recomputed.check(shared)
    assert [(f.check, f.open) for f in findings.failed] == [("posterior", True)]
    assert "cannot be told" in _conclusion(findings)
    change_record(shared, lambda r: r["cautions"].append(INVENTED.as_record(())))
    findings = recomputed.check(shared)
    assert "flags" in {f.check for f in findings.failed}
    assert "is not the result" in _conclusion(findings)


# -- flags -----------------------------------------------------------------

INVENTED = Flag("audited", "intervals are exact, says the CSP", unusable=False)


Check = Callable[[list[Flag]], Findings]
Flagged = Callable[[list[Flag], list[Leeway]], Check]


@pytest.fixture
def flagged(
    elsewhere: Elsewhere, other_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> Flagged:
    """A verifier whose own draws raise flags, for results that say others."""
    here, made = elsewhere.here, elsewhere.here.implied
    draws = here.replayed.draws
    assert draws is not None
    names = [row["name"] for row in made.record["posterior"]]
    always = cautions_of(here.plan)

    def with_flags(raised: list[Flag]) -> ResultRecord:
        record = copy.deepcopy(made.record)
        record["flags"] = [f.as_record(names) for f in raised if not f.caution]
        record["cautions"] = [f.as_record(names) for f in raised if f.caution]
        said = [f["message"] for f in record["flags"] + record["cautions"]]
        record["warnings"] = [*always, *said]
        return record

    def verifier(raised: list[Flag], leeways: list[Leeway]) -> Check:
        own = replace(draws, flags=tuple(raised), leeways=tuple(leeways))
        judge = replace(here, replayed=replace(here.replayed, draws=own))
        implied = Result(made.study, made.posterior, with_flags(raised))
        monkeypatch.setattr(result_checks, "_assembled", lambda *_: implied)

        def check(said: list[Flag]) -> Findings:
            record = with_flags(said)
            words = {n: record[n] for n in ("flags", "cautions", "warnings")}
            change_record(other_machine, lambda old: old.update(words))
            return judge.check(other_machine)

        return check

    return verifier


def flags_state(findings: Findings) -> str:
    (state,) = states(findings, "flags")
    return state


@pytest.mark.slow
def test_flags_differ_only_where_a_sampler_is_near_a_limit(flagged: Flagged) -> None:
    clear = not_mixed(1.38)
    check = flagged([clear], numbers(rhat=1.38).mixing())
    assert flags_state(check([clear])) == "holds"
    assert flags_state(check([not_mixed(1.45)])) == "not checked"
    for said in ([], [INVENTED], [clear, INVENTED], [clear, not_mixed(1.5)],
                 [not_mixed(1.0)], [not_mixed(40.0)],
                 [replace(clear, unusable=False)],
                 [replace(clear, parameters=(1,))]):  # fmt: skip
        findings = check(said)
        assert flags_state(findings) == "fails", said
        assert states(findings, "warnings") == {"not checked"}
    near = not_mixed(1.21)
    check = flagged([near], numbers(rhat=1.21).mixing())
    findings = check([])
    assert flags_state(findings) == "not checked"
    (words,) = [f.said for f in findings if f.check == "warnings"]
    assert "nothing else" not in words
    check = flagged([], numbers(rhat=1.02).mixing())
    assert flags_state(check([not_mixed(1.25)])) == "fails"
    assert flags_state(check([replace(INVENTED, caution=True)])) == "fails"


@pytest.mark.slow
def test_a_caution_names_what_it_may_name(flagged: Flagged) -> None:
    own = numbers(share=[0.9, 0.55, 0.45, 0.1])
    (here,) = own.mostly_prior()
    check = flagged([here], list(own.leeways()))
    for named, state in (
        ((0, 1), "holds"), ((0,), "not checked"), ((0, 1, 2), "not checked"),
        ((1,), "fails"), ((0, 1, 3), "fails"), ((), "fails"),
    ):  # fmt: skip
        assert flags_state(check([replace(here, parameters=named)])) == state, named
    assert flags_state(check([replace(here, message="all is well")])) == "fails"


class Numbers(DrawnNumbers):
    def mixing(self) -> list[Leeway]:
        return [each for each in self.leeways() if each.told]


def numbers(
    *, rhat: float = 1.0, share: list[float] | None = None, **given: Any
) -> Numbers:
    found = np.zeros(4) if share is None else np.array(share)
    default: dict[str, Any] = {
        "held": False, "distance": 0.1, "seen": (), "possible": (),
        "chance": np.zeros(4), "places": np.eye(4),
    }  # fmt: skip
    return Numbers(share=found, largest_rhat=rhat, **(default | given))


def test_what_is_raised_by_far_is_needed() -> None:
    assert [e.needed for e in numbers(rhat=1.38).leeways()] == [True]
    assert [e.needed for e in numbers(rhat=1.25).leeways()] == [False]
    assert [e.needed for e in numbers(rhat=1.15).leeways()] == [False]
    assert numbers(rhat=1.1).leeways() == ()
    assert [e.needed for e in numbers(distance=9.0).leeways()] == [True]
    assert [e.needed for e in numbers(distance=2.1).leeways()] == [False]
    assert [e.needed for e in numbers(held=True).leeways()] == [True]
    seen: dict[str, Any] = {"seen": (0, 1), "possible": (0, 1)}
    denied, rest = np.zeros(4), np.array([0.9, 0.9, 0.0, 0.0])
    assert [e.needed for e in numbers(chance=denied, **seen).leeways()] == [True]
    (sure,) = numbers(chance=rest, **seen).leeways()
    assert sure.flag.caution
    assert sure.needed
    (some,) = numbers(chance=np.array([0.5, 0.05, 0.01, 0.0])).leeways()
    assert (some.sure, some.flag.parameters) == ((0,), (0, 1, 2))


def test_a_release_is_named_by_numbers(
    recomputed: Recomputed, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recomputed.implied
    monkeypatch.setattr(result_checks, "_assembled", lambda *_: made)
    for said in ("0.audited.by.the.CSP", "0.3.0 audited", "0.3.0+audited"):
        change_record(shared, partial(_released, said=said))
        assert states(recomputed.check(shared), "release") == {"fails"}


def _released(record: dict[str, Any], said: str) -> None:
    record["cipherbayes"] = said
