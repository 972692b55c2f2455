"""The study file: one TOML document that says everything a run does.

Unknown keys, impossible values and fields that contradict each other are
refused with the file, the line and the remedy. The study's hash, which leaves
out only where each site keeps its table, is what the parties agree on.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cipherbayes.data.preparation import Feature
from cipherbayes.errors import StudyError
from cipherbayes.inference.settings import Inference, Method
from cipherbayes.models import AnyModel
from cipherbayes.models.base import InfluenceBound
from cipherbayes.models.prior import Prior

Name = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"


Protocol = Literal["secure-sum", "encrypted-update", "pooled"]
CircuitName = Literal["literal", "fast", "hardened"]


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

    name: str = Field(default="study", pattern=Name)
    protocol: Protocol | None = None
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
    """

    epsilon: float = Field(gt=0, allow_inf_nan=False)
    delta: float = Field(default=1e-5, gt=0, lt=1)
    colluders: int | None = Field(default=None, ge=0)
    dropouts: int = Field(default=0, ge=0)
    clip: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    records: int | None = Field(default=None, ge=1)
    randomness: Literal["secure", "insecure-repeatable"] = "secure"


class Preparation(Section):
    """``[preparation]``: how raw columns become the design matrix.

    ``public-bounds`` uses the ranges of ``[features]`` alone; ``private-moments``
    then standardises each column with a noised mean and variance, which are
    charged to the budget; ``as-printed`` standardises and normalises with exact
    ones (the paper's Algorithms 4 and 5), in its own mode only. ``intercept`` is
    the value of the constant column (0 for none); ``row_norm`` bounds the Euclidean
    norm of a prepared row's features.
    """

    method: Literal["public-bounds", "private-moments", "as-printed"] = "public-bounds"
    row_norm: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    intercept: float = Field(default=1.0, ge=0, allow_inf_nan=False)


