"""The keys of result.json and plan --json, in the order in which they are written."""

from __future__ import annotations

import json

from parties import small_study

from cipherbayes.protocols.certificate import CertificateRecord, no_budget
from cipherbayes.protocols.plan import plan_study

ALWAYS = '{"epsilon": null, "delta": null, "relation": null, "certified": false, '
ALWAYS += '"holds_against": [], "unit": null, "covers": null}'


def test_a_certificate_without_a_budget_has_seven_keys() -> None:
    assert json.dumps(no_budget()) == ALWAYS


def test_a_certificate_has_the_keys_of_its_record() -> None:
    plan = plan_study(small_study(("a", "b", "c")))
    found = plan.protocol.certificate(plan, plan.rounds)
    stated = list(CertificateRecord.__annotations__)
    assert list(found) == [key for key in stated if key in found]
    assert list(found)[7:] == [
        "spent",
        "mechanism",
        "noise_multiplier",
        "clip",
        "sampling_rate",
        "colluders",
        "dropouts",
    ]


def test_a_plan_prints_what_all_studies_have_and_then_its_own_figures() -> None:
    plan = plan_study(small_study(("a", "b", "c")))
    assert list(plan.protocol.describe(plan).record()) == [
        "rounds",
        "noise_multiplier",
        "epsilon",
        "delta",
        "certified",
        "paper_claim",
        "parameters",
        "bytes_per_round_site",
        "warnings",
        "epsilon_after",
        "sampling_rate",
        "clip",
        "dimension",
        "signal_over_noise",
        "width_ratio",
        "width_ratio_rare",
        "width_likely",
        "width_likely_rare",
    ]
