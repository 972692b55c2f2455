"""The tables of a study file and their keys, one class each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from cipherbayes.data.databases import located
from cipherbayes.data.snapshots import Query
from cipherbayes.study.protocol_rules import OWN_NOISE, known_noise, known_protocol
from cipherbayes.study.rival import Rival, as_rival
from cipherbayes.study.rules import NAME, require_one_table

ProtocolName = Annotated[str, AfterValidator(known_protocol)]
"""The name of a registered protocol."""
NoiseName = Annotated[str, AfterValidator(known_noise)]
"""Where a registered protocol adds its noise."""
CircuitName = Literal["literal", "fast", "hardened"]
PreparationMethod = Literal[
    "public-bounds", "private-scales", "private-moments", "as-printed"
]

ROW = "row"
"""What a record is unless a study says otherwise."""


class Section(BaseModel):
    """A table of the study file: frozen, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Header(Section):
    """``[study]``: what it is called and how it runs.

    A study that names no protocol is ``secure-sum`` where it has sites and a
    budget, else ``pooled``. ``noise`` and ``circuit`` belong to
    ``encrypted-update``: where its noise is added, and how its update is computed
    (``hardened`` where nothing is said).
    """

    name: str = Field(default="study", pattern=NAME)
    protocol: ProtocolName | None = None
    noise: NoiseName = OWN_NOISE
    circuit: CircuitName | None = None
    engine: Literal["in-process", "local-processes"] = "in-process"


class Privacy(Section):
    """``[privacy]``: the budget, and against how many colluding sites it holds.

    Attributes
    ----------
    epsilon, delta
        The whole study's budget, add-or-remove one record.
    colluders, dropouts
        Sites that may pool what they know; sites that may be lost in a round.
    clip
        Bound C on one record: on the Euclidean norm of its gradient (left out: 1);
        where the method is noise-aware on that of its prepared row, beyond which
        the record is weighted down (left out: a guess from the features' ranges).
    records
        The public number of records N over all sites; left out, it is released
        with noise.
    events
        About what share of the records has the event, or the mean count, as it is
        known from elsewhere; only what a plan forecasts depends on it.
    randomness
        ``insecure-repeatable`` draws the noise from a seed: for tests, protects
        nobody, and every output says so.
    unit
        What one record is: ``"row"``, or the column that names a person, whose rows
        at a site are then one record together.
    """

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    colluders: int | None = Field(default=None, ge=0)
    dropouts: int = Field(default=0, ge=0)
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    records: int | None = Field(default=None, ge=1)
    events: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    randomness: Literal["secure", "insecure-repeatable"] = "secure"
    unit: str = Field(default=ROW, min_length=1)

    @property
    def person(self) -> str | None:
        """The column that names a person; None where a record is a row."""
        return None if self.unit == ROW else self.unit

    @property
    def units(self) -> str:
        """What is protected, in a word: rows or persons."""
        return "rows" if self.person is None else "persons"


class PreparationSection(Section):
    """``[preparation]``: how raw columns become the design matrix.

    ``public-bounds`` uses the ranges of ``[features]`` alone. ``private-scales`` then
    finds, with noised histograms, where each column's values lie, and standardises it
    with a noised mean and standard deviation; ``private-moments`` does without
    histograms, so ranges must be tight. Both are charged to the budget. ``as-printed``
    standardises and normalises with exact ones (the paper's Algorithms 4 and 5), in
    its own mode only. Left out: :attr:`Study.preparation_method`. ``intercept`` is
    the value of the constant column (0 for none); ``row_norm`` bounds the Euclidean
    norm of a prepared row's features.
    """

    method: PreparationMethod | None = None
    row_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    intercept: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class Hierarchy(Section):
    """``[hierarchy]``: what differs between sites.

    Attributes
    ----------
    intercept
        Whether each site has an intercept (a baseline hazard) of its own, about
        N(0, τ²) away from the common one.
    slopes
        Features whose effect differs between sites, each with a τ of its own.
    scale
        Of the half-normal prior of every τ, on the prepared scale.
    baseline
        Of a model with a baseline hazard on intervals: ``common`` where sites' hazards
        are proportional, ``stratified`` where each has a shape of its own.
    effects
        ``random`` for sites that are alike up to τ; ``fixed`` for sites that tell
        nothing of each other: no τ, and no prediction for a new site.
    groups
        Sites that have their parameters together, as one, under a name: of small ones
        only the sums of all of them are released.
    context
        Whether a site's intercept may follow the means of its patients' columns; so by
        default. With ``false`` sites vary around one intercept, as in the usual mixed
        model, whatever their patients are like.
    """

    intercept: bool = True
    slopes: tuple[str, ...] = ()
    scale: float = Field(default=1.0, ge=1e-3, le=1e3)
    baseline: Literal["common", "stratified"] | None = None
    effects: Literal["random", "fixed"] = "random"
    groups: dict[Annotated[str, Field(pattern=NAME)], tuple[str, ...]] = {}
    context: bool | None = None

    def owner(self, site: str) -> str:
        """The name under which a site's parameters stand: its group's or its own."""
        found = [name for name, sites in self.groups.items() if site in sites]
        return found[0] if found else site


