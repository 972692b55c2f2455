"""The table ``[inference]`` of a study: its method, and the method's settings."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cipherbayes.inference.method import method_named


def _known(name: str) -> str:
    """The name of a method; raises ValueError where there is none."""
    return method_named(name).name


MethodName = Annotated[str, AfterValidator(_known)]
"""The name of a registered method."""


class Step(BaseModel):
    """``[inference.step]``: the sequence of step sizes η_t, t = 1, 2, …

    ``constant``: η; ``polynomial``: η (offset + t)^(-power); ``paper``: the
    paper's γ ε² (λ+L) τ / (32 L² N log(2.5NT/(τδ)) log(2/δ) t), which needs
    ``epsilon`` and ``delta`` (in a private study the budget's). Without ``size``
    a constant step is chosen automatically.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schedule: Literal["constant", "polynomial", "paper"] = "constant"
    size: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    power: float = Field(default=0.55, gt=0, le=1)
    offset: float = Field(default=0.0, ge=0)
    gamma: float = Field(default=0.99, gt=0, lt=1)
    lipschitz: float = Field(default=1.0, gt=0)
    epsilon: float | None = Field(default=None, gt=0)
    delta: float = Field(default=1e-5, gt=0, lt=1)

    @model_validator(mode="after")
    def _size_fits_schedule(self) -> Self:
        if self.schedule == "polynomial" and self.size is None:
            raise ValueError('schedule = "polynomial" needs a size')
        if self.schedule == "paper" and self.size is not None:
            raise ValueError('schedule = "paper" sets its own size: remove size')
        return self


class Inference(BaseModel):
    """Settings of the samplers; what is left out is chosen for the study.

    Attributes
    ----------
    method
        ``noise-aware`` (a posterior that accounts for the privacy noise), ``psgld``
        (draws from a chain) or ``averaged`` (a point, no intervals). Left out,
        ``noise-aware`` in a private study, else ``psgld``; in a private study
        ``psgld`` gives points only.
    chains, rounds, burn_in, thin
        Independent chains; rounds of each; share of them discarded; every
        thin-th round kept.
    batch, sampling
        Rows per minibatch (all where left out), drawn as a ``fixed`` number or
        each row independently (``poisson``).
    preconditioner
        ``rmsprop`` (the paper's), ``fisher`` (the information matrix; not
        private) or ``none`` (plain SGLD).
    adapt
        ``burn-in`` freezes the preconditioner afterwards, so that Γ = 0 holds;
        ``always`` is the paper's.
    alpha, floor
        The paper's α and λ.
    gamma_term
        Add Γ(θ) to the drift while the preconditioner adapts.
    interval
        Probability inside the reported intervals.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: MethodName | None = None
    chains: int | None = Field(default=None, ge=1, le=64)
    rounds: int | None = Field(default=None, ge=1, le=1_000_000)
    burn_in: float = Field(default=0.5, ge=0, lt=1)
    thin: int = Field(default=1, ge=1)
    batch: int | None = Field(default=None, ge=1)
    sampling: Literal["fixed", "poisson"] = "poisson"
    preconditioner: Literal["rmsprop", "fisher", "none"] | None = None
    adapt: Literal["burn-in", "always"] = "burn-in"
    alpha: float = Field(default=0.9, ge=0, lt=1)
    floor: float = Field(default=1e-4, gt=0)
    gamma_term: bool = False
    step: Step = Step()
    seed: int = Field(default=1, ge=0)
    interval: float = Field(default=0.9, gt=0, lt=1)

    @property
    def chain_settings(self) -> list[str]:
        """Keys given that belong to a chain of many rounds."""
        unset = {"rounds": None, "batch": None, "preconditioner": None, "step": Step()}
        return [key for key, value in unset.items() if getattr(self, key) != value]

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.method is not None:
            method_named(self.method).check(self)
        if self.gamma_term and self.preconditioner not in (None, "rmsprop"):
            raise ValueError('gamma_term belongs to preconditioner = "rmsprop"')
        return self
