"""The study file: one TOML document that says everything a run does.

Unknown keys, impossible values and fields that contradict each other are
refused with the file, the line and the remedy. The study's hash, which leaves
out only where each site keeps its table, is what the parties agree on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Self

import tomli_w
from pydantic import (
    Field,
    ValidationError,
    model_validator,
)

from cipherbayes.data.preparation import Feature
from cipherbayes.errors import StudyError
from cipherbayes.inference.method import Method, method_named
from cipherbayes.inference.methods import CHAIN_DEFAULT, MULTILEVEL, PRIVATE_DEFAULT
from cipherbayes.inference.settings import Inference
from cipherbayes.models import AnyModel
from cipherbayes.models.prior import UNIT, Prior
from cipherbayes.study.file import (
    document_of,
    explained,
    read_text,
    require_filled_in,
)
from cipherbayes.study.protocol_rules import (
    CURATED_DEFAULT,
    FEDERATED_DEFAULT,
    ProtocolRules,
    rules_of,
)
from cipherbayes.study.rules import require_agreement
from cipherbayes.study.scales import scales_budget
from cipherbayes.study.sections import (
    Describe,
    Evaluation,
    Header,
    Hierarchy,
    Paper,
    PreparationMethod,
    PreparationSection,
    Privacy,
    Section,
    SiteSection,
)
from cipherbayes.typing import JsonObject

RELEASING_SCALES = frozenset({"private-scales", "private-moments"})


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
    preparation: PreparationSection = PreparationSection()
    prior: Prior = Prior()
    hierarchy: Hierarchy | None = None
    privacy: Privacy | None = None
    inference: Inference = Inference()
    evaluation: Evaluation | None = None
    describe: Describe | None = None
    sites: dict[str, SiteSection] = Field(default_factory=dict)
    paper: Paper | None = None

    def __init__(self, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise explained(error, type(self)) from None

    # Pydantic's own way in, model_validate, does not lead through here.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read and check a study file; data paths are relative to its folder."""
        path = Path(path)
        text = read_text(path)
        require_filled_in(text, path)
        document = document_of(text, path)
        held = document.get("evaluation")
        if isinstance(held, dict) and isinstance(held.get("against"), str):
            held["against"] = str(path.parent / held["against"])
        try:
            study = cls.model_validate(document)
        except ValidationError as error:
            raise explained(error, cls, path, text) from None
        return study._with_paths_from(path.parent)

    def _with_paths_from(self, folder: Path) -> Self:
        sites = {name: site.located(folder) for name, site in self.sites.items()}
        return self.model_copy(update={"sites": sites})

    def without_paths(self) -> Self:
        """The study as all parties see it: where tables are stays at the sites."""
        return self.model_copy(
            update={"sites": {name: SiteSection() for name in self.sites}}
        )

    @property
    def name(self) -> str:
        return self.study.name

    @property
    def protocol(self) -> str:
        """As stated; else secure-sum where there are sites and a budget."""
        if self.study.protocol is not None:
            return self.study.protocol
        federated = self.private and self.sites
        return FEDERATED_DEFAULT if federated else CURATED_DEFAULT

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
        usable = self.scales_wanted and scales_budget(self.with_privacy()).suffices
        return "private-scales" if usable else "public-bounds"

    @property
    def full_prior(self) -> Prior:
        """The prior as stated, with what it leaves out for the study's preparation."""
        return self.prior.filled_in(standardised=self.releases_scales)

    @property
    def prior_is_of_ranges(self) -> bool:
        """Whether a private study's effects have the default prior for half a public
        range each, whatever that has to do with their values. A resolved study, which
        states its prior, has the same answer."""
        default = self.prior.scale in (None, UNIT) and bool(self.model.roles)
        return self.private and default and not self.releases_scales

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
    def stated_evaluation(self) -> Evaluation:
        """What is held out; refused where the study holds nothing out."""
        if self.evaluation is None:
            raise StudyError(
                "holds out no rows",
                where=f"study '{self.name}'",
                remedy="add an [evaluation] table",
            )
        return self.evaluation

    @property
    def stated_hierarchy(self) -> Hierarchy:
        """How sites differ; refused where the study takes them to be alike."""
        if self.hierarchy is None:
            raise StudyError(
                "takes its sites to be alike",
                where=f"study '{self.name}'",
                remedy="add a [hierarchy] table",
            )
        return self.hierarchy

    @property
    def stated_paper(self) -> Paper:
        """What the paper's theorem depends on; refused where the study is silent."""
        if self.paper is None:
            raise StudyError(
                "does not state the paper's constants",
                where=f"study '{self.name}'",
                remedy="add a [paper] table",
            )
        return self.paper

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
        kept = 1.0 - self.stated_evaluation.holdout
        return max(round(self.privacy.records * kept), 1)

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

    def document(self) -> JsonObject:
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
