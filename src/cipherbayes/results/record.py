"""The shape of ``result.json``."""

from __future__ import annotations

from typing import NotRequired, TypedDict, cast

from cipherbayes.inference.flags import FlagRecord
from cipherbayes.models.metrics import Metrics
from cipherbayes.protocols.certificate import CertificateRecord

ReferenceRecord = dict[str, float | str]
"""A made-up record: feature -> its value in the user's units, or its level."""


class ParameterRow(TypedDict):
    """A parameter's posterior in the user's own units; a point has no spread."""

    name: str
    mean: float
    sd: float | None
    lower: float | None
    upper: float | None
    rhat: float | None
    ess: float | None


class MedianRow(TypedDict):
    """A median over draws and its interval; None where an end is not reached."""

    estimate: float | None
    lower: float | None
    upper: float | None


class EffectRow(MedianRow):
    """What a step of a feature does, in the model's measure."""

    name: str
    measure: str
    per: str
    above: NotRequired[float | None]


class ContrastRow(EffectRow):
    """One value of a feature against another, for a record as ``at`` says."""

    at: ReferenceRecord


class SubgroupRow(EffectRow):
    """An effect in a group: where the feature ``by`` is ``at``."""

    by: str
    at: float | str


class CurvePoint(MedianRow):
    """An effect at a value of a number, against the curve's reference."""

    value: float


class BeyondRow(TypedDict):
    """How many of a column's values lie beyond the ends of its public range."""

    feature: str
    low: float
    high: float
    below: int
    above: int
    rows: int


class Curve(TypedDict):
    """A number's effect along its range; in a group where ``by`` is ``level``."""

    feature: str
    measure: str
    reference: float
    by: str | None
    level: float | str | None
    points: list[CurvePoint]


class FormulaRecord(TypedDict):
    """What a formula adds: the reference record, curves, effects in groups."""

    text: str
    reference: ReferenceRecord
    curves: list[Curve]
    subgroups: list[SubgroupRow]


class SurvivalPoint(MedianRow):
    """Survival at a time."""

    time: float


class MedianSurvival(MedianRow):
    """A median survival time; ``not_reached`` is the probability that there is none."""

    not_reached: float


class Baseline(TypedDict):
    """Survival of a reference record; with a ``cause`` as if there were no other."""

    at: ReferenceRecord
    survival: list[SurvivalPoint]
    median: MedianSurvival
    cause: NotRequired[int]


class BetweenRow(TypedDict):
    """A spread between sites, with its interval; ``rhat`` and ``ess`` as of
    parameters."""

    name: str
    mean: float
    sd: float
    lower: float
    upper: float
    rhat: float | None
    ess: float | None


class SiteRow(BetweenRow):
    """How far a site's parameter is from the common one."""

    site: str


class InfluenceRow(TypedDict):
    """How far a common parameter moves when one site's part in it is left out, in
    posterior standard deviations."""

    site: str
    name: str
    shift: float


class MetaAnalysisRow(TypedDict):
    """A parameter that differs, as a random-effects meta-analysis has it.

    Intercepts and log hazards are those of a record at the columns' centres;
    ``posterior`` is the same parameter as the joint posterior has it.
    """

    name: str
    estimate: float
    se: float
    lower: float
    upper: float
    between: float
    posterior: MeanRow


class MeanRow(TypedDict):
    """A parameter's mean and interval."""

    mean: float
    lower: float
    upper: float


class SiteRecordsRow(TypedDict):
    """How many records a site has, as it was released: with noise."""

    site: str
    records: float


class HierarchyRecord(TypedDict):
    """What differs between sites; ``between`` is empty where sites are fixed, and
    ``records`` without privacy."""

    effects: str
    records: list[SiteRecordsRow]
    between: list[BetweenRow]
    sites: list[SiteRow]
    influence: list[InfluenceRow]
    meta_analysis: list[MetaAnalysisRow]


class PartyRecord(TypedDict):
    """What a party contributed: who it is, its time and its bytes."""

    name: str
    identity: str | None
    seconds: float
    bytes: int


class EncryptionRecord(TypedDict):
    """The encryption parameters and the id of the run's key."""

    parameters: str
    key: str | None


class TakingPart(TypedDict, total=False):
    """Who took part in a run; empty where there were no parties."""

    run: str
    encryption: EncryptionRecord
    parties: list[PartyRecord]


class Timing(TypedDict):
    """Seconds: the slowest site's, the server's, the CSP's, and by the clock."""

    site_s: float
    server_s: float
    csp_s: float
    wall_s: float


class Bytes(TypedDict):
    """Bytes of a site's message, and of all messages."""

    per_round_site: int
    total: int


