"""A study's plan: made without data, within the budget, and the same for everyone."""

from __future__ import annotations

import builtins
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import cipherbayes as cb
from cipherbayes.errors import CryptoError, DataError, PrivacyError, StudyError
from cipherbayes.privacy.accountant import calibrate_noise, epsilon
from cipherbayes.privacy.events import GaussianSum, PoissonSampled, Repeated
from cipherbayes.protocols.forecast import forecast_of
from cipherbayes.protocols.plan_description import describe
from cipherbayes.protocols.releases import MOST_RECORDS, SHARES
from cipherbayes.protocols.secure_sum.plan import SecureSumPlan
from cipherbayes.protocols.study_plan import StudyPlan, plan_releases
from cipherbayes.study import tables
from cipherbayes.study.schema import Study

SITES = {name: {"data": f"absent/{name}.csv"} for name in ("north", "south", "west")}


def study_of(**tables_of_the_file: Any) -> Study:
    document: dict[str, Any] = {
        "study": {"name": "planned", "protocol": "secure-sum"},
        "model": {"kind": "logistic", "outcome": "death"},
        "features": {
            "age": {"low": 18, "high": 100},
            "sex": {"levels": ["F", "M"]},
            "dose": {"low": 0, "high": 10},
        },
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "records": 3000},
        "preparation": {"method": "public-bounds"},
        "inference": {"method": "averaged", "rounds": 20},
        "sites": SITES,
    }
    for name, values in tables_of_the_file.items():
        if isinstance(values, dict) and name != "sites":
            document[name] = {**document.get(name, {}), **values}
        else:
            document[name] = values
    return Study.model_validate(document)


def spent(plan: StudyPlan) -> float:
    assert plan.study.privacy is not None
    return epsilon(plan.event, plan.study.privacy.delta)


WITHOUT_RECORDS = {"epsilon": 1.0, "delta": 1e-5, "records": None}


def test_planning_reads_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    study = study_of()
    plan_releases(study)  # so that every module is imported

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a plan opened something")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(tables, "open_table", refuse)
    monkeypatch.setattr(tables, "PreparedTable", refuse)
    plan = plan_releases(study)
    assert plan.encryption is not None
    assert plan.rounds == 20


def test_every_party_derives_the_same_plan_wherever_its_table_is() -> None:
    plan = plan_releases(study_of())
    elsewhere = plan_releases(study_of().without_paths())
    assert plan.phases == elsewhere.phases
    assert plan.study_hash == elsewhere.study_hash
    assert plan.scheme == elsewhere.scheme


def test_full_batches_get_the_noise_of_the_closed_form() -> None:
    plan = plan_releases(study_of())
    (phase,) = plan.phases
    assert phase.sums.noise_multiplier == calibrate_noise(1.0, 1e-5, 20)
    assert phase.event == Repeated(GaussianSum(phase.sums.noise_multiplier), 20)
    assert 0.999 <= spent(plan) <= 1.0


@settings(max_examples=40, deadline=None)
@given(
    target=st.floats(0.01, 50.0),
    delta=st.floats(-12.0, -3.0).map(lambda exponent: 10.0**exponent),
    rounds=st.integers(1, 5000),
    records=st.sampled_from([None, 1, 200, 100_000]),
    method=st.sampled_from(["public-bounds", "private-moments", "private-scales"]),
)
def test_all_phases_together_keep_the_budget_and_waste_little_of_it(
    target: float, delta: float, rounds: int, records: int | None, method: str
) -> None:
    plan = plan_releases(
        study_of(
            study={"protocol": "pooled"},
            privacy={"epsilon": target, "delta": delta, "records": records},
            inference={"rounds": rounds},
            preparation={"method": method},
        )
    )
    assert 0.999 * target <= spent(plan) <= target
    names = [phase.purpose for phase in plan.phases]
    scaling = {
        "public-bounds": [],
        "private-moments": ["moments"],
        "private-scales": ["histograms", "windows", "scales"],
    }
    assert names == ["records"] * (records is None) + scaling[method] + ["gradient"]


def test_the_number_of_records_is_released_first_where_it_is_not_public() -> None:
    plan = plan_releases(study_of(privacy=WITHOUT_RECORDS))
    count, gradient = plan.phases
    assert (count.purpose, count.first, count.rounds) == ("records", 0, 1)
    assert (count.dimension, count.sums.clip) == (1, 1.0)
    assert (gradient.purpose, gradient.first, gradient.rounds) == ("gradient", 1, 20)
    assert gradient.sums.records == MOST_RECORDS
    assert spent(plan) <= 1.0


