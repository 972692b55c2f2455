"""The study file: one TOML document that says everything a run does.

Unknown keys, impossible values and fields that contradict each other are
refused with the file, the line and the remedy. The study's hash, which leaves
out only where each site keeps its table, is what the parties agree on.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from cipherbayes.data.databases import located
from cipherbayes.data.preparation import Feature
from cipherbayes.data.snapshots import Query
from cipherbayes.errors import StudyError
from cipherbayes.inference.method import Method, method_named
from cipherbayes.inference.methods import CHAIN_DEFAULT, MULTILEVEL, PRIVATE_DEFAULT
from cipherbayes.inference.settings import Inference
from cipherbayes.models import AnyModel
from cipherbayes.models.prior import Prior
from cipherbayes.study.file import explained, read_text, require_filled_in
from cipherbayes.study.protocol_rules import ProtocolRules, known_protocol, rules_of
from cipherbayes.study.rival import Rival, as_rival
from cipherbayes.study.rules import NAME, require_agreement, require_one_table
from cipherbayes.study.scales import scales_budget

ProtocolName = Annotated[str, AfterValidator(known_protocol)]
"""The name of a registered protocol."""
CircuitName = Literal["literal", "fast", "hardened"]
PreparationMethod = Literal[
    "public-bounds", "private-scales", "private-moments", "as-printed"
]
RELEASING_SCALES = frozenset({"private-scales", "private-moments"})


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
    noise: Literal["in-gradient", "as-printed"] = "in-gradient"
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


class Preparation(Section):
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
    """

    intercept: bool = True
    slopes: tuple[str, ...] = ()
    scale: float = Field(default=1.0, ge=1e-3, le=1e3)
    baseline: Literal["common", "stratified"] | None = None
    effects: Literal["random", "fixed"] = "random"


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


class Site(Section):
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

    def located(self, folder: Path) -> Site:
        """The same with paths that begin with a folder."""
        paths = ("data", "query", "ledger")
        found = {name: getattr(self, name) for name in paths}
        moved = {n: str(folder / path) for n, path in found.items() if path is not None}
        if self.database is not None:
            moved["database"] = located(self.database, folder)
        return self.model_copy(update=moved)