class DescribeRow(TypedDict):
    """A statistic of the records' characteristics, with an interval for its noise and
    for the width of the ranges that numbers are counted in."""

    column: str
    statistic: str
    group: str
    mean: float
    lower: float
    upper: float


class CalibrationBin(TypedDict):
    """Held-out rows with about one prediction: how many, what was predicted and what
    happened, with its interval; ``within_noise`` where there may be none of them."""

    rows: float
    predicted: float
    observed: float
    lower: float
    upper: float
    within_noise: NotRequired[bool]


class AucAt(TypedDict):
    """AUC of who has the event by a time, with its interval."""

    time: float
    auc: float
    lower: float
    upper: float


class BrierAt(TypedDict):
    """The Brier score of who has the event by a time, with its interval."""

    time: float
    brier: float
    lower: float
    upper: float


class ObservedOverExpected(MeanRow):
    """Events by a time in a third of the predicted risks: their ratio."""

    group: str
    time: float
    expected: float
    observed: float


class DifferenceRow(MeanRow):
    """How much better a fit predicts than the earlier one that its study names."""

    against: str
    study_hash: str


class ResidualGroup(TypedDict):
    """What a group's linear predictor lacks, of numbers in the outcome's unit; None
    where older releases took it to have too few records."""

    group: str
    mean: float | None
    lower: float | None
    upper: float | None


class FitTest(TypedDict):
    """Whether residuals are even over the groups of a feature, or over the sites.

    ``kind`` is ``all rows``, ``predicted risk``, ``feature`` or ``sites``: a feature
    may be named like one of the others. ``bend`` is the sign of the curve along a
    number's ranges, and ``text`` says in words what was found.
    """

    by: str
    kind: str
    what: str
    p: float
    bend: int
    groups: list[ResidualGroup]
    misfit: bool
    text: str


class RiskOverTime(MeanRow):
    """By how much the slope of the log hazard along the predicted one is higher at the
    end of the horizon than at its beginning, and the p value of no difference."""

    p: float


class PrivateMetrics(TypedDict, total=False):
    """Scores of protected held-out rows, released with noise: those that the model's
    outcome has."""

    private: bool
    rows: MeanRow
    events: MeanRow
    auc: MeanRow
    brier: MeanRow
    log_score: MeanRow
    calibration_intercept: MeanRow
    calibration_slope: MeanRow
    calibration_in_the_large: MeanRow
    c_index: MeanRow
    rmse: MeanRow
    mean_predicted: MeanRow
    mean_observed: MeanRow
    predicted_over_observed: MeanRow
    calibration_table: list[CalibrationBin]
    auc_at: list[AucAt]
    brier_at: list[BrierAt]
    observed_over_expected: list[ObservedOverExpected]
    risk_over_time: RiskOverTime
    difference: DifferenceRow
    fit: list[FitTest]


class ResultRecord(TypedDict):
    """The content of ``result.json``."""

    version: int
    cipherbayes: str
    study: str
    study_hash: str
    protocol: str
    model: str
    method: str
    sites: list[str]
    rounds: int
    privacy: CertificateRecord
    interval: float
    posterior: list[ParameterRow]
    effects: list[EffectRow]
    reference: NotRequired[ReferenceRecord]
    baseline: Baseline | None
    formula: NotRequired[FormulaRecord]
    timing: Timing
    bytes: Bytes
    run: str | None
    encryption: EncryptionRecord | None
    parties: list[PartyRecord]
    metrics: Metrics | PrivateMetrics
    warnings: list[str]
    flags: list[FlagRecord]
    cautions: NotRequired[list[FlagRecord]]
    moments: list[float] | None
    spread: NotRequired[list[float]]
    column_models: NotRequired[list[float]]
    hierarchy: NotRequired[HierarchyRecord]
    describe: NotRequired[list[DescribeRow]]
    posterior_sha256: NotRequired[str]


def private_scores(record: ResultRecord) -> PrivateMetrics | None:
    """Scores of protected held-out rows; None where a study has none."""
    metrics = record["metrics"]
    return cast(PrivateMetrics, metrics) if metrics.get("private") else None


def exact_scores(record: ResultRecord) -> Metrics:
    """Scores of held-out rows that are public; empty where a study has none."""
    metrics = record["metrics"]
    return {} if metrics.get("private") else cast(Metrics, metrics)


def scores_by_name(metrics: PrivateMetrics) -> dict[str, MeanRow]:
    """Those scores that are one mean with its interval."""
    return {
        name: cast(MeanRow, value)
        for name, value in metrics.items()
        if isinstance(value, dict)
    }