def test_a_plan_without_a_number_of_records_says_only_how_many_are_needed() -> None:
    """It spoke as if there were ten million: 509,000 times the noise."""
    told = describe(plan_releases(study_of(privacy={"records": None})))
    assert told.further["width_ratio"] is None
    assert told.further["signal_over_noise"] is None
    (line,) = (line for line in told.lines if "times the noise" in line)
    needed = re.search(r"3 times the noise from about ([\d,]+) records on", line)
    assert needed is not None
    records = int(needed[1].replace(",", ""))
    declared = plan_releases(study_of(privacy={"records": records}))
    # A released number of records takes a part of the budget.
    assert forecast_of(declared).ratio == pytest.approx(3.0, rel=0.1)


def test_a_plan_says_which_tables_are_not_on_this_machine(tmp_path: Path) -> None:
    """A misspelt name of a file was found by the run only."""
    (tmp_path / "north.csv").write_text("age,sex,dose,death\n")
    sites = {"north": {"data": str(tmp_path / "north.csv")}, "south": {"data": "esen"}}
    told = cb.plan(study_of(sites=sites)).warnings
    assert [each for each in told if "no file" in each] == [
        "sites.south: there is no file esen on this machine, which a run here needs"
    ]


@pytest.mark.parametrize("privacy", [None, {"epsilon": 1.0, "delta": 1e-5}])
def test_a_plan_says_that_a_curve_has_no_effect_per_step(privacy: Any) -> None:
    curve = {"kind": "logistic", "formula": "death ~ rcs(age, 4) + sex + dose"}
    document = study_of().model_dump(mode="json", exclude_none=True)
    document |= {"model": curve, "privacy": privacy, "study": {"name": "planned"}}
    del document["inference"]
    for column in ("age", "dose"):
        document["features"][column]["per"] = 2
    told = cb.plan(Study.model_validate(document)).warnings
    (said,) = (each for each in told if ".per " in each)
    assert "features.age.per does not apply to a curve" in said
    assert 'contrast("age", VALUE, AGAINST)' in said


def test_moments_are_released_within_the_budget() -> None:
    prepared = {"method": "private-moments"}
    plan = plan_releases(study_of(privacy=WITHOUT_RECORDS, preparation=prepared))
    count, moments, gradient = plan.phases
    # age, sex[M] and dose, each with its square; every one of them in [-1, 1].
    assert moments.dimension == 6
    assert moments.sums.clip == pytest.approx(math.sqrt(6.0))
    assert [phase.first for phase in plan.phases] == [0, 1, 2]
    shares = {
        phase.purpose: phase.rounds / phase.sums.noise_multiplier**2
        for phase in plan.phases
    }
    total = sum(shares.values())
    assert shares["records"] / total == pytest.approx(SHARES["records"], rel=1e-3)
    assert shares["moments"] / total == pytest.approx(SHARES["moments"], rel=1e-3)
    assert spent(plan) <= 1.0
    assert gradient is plan.last_phase
    assert count.sums.noise_multiplier > gradient.sums.noise_multiplier / 10


@pytest.mark.slow
def test_sampling_needs_less_noise_and_is_charged_as_sampling() -> None:
    whole = plan_releases(study_of())
    plan = plan_releases(study_of(inference={"batch": 150, "rounds": 20}))
    assert plan.last_phase.sums.rate == 150 / 3000
    assert isinstance(plan.last_phase.sums.event, PoissonSampled)
    sigma = plan.last_phase.sums.noise_multiplier
    assert sigma < whole.last_phase.sums.noise_multiplier
    assert 0.995 <= spent(plan) <= 1.0


def test_sampling_after_moments_keeps_the_budget() -> None:
    plan = plan_releases(
        study_of(
            inference={"batch": 150, "rounds": 200},
            preparation={"method": "private-moments"},
        )
    )
    moments, gradient = plan.phases
    assert moments.sums.rate == 1.0
    assert gradient.sums.rate == 0.05
    assert 0.99 <= spent(plan) <= 1.0


def test_a_batch_of_everyone_is_a_full_batch() -> None:
    plan = plan_releases(study_of(inference={"batch": 5000, "rounds": 20}))
    assert plan.last_phase.sums.rate == 1.0
    assert plan.phases == plan_releases(study_of()).phases


@pytest.mark.parametrize("sites", [2, 3, 20])
@pytest.mark.parametrize("target", [0.05, 1.0, 20.0])
def test_the_parameters_hold_every_phases_bound(sites: int, target: float) -> None:
    names: dict[str, Any] = {f"site-{number}": {} for number in range(sites)}
    plan = plan_releases(
        study_of(
            privacy={**WITHOUT_RECORDS, "epsilon": target},
            preparation={"method": "private-moments"},
            sites=names,
        )
    )
    assert isinstance(plan, SecureSumPlan)
    for phase in plan.phases:
        assert plan.parameters.fits(phase.sums.bound, sites)
        assert phase.sums.sites == sites
        assert phase.sums.colluders == 1