class Evaluation(Section):
    """``[evaluation]``: a held-out share of the rows on which the fit is scored.

    Scores on private rows are releases that no budget covers, so a private
    study may hold rows out only if it states that those rows are public.
    """

    holdout: float = Field(gt=0, lt=1)
    seed: int = Field(default=1, ge=0)
    holdout_is_public: bool = False


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
    budget
        ε that this table may spend over all studies (default: this study's).
    """

    data: str | None = None
    budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)


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
    preparation: Preparation = Preparation()
    prior: Prior = Prior()
    privacy: Privacy | None = None
    inference: Inference = Inference()
    evaluation: Evaluation | None = None
    sites: dict[str, Site] = {}
    paper: Paper | None = None

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read and check a study file; data paths are relative to its folder."""
        path = Path(path)
        text = _read(path)
        _check_filled_in(text, path)
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise StudyError(
                f"not valid TOML: {error}",
                where=str(path),
                remedy="one `key = value` per line under a [table] heading",
            ) from None
        try:
            study = cls.model_validate(document)
        except ValidationError as error:
            raise _explain(error, path, text) from None
        return study._with_paths_from(path.parent)

    def _with_paths_from(self, folder: Path) -> Self:
        sites = {
            name: site
            if site.data is None
            else site.model_copy(update={"data": str(folder / site.data)})
            for name, site in self.sites.items()
        }
        return self.model_copy(update={"sites": sites})

    def without_paths(self) -> Self:
        """The study as all parties see it: where tables are stays at the sites."""
        sites = {
            name: site.model_copy(update={"data": None, "budget": None})
            for name, site in self.sites.items()
        }
        return self.model_copy(update={"sites": sites})

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def protocol(self) -> Protocol:
        """As stated; else secure-sum where there are sites and a budget."""
        if self.study.protocol is not None:
            return self.study.protocol
        return "secure-sum" if self.private and self.sites else "pooled"

    @property
    def private(self) -> bool:
        """Whether the study spends a privacy budget."""
        return self.privacy is not None

    @property
    def method(self) -> Method:
        """As stated; else noise-aware in a private study that leaves it open.

        A model without bounded influence has no noise-aware posterior: pSGLD then
        stands in, and :attr:`fallback` says so.
        """
        wanted = self.inference.method
        if wanted is None:
            open_ = self.private and self.protocol != "encrypted-update"
            chain = self.inference.chain_settings
            wanted = "noise-aware" if open_ and not chain else "psgld"
        return "psgld" if wanted == "noise-aware" and self.fallback else wanted

    @property
    def fallback(self) -> str | None:
        """Why the study cannot be noise-aware; None where it can."""
        if self.model.sensitivities(InfluenceBound(clip=1.0)) is not None:
            return None
        return (
            f"a model of kind '{self.model.kind}' has no noise-aware posterior: pSGLD "
            "is used, whose intervals ignore what clipping does"
        )

    @property
    def insecure(self) -> bool:
        """Whether the noise comes from a seed, and so protects nobody."""
        return (
            self.privacy is not None
            and self.privacy.randomness == "insecure-repeatable"
        )

    @property
    def as_printed(self) -> bool:
        """Whether the study is in the paper's own, uncertified mode."""
        return self.protocol == "encrypted-update" and self.study.noise == "as-printed"

    @property
    def circuit(self) -> CircuitName:
        """As stated; else the paper's own in its own mode, hardened otherwise."""
        return self.study.circuit or ("literal" if self.as_printed else "hardened")

    @property
    def colluders(self) -> int:
        """Colluding sites tolerated: as stated, else one where there are several."""
        if self.privacy is not None and self.privacy.colluders is not None:
            return self.privacy.colluders
        if self.protocol == "pooled":
            return 0
        return min(1, max(len(self.sites) - 1, 0))

    def document(self) -> dict[str, Any]:
        """The resolved study as plain values, defaults filled in."""
        document = self.model_dump(mode="json", exclude_none=True)
        document["study"]["protocol"] = self.protocol
        document["inference"]["method"] = self.method
        if self.protocol == "encrypted-update":
            document["study"]["circuit"] = self.circuit
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
        for name in self.sites:
            if not re.match(Name, name):
                raise ValueError(
                    f"site name '{name}' is not usable: letters, digits, . _ - only"
                )
            if name in ("csp", "server"):
                raise ValueError(
                    f"site name '{name}' is another party's: choose another"
                )
        self._outcomes_are_not_features()
        self._privacy_is_usable()
        self._protocol_has_what_it_needs()
        return self

    def _outcomes_are_not_features(self) -> None:
        columns = self.model.outcome_columns()
        clash = sorted(set(columns.values()) & set(self.features))
        if clash:
            raise ValueError(
                f"column '{clash[0]}' is an outcome and a feature: "
                "remove it from [features]"
            )
        if len(set(columns.values())) < len(columns):
            raise ValueError("two outcome roles name the same column in [model]")

    def _privacy_is_usable(self) -> None:
        privacy = self.privacy
        if privacy is None:
            if self.preparation.method == "private-moments":
                raise ValueError(
                    'preparation.method = "private-moments" needs a [privacy] table'
                )
            if self.protocol != "pooled":
                raise ValueError(
                    f'protocol = "{self.protocol}" needs a [privacy] table '
                    "with epsilon and delta"
                )
            return
        sites = max(len(self.sites), 1)
        if self.sites and self.protocol != "pooled":
            if self.colluders >= sites:
                raise ValueError(
                    f"privacy.colluders = {self.colluders} with {sites} sites leaves "
                    "nobody to protect: colluders must be below the number of sites"
                )
            if self.colluders + privacy.dropouts >= sites:
                raise ValueError(
                    "privacy.colluders + privacy.dropouts must be below the number "
                    f"of sites ({sites}): lower one of them"
                )
        if self.inference.chains not in (None, 1):
            raise ValueError(
                "inference.chains: every chain would spend a budget of its own, so a "
                "private study has one: remove it"
            )
        if self.inference.gamma_term:
            raise ValueError(
                "inference.gamma_term needs exact curvature, which a private study "
                "does not release: remove it or the [privacy] table"
            )
        if self.inference.preconditioner == "fisher":
            raise ValueError(
                'inference.preconditioner = "fisher" reads the exact information '
                'matrix: a private study uses "rmsprop" or "none"'
            )
        if self.evaluation is not None and not self.evaluation.holdout_is_public:
            raise ValueError(
                "[evaluation] scores on private rows are releases outside the budget: "
                "set holdout_is_public = true if those rows are public, or remove it"
            )

    def _protocol_has_what_it_needs(self) -> None:
        if self.study.noise == "as-printed" and not self.as_printed:
            raise ValueError(
                'study.noise = "as-printed" belongs to protocol = "encrypted-update"'
            )
        if self.as_printed and self.paper is None:
            raise ValueError(
                'study.noise = "as-printed" needs a [paper] table with scale, '
                "lipschitz, gamma, batch and epochs"
            )
        if self.paper is not None and not self.as_printed:
            raise ValueError(
                'a [paper] table belongs to protocol = "encrypted-update" with '
                'noise = "as-printed": remove it'
            )
        if self.preparation.method == "as-printed" and not self.as_printed:
            raise ValueError(
                'preparation.method = "as-printed" releases exact moments: it belongs '
                'to noise = "as-printed"'
            )
        if self.protocol == "encrypted-update":
            self._encrypted_update_is_possible()
        elif self.study.circuit is not None:
            raise ValueError(
                'study.circuit belongs to protocol = "encrypted-update": remove it'
            )

    def _encrypted_update_is_possible(self) -> None:
        assert self.privacy is not None
        if self.privacy.dropouts:
            raise ValueError(
                "privacy.dropouts: an encrypted update needs every site in every "
                "round, because all of them check it: set dropouts = 0"
            )
        if self.preparation.method == "private-moments":
            raise ValueError(
                'preparation.method = "private-moments" belongs to secure-sum: an '
                'encrypted update uses "public-bounds"'
            )
        if self.inference.method == "noise-aware":
            raise ValueError(
                "inference.method: an encrypted update has no noise-aware posterior, "
                "only a point: remove it, or use secure-sum"
            )
        if self.inference.step.schedule != "constant":
            raise ValueError(
                "inference.step.schedule: the steps of an encrypted update are "
                "constant (the paper's own come with [paper]): remove it"
            )
        if self.inference.preconditioner not in (None, "rmsprop"):
            raise ValueError(
                "inference.preconditioner: an encrypted update computes rmsprop"
            )
        if len(self.sites) > 64:
            raise ValueError("an encrypted update has at most 64 sites")
        if self.as_printed:
            self._printed_is_possible()

    def _printed_is_possible(self) -> None:
        assert self.paper is not None
        if self.study.circuit not in (None, "literal"):
            raise ValueError(
                'study.circuit: the paper\'s own mode is the circuit "literal"'
            )
        if self.inference.chain_settings:
            raise ValueError(
                f"inference.{self.inference.chain_settings[0]}: batches, rounds and "
                "steps of the paper's own mode come from [paper]: remove it"
            )
        if (
            self.preparation.method == "as-printed"
            and len(self.sites) == 2
            and not self.paper.accept_two_sites
        ):
            raise ValueError(
                "with two sites Algorithm 4 tells each the other's exact number of "
                "rows, means and variances: set paper.accept_two_sites = true to "
                'accept that, or preparation.method = "public-bounds"'
            )


def _check_filled_in(text: str, path: Path) -> None:
    """Refuse what `cipherbayes init` left for a person to write."""
    for number, line in enumerate(text.splitlines(), start=1):
        if re.search(r"^[^#\"']*\bFILL_IN\b", line):
            raise StudyError(
                f"line {number} still says FILL_IN",
                where=str(path),
                remedy="write what the code book says, never what the rows say",
            )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise StudyError(
            "no such file", where=str(path), remedy="check the path of the study"
        ) from None
    except IsADirectoryError:
        raise StudyError(
            "is a folder", where=str(path), remedy="name the TOML file in it"
        ) from None
    except UnicodeDecodeError:
        raise StudyError(
            "is not UTF-8 text", where=str(path), remedy="save the study as UTF-8"
        ) from None
    except OSError as error:
        raise StudyError(
            f"cannot be read ({error.strerror})", where=str(path)
        ) from None


def _explain(error: ValidationError, path: Path, text: str) -> StudyError:
    """The first problem of a study, with its line and a remedy."""
    first = error.errors(include_url=False)[0]
    location = [str(part) for part in first["loc"]]
    # Pydantic puts the union's tag into the location; it is no key of the file.
    if len(location) > 1 and location[0] == "model":
        location = [location[0], *location[2:]]
    if first["type"].startswith("union_tag"):
        location = [*location, "kind"]
    key = ".".join(location)
    line = _line_of(text, location)
    where = f"{path}, line {line}" if line else str(path)
    more = error.error_count() - 1
    remedy = f"(and {more} more)" if more else ""
    match first["type"]:
        case "extra_forbidden":
            what = f"unknown key '{key}'"
            remedy = "remove it or correct its spelling" + (remedy and f" {remedy}")
        case "missing":
            what = f"missing key '{key}'"
            remedy = "add it" + (remedy and f" {remedy}")
        case "union_tag_invalid":
            allowed = first["ctx"]["expected_tags"].replace("'", '"')
            what, remedy = "unknown model.kind", f"choose one of {allowed}"
        case "union_tag_not_found":
            what, remedy = "missing key 'model.kind'", 'e.g. kind = "logistic"'
        case "value_error":
            what = str(first["ctx"]["error"])
            what = f"'{key}': {what}" if key else what
        case _:
            message = first["msg"][0].lower() + first["msg"][1:]
            what = f"'{key}': {message}"
    return StudyError(what, where=where, remedy=remedy)


def _line_of(text: str, location: Sequence[str]) -> int | None:
    """Line on which a key stands, or its table where the key is absent."""
    best: tuple[int, int] | None = None
    table: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if heading := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
            table = [part.strip(" \"'") for part in heading[1].split(".")]
            here = table
        elif assignment := re.match(r"\s*([\w.\"'-]+)\s*=", line):
            keys = [part.strip("\"'") for part in assignment[1].split(".")]
            here = [*table, *keys]
        else:
            continue
        if here == list(location[: len(here)]) and (not best or len(here) > best[0]):
            best = (len(here), number)
    return best[1] if best else None
