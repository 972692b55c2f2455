"""Can it work? What public numbers alone say about a private study.

With N records, a clipping norm C and a total of μ over all rounds, the noise in the
averaged gradient sum has standard deviation s = C √(K/(K−c−r)) / μ in each
coordinate, and a coefficient has about the information I = N · curvature · E z²,
E z² ≈ 1/4 for a prepared column. So an effect of the prior's scale b moves the sum
by I b against s, and an interval is about √(1 + s²/I) times as wide as without
privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cipherbayes.inference.noise_aware.width import expected_width_ratio
from cipherbayes.privacy.accountant import compose, epsilon
from cipherbayes.privacy.gaussian import epsilon_of, mu_for
from cipherbayes.protocols.plan import StudyPlan
from cipherbayes.study.tables import preparation_of

MEAN_SQUARE = 0.25
"""Mean square of a prepared column around its mean, guessed without data."""

OWN_SHARE = 0.3
"""Part of a column's information that the other columns do not hold too, guessed."""

CLEAR = 3.0
"""Signal over noise from which an effect of the prior's scale can be seen."""


@dataclass(frozen=True)
class Outlook:
    """Prospects of a private study.

    Attributes
    ----------
    noise, signal, largest
        Standard deviation of the noise in the averaged gradient sum; what an
        effect of the prior's scale adds to it; the most any data can add.
    width_ratio
        Expected width of an interval over that without privacy.
    records_needed, epsilon_needed
        What would make the signal clear, everything else as it is.
    """

    noise: float
    signal: float
    largest: float
    width_ratio: float
    records_needed: int
    epsilon_needed: float | None

    @property
    def ratio(self) -> float:
        """Signal over noise."""
        return self.signal / self.noise

    @property
    def drowned(self) -> bool:
        """Whether noise will hide effects of the prior's scale."""
        return self.ratio < CLEAR


def look_ahead(plan: StudyPlan) -> Outlook:
    """The prospects of a plan, from public numbers alone."""
    study, release = plan.study, plan.gradient.privacy
    privacy = study.privacy
    assert privacy is not None
    # A sampled study is as good as a full-batch one with the same ε and δ.
    spent = epsilon(compose(*(p.event for p in plan.sampling)), privacy.delta)
    mu = mu_for(spent, privacy.delta)
    sites = release.sites
    inflation = sites / (sites - release.colluders - release.dropouts)
    noise = release.clip * math.sqrt(inflation) / mu
    design = preparation_of(study).design
    standardised = study.preparation.method == "private-moments"
    each = study.model.curvature(design) * (1.0 if standardised else MEAN_SQUARE)
    information = release.records * each
    largest = release.records * release.clip
    signal = min(information * study.prior.scale, largest)
    factor = max(CLEAR * noise / signal, 1.0)
    return Outlook(
        noise=noise,
        signal=signal,
        largest=largest,
        width_ratio=_width_ratio(plan, mu, each, inflation)
        or math.sqrt(1.0 + noise**2 / information),
        records_needed=math.ceil(release.records * factor),
        epsilon_needed=_epsilon_for(mu * factor, privacy.delta),
    )


def _width_ratio(
    plan: StudyPlan, mu: float, information: float, inflation: float
) -> float | None:
    """Of a noise-aware study, which also has to learn its information matrix."""
    release, matrix = plan.gradient.privacy, plan.gradient.information
    if matrix is None:
        return None
    return expected_width_ratio(
        records=release.records,
        dimension=release.dimension,
        mu=mu,
        sensitivities=(release.clip, matrix.clip),
        information=OWN_SHARE * information,
        prior_sd=plan.study.prior.scale,
        excess=inflation,
    )


def _epsilon_for(mu: float, delta: float) -> float | None:
    found = epsilon_of(mu, delta)
    return found if found < 100.0 else None


def advice(plan: StudyPlan, outlook: Outlook) -> list[str]:
    """Plain warnings about a study that will run, but not well."""
    study = plan.study
    privacy = study.privacy
    assert privacy is not None
    warnings = []
    if study.insecure:
        warnings.append(
            "INSECURE-REPEATABLE NOISE: for tests only, protects nobody, not certified"
        )
    records = plan.gradient.privacy.records
    if privacy.records is not None and privacy.delta * records > 0.1:
        warnings.append(
            f"delta = {privacy.delta:g} is not much smaller than 1/N = "
            f"{1.0 / records:.2g}: lower it, e.g. to {0.01 / records:.0e}"
        )
    if outlook.drowned:
        enough = [f"N = {outlook.records_needed:,} records"]
        if outlook.epsilon_needed is not None:
            enough.append(f"epsilon = {outlook.epsilon_needed:.2g}")
        warnings.append(
            "noise will drown effects of the prior's scale (signal/noise "
            f"{outlook.ratio:.2g}); {' or '.join(enough)} would suffice"
        )
    if study.method == "psgld" and study.fallback is not None:
        warnings.append(study.fallback)
    if study.method == "averaged":
        warnings.append("this method gives a point estimate without intervals")
    return warnings