class Study(Section):
    """A whole study.

    Examples
    --------
    >>> import cipherbayes as cb
    >>> study = cb.Study(
    ...     model=cb.models.Logistic(outcome="death"),
    ...     features={"age": {"low": 18, "high": 100}},
    ... )
    """

    study: Header = Header()
    model: AnyModel
    features: dict[str, Feature] = Field(min_length=1)
    reference: dict[str, float | int | bool | str] | None = None
    preparation: Preparation = Preparation()
    prior: Prior = Prior()
    hierarchy: Hierarchy | None = None
    privacy: Privacy | None = None
    inference: Inference = Inference()
    evaluation: Evaluation | None = None
    describe: Describe | None = None
    sites: dict[str, Site] = {}
    paper: Paper | None = None

    def __init__(self, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise explained(error) from None

    # Pydantic's own way in, model_validate, does not lead through here.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read and check a study file; data paths are relative to its folder."""
        path = Path(path)
        text = read_text(path)
        require_filled_in(text, path)
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(
                f"not valid TOML: {error}",
                where=str(path),
                remedy="one `key = value` per line under a [table] heading",
            ) from None
        held = document.get("evaluation")
        if isinstance(held, dict) and isinstance(held.get("against"), str):
            held["against"] = str(path.parent / held["against"])
        try:
            study = cls.model_validate(document)
        except ValidationError as error:
            raise explained(error, path, text) from None
        return study._with_paths_from(path.parent)

    def _with_paths_from(self, folder: Path) -> Self:
        sites = {name: site.located(folder) for name, site in self.sites.items()}
        return self.model_copy(update={"sites": sites})

    def without_paths(self) -> Self:
        """The study as all parties see it: where tables are stays at the sites."""
        return self.model_copy(update={"sites": {name: Site() for name in self.sites}})

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def protocol(self) -> str:
        """As stated; else secure-sum where there are sites and a budget."""
        if self.study.protocol is not None:
            return self.study.protocol
        return "secure-sum" if self.private and self.sites else "pooled"

    @property
    def rules(self) -> ProtocolRules:
        """The descriptor of the study's protocol."""
        return rules_of(self.protocol, self.study.noise)

    @property
    def private(self) -> bool:
        """Whether the study spends a privacy budget."""
        return self.privacy is not None

    @property
    def method(self) -> str:
        """The name of the method that the study runs: see :attr:`inference_method`."""
        return self.inference_method.name

    @property
    def inference_method(self) -> Method:
        """As stated; else noise-aware in a private study, unless its protocol knows
        chains only: no other method of a private study runs unasked. Without privacy
        the multilevel sampler where sites differ.
        """
        wanted = self.inference.method
        if wanted is None:
            private = self.private and self.rules.noise_aware
            chain = CHAIN_DEFAULT if self.hierarchy is None else MULTILEVEL
            wanted = PRIVATE_DEFAULT if private else chain
        return method_named(wanted)

    @property
    def preparation_method(self) -> PreparationMethod:
        """As stated; else private scales where they can be had.

        A private study that leaves it open keeps to its public ranges where the
        protocol or the model takes no scales, where it bounds rows, or where N and ε
        are too small for histograms (:func:`~cipherbayes.study.scales.scales_budget`).
        """
        if self.preparation.method is not None:
            return self.preparation.method
        usable = self.scales_wanted and scales_budget(self).suffices
        return "private-scales" if usable else "public-bounds"

    @property
    def full_prior(self) -> Prior:
        """The prior as stated, with what it leaves out for the study's preparation."""
        scaled = self.preparation_method == "private-scales"
        return self.prior.filled_in(standardised=scaled)

    @property
    def scales_wanted(self) -> bool:
        """Whether the study would have private scales if it could."""
        prepared = self.preparation
        if prepared.method is not None or self.privacy is None:
            return False
        if prepared.row_norm is not None:
            return False  # a norm of rows within [-1, 1]
        # Without a constant the columns of a regression may not be moved.
        constant = not self.model.needs_intercept or self.intercept is not None
        return self.rules.noise_aware and bool(self.model.roles) and constant

    @property
    def intercept(self) -> float | None:
        """Value of the constant column; None where the study has none."""
        terms = self.model.terms
        if not self.model.needs_intercept or (terms and not terms.intercept):
            return None
        return self.preparation.intercept or None

    @property
    def releases_scales(self) -> bool:
        """Whether noised means and standard deviations of the columns are released."""
        return self.preparation_method in RELEASING_SCALES

    @property
    def checks_privately(self) -> bool:
        """Whether rows are held out that the study protects like all others."""
        held = self.evaluation
        return self.private and held is not None and not held.holdout_is_public

    @property
    def training_records(self) -> int | None:
        """The records that the fit is expected to see; None where N is not public.

        Of protected held-out rows a hash decides, so it is the declared number less
        their share, whatever their exact number.
        """
        if self.privacy is None or self.privacy.records is None:
            return None
        if not self.checks_privately:
            return self.privacy.records
        assert self.evaluation is not None
        return max(round(self.privacy.records * (1.0 - self.evaluation.holdout)), 1)

    @property
    def insecure(self) -> bool:
        """Whether the noise comes from a seed, and so protects nobody."""
        return (
            self.privacy is not None
            and self.privacy.randomness == "insecure-repeatable"
        )

    @property
    def colluders(self) -> int:
        """Colluding sites tolerated: as stated, else one where there are several."""
        if self.privacy is not None and self.privacy.colluders is not None:
            return self.privacy.colluders
        if not self.rules.federated:
            return 0
        return min(1, max(len(self.sites) - 1, 0))

    def with_privacy(self) -> PrivateStudy:
        """The study as a private one; refused where it has no budget."""
        if self.privacy is None:
            raise StudyError(
                "spends no privacy budget",
                where=f"study '{self.name}'",
                remedy="add a [privacy] table with epsilon and delta",
            )
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return PrivateStudy.model_construct(self.model_fields_set, **fields)

    def document(self) -> dict[str, Any]:
        """The resolved study as plain values, defaults filled in."""
        document = self.model_dump(mode="json", exclude_none=True)
        document["study"]["protocol"] = self.protocol
        document["inference"]["method"] = self.method
        document["preparation"]["method"] = self.preparation_method
        document["prior"] = self.full_prior.model_dump(mode="json", exclude_none=True)
        document["study"] |= self.rules.defaults(self)
        if self.checks_privately:
            document["evaluation"]["private"] = True
        if self.privacy is not None and self.privacy.person is None:
            del document["privacy"]["unit"]
        return document

    def to_toml(self) -> str:
        """The resolved study as TOML."""
        return tomli_w.dumps(self.document())

    def fingerprint(self) -> str:
        """SHA-256 (hex) of the study without the paths of the sites' tables."""
        document = self.document()
        document["sites"] = sorted(self.sites)
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        require_agreement(self)
        return self


class PrivateStudy(Study):
    """A study that is known to have a budget."""

    privacy: Privacy