class Evaluation(Section):
    """``[evaluation]``: a held-out share of the rows on which the fit is scored.

    A private study scores them with noise, within its budget, unless it states that
    they are public (``holdout_is_public``): then scores are exact, and nothing about
    those rows is protected. ``private`` says the same the other way round.

    ``against`` names the folder of an earlier run. Held-out rows are then those of that
    run, and the mean difference of the two fits' log scores on them is released too.
    """

    holdout: float = Field(gt=0, lt=1)
    seed: int = Field(default=1, ge=0)
    holdout_is_public: bool = False
    private: bool | None = None
    against: Annotated[Rival | None, BeforeValidator(as_rival)] = None

    @property
    def stated_rival(self) -> Rival:
        """The earlier fit; ValueError where the study names none."""
        if self.against is None:
            raise ValueError("evaluation.against names no earlier run")
        return self.against


class Describe(Section):
    """``[describe]``: a table of the records' characteristics, released with noise.

    Attributes
    ----------
    by
        Groups besides all records together: ``"site"``, or a feature with levels.
    share
        Part of the budget (of μ²) that it takes.
    """

    by: tuple[str, ...] = ()
    share: float = Field(default=0.05, gt=0, le=0.5)


class Paper(Section):
    """``[paper]``: constants of the paper's own method (Theorem 4, Algorithm 3).

    ``accept_two_sites`` accepts that of two sites each learns the other's exact
    moments (Algorithm 4).
    """

    scale: float = Field(default=1.0, gt=0)
    lipschitz: float = Field(default=1.0, gt=0)
    gamma: float = Field(default=0.99, gt=0, lt=1)
    batch: int = Field(ge=1)
    epochs: int = Field(ge=1)
    floor: float = Field(default=1e-4, gt=0)
    accept_two_sites: bool = False


class SiteSection(Section):
    """``[sites]``: one entry a site, in an embedded run with its table.

    Attributes
    ----------
    data
        Path of the table, relative to the study file.
    database, query
        In the place of ``data``: address of a database, without a password, and path
        of the file with the SELECT that is the table.
    ledger
        Path of a query's ledger; a file's ledger lies beside it.
    budget
        ε that this table may spend over all studies (default: this study's).
    """

    data: str | None = None
    database: str | None = None
    query: str | None = None
    ledger: str | None = None
    budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)

    @model_validator(mode="after")
    def _one_table(self) -> Self:
        require_one_table(self)
        return self

    @property
    def table(self) -> str | Query | None:
        """Where the table is: a path, or a query."""
        if self.database is None or self.query is None:
            return self.data
        return Query(self.database, Path(self.query))

    def located(self, folder: Path) -> SiteSection:
        """The same with paths that begin with a folder."""
        paths = ("data", "query", "ledger")
        found = {name: getattr(self, name) for name in paths}
        moved = {n: str(folder / path) for n, path in found.items() if path is not None}
        if self.database is not None:
            moved["database"] = located(self.database, folder)
        return self.model_copy(update=moved)