def test_a_pooled_study_has_one_curator_and_no_encryption() -> None:
    plan = plan_releases(study_of(study={"protocol": "pooled"}))
    assert plan.encryption is None
    release = plan.last_phase.sums
    assert (release.sites, release.colluders, release.dropouts) == (1, 0, 0)


def test_colluders_and_dropouts_raise_every_sites_share() -> None:
    calm = plan_releases(study_of(privacy={"colluders": 0})).last_phase.sums
    wary = plan_releases(study_of(privacy={"dropouts": 1})).last_phase.sums
    assert wary.share_scale == pytest.approx(calm.share_scale * math.sqrt(3.0))
    assert plan_releases(study_of(privacy={"dropouts": 1})).minimum_roster == 2


def test_epsilon_grows_round_by_round_to_the_budget() -> None:
    plan = plan_releases(
        study_of(privacy=WITHOUT_RECORDS, preparation={"method": "private-moments"})
    )
    assert plan.event_after(0) is None
    path = []
    for rounds in range(1, plan.rounds + 1):
        event = plan.event_after(rounds)
        assert event is not None
        path.append(epsilon(event, 1e-5))
    assert path == sorted(path)
    assert path[-1] == spent(plan) <= 1.0


def test_every_round_has_one_phase() -> None:
    plan = plan_releases(study_of(privacy=WITHOUT_RECORDS))
    purposes = [getattr(plan.phase_of(n), "purpose", None) for n in range(-1, 23)]
    assert purposes == [None, "records", *["gradient"] * 20, None, None]


def test_a_table_larger_than_the_study_is_refused() -> None:
    plan = plan_releases(study_of())
    plan.check_site("north", 3000)
    with pytest.raises(DataError, match="more rows than the study's 3000"):
        plan.check_site("north", 3001)


def test_released_moments_are_made_possible() -> None:
    plan = plan_releases(
        study_of(privacy=WITHOUT_RECORDS, preparation={"method": "private-moments"})
    )
    count, moments, _ = plan.phases
    assert plan.summarise_release(count, np.array([-7.3]), {}).tolist() == [1.0]
    assert plan.summarise_release(count, np.array([99.6]), {}).tolist() == [100.0]
    noisy = np.array([1e9, -1e9, 0.0, -5.0, 1e9, 25e4])
    digest = plan.summarise_release(moments, noisy, {"records": np.array([1e6])})
    mean, sd = digest[:3], digest[3:]
    assert np.abs(mean).max() <= 1.0
    assert sd.min() > 0.0
    assert sd.max() <= 1.0
    assert (mean[2], sd[2]) == (0.0, 0.5)


def test_a_released_variance_is_never_below_its_noise() -> None:
    """A rare column standardised by noise would stand out by any factor."""
    plan = plan_releases(
        study_of(privacy=WITHOUT_RECORDS, preparation={"method": "private-moments"})
    )
    moments = plan.phases[1]
    digest = plan.summarise_release(moments, np.zeros(6), {"records": np.array([1e4])})
    noise = moments.sums.noise_sd(moments.sums.sites) / 1e4
    assert digest[3:].min() ** 2 == pytest.approx(2.0 * noise)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inference": {"batch": 10, "sampling": "fixed"}}, "no certified amplific"),
        (
            {"inference": {"batch": 10}, "privacy": WITHOUT_RECORDS},
            "needs the public number of records",
        ),
        ({"prior": {"parameters": {"weight": {"scale": 2.0}}}}, "unknown parameter"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words) as refusal:
        plan_releases(study_of(**changes))
    assert "planned" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"epsilon": 0.0}},
        {"privacy": {"epsilon": -1.0}},
        {"privacy": {"epsilon": math.inf}},
        {"privacy": {"delta": 0.0}},
        {"privacy": {"delta": 1.0}},
        {"privacy": {"clip": 0.0}},
        {"privacy": {"records": 0}},
        {"privacy": {"colluders": 3}},
        {"privacy": {"colluders": 1, "dropouts": 2}},
        {"privacy": {"colluders": -1}},
        {"inference": {"rounds": 0}},
        {"inference": {"batch": 0}},
        {"inference": {"chains": 4}},
        {"inference": {"preconditioner": "fisher"}},
        {"evaluation": {"holdout": 0.2, "private": False}},
        {"privacy": None},
    ],
)
def test_an_impossible_study_never_gets_as_far_as_a_plan(
    changes: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError):
        study_of(**changes)


@pytest.mark.parametrize("clip", [1e-300, 1e300])
def test_a_clip_outside_every_range_is_refused(clip: float) -> None:
    with pytest.raises(PrivacyError, match="usable positive number"):
        plan_releases(study_of(privacy={"clip": clip}))


def test_sums_that_no_parameters_hold_are_refused() -> None:
    names: dict[str, Any] = {f"site-{number}": {} for number in range(5000)}
    plan = plan_releases(study_of(sites=names))
    with pytest.raises(CryptoError, match="no vetted parameter set"):
        _ = plan.scheme
    with pytest.raises(PrivacyError, match="fit 64 bits"):
        plan_releases(study_of(privacy={"records": 10**18}))


def test_messages_name_the_order_of_features_that_gives_theta_its_meaning() -> None:
    """A fingerprint is the same however a file is arranged; a swap must not be."""
    study = study_of()
    document = study.model_dump(mode="json", exclude_none=True)
    document["features"] = dict(reversed(document["features"].items()))
    swapped = Study.model_validate(document)
    assert list(swapped.features) != list(study.features)
    assert swapped.fingerprint() == study.fingerprint()
    assert plan_releases(swapped).study_hash != plan_releases(study).study_hash


def test_private_scales_are_released_within_the_budget() -> None:
    plan = plan_releases(study_of(preparation={"method": "private-scales"}))
    first, second, scales, _ = plan.phases
    purposes = ("histograms", "windows", "scales", "gradient")
    assert tuple(phase.purpose for phase in plan.phases) == purposes
    assert first.numbers is not None
    assert first.dimension == second.dimension == 2 * first.numbers.bins
    assert first.sums.clip == second.sums.clip == pytest.approx(math.sqrt(2.0))
    assert scales.dimension == 2 + 2 + 1
    assert scales.sums.clip == pytest.approx(math.sqrt(5.0))
    assert [len(plan.before(phase)) for phase in plan.phases] == [0, 1, 2, 3]
    total = sum(phase.rounds / phase.sums.noise_multiplier**2 for phase in plan.phases)
    share = 1.0 / (scales.sums.noise_multiplier**2 * total)
    assert share == pytest.approx(0.03, rel=1e-3)
    assert 0.999 <= spent(plan) <= 1.0


@pytest.mark.parametrize(
    ("changes", "method"),
    [
        ({}, "private-scales"),
        ({"privacy": {"records": 300}}, "public-bounds"),
        ({"privacy": {"records": 300, "epsilon": 30.0}}, "private-scales"),
        ({"privacy": WITHOUT_RECORDS}, "private-scales"),
        ({"preparation": {"method": "private-moments"}}, "private-moments"),
        ({"preparation": {"intercept": 0.0}}, "public-bounds"),
        ({"preparation": {"row_norm": 2.0}}, "public-bounds"),
        ({"study": {"protocol": "encrypted-update"}}, "public-bounds"),
    ],
)
def test_scales_are_private_where_nothing_is_said_and_they_can_be_had(
    changes: dict[str, Any], method: str
) -> None:
    """The default, from public numbers alone, is part of the study's fingerprint."""
    changes = {"preparation": {}, **changes}
    document = study_of(**changes).model_dump(mode="json", exclude_none=True)
    if "method" not in changes["preparation"]:
        del document["preparation"]["method"]
    if document["study"]["protocol"] == "encrypted-update":
        del document["inference"]
    study = Study.model_validate(document)
    assert study.preparation_method == method
    assert study.prior_is_of_ranges == (method == "public-bounds")
    assert study.document()["preparation"]["method"] == method
    stated = {**document["preparation"], "method": method}
    same = Study.model_validate({**document, "preparation": stated})
    assert same.fingerprint() == study.fingerprint()
    resolved = Study.model_validate(study.document())
    assert resolved.prior_is_of_ranges == study.prior_is_of_ranges


def test_a_bins_noise_is_a_small_share_of_the_records() -> None:
    for records in (3000, 30_000, 3_000_000):
        plan = plan_releases(
            study_of(
                preparation={"method": "private-scales"}, privacy={"records": records}
            )
        )
        noise = plan.phases[0].sums.noise_sd(plan.phases[0].sums.sites)
        assert noise / records < 0.03


def test_rows_count_further_the_less_noise_there_is() -> None:
    clips = []
    for target in (0.3, 1.0, 3.0, 10.0, 100.0, 1e3):
        document = study_of(
            privacy={"epsilon": target, "records": 20_000},
            preparation={"method": "private-scales"},
            inference={"method": "noise-aware", "rounds": None},
        )
        weighting = plan_releases(document).last_phase.weighting
        assert weighting is not None
        clips.append(weighting.clip)
    assert clips == sorted(clips)
    assert clips[0] == pytest.approx(2.0)
    assert clips[-1] == pytest.approx(6.0)
