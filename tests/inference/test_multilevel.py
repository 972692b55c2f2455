"""The multilevel fit without privacy, and the private one beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from invented_hospitals import FEATURES, SITES, study, tables

import cipherbayes as cb
from cipherbayes.inference.multilevel import SiteTarget
from cipherbayes.inference.noise_aware import Effort
from cipherbayes.inference.site_context import FOLLOWED
from cipherbayes.models import Logistic
from cipherbayes.results.run import target_of
from cipherbayes.study.tables import (
    open_sites,
)
from cipherbayes.typing import Floats


@pytest.fixture
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    less = Effort(chains=4, warm_up=60, kept=100, doublings=0)
    monkeypatch.setattr(Effort, "for_dimension", lambda _: less)


def told_of_sites(levels: Floats) -> tuple[Floats, Floats]:
    """Draws of a common level, N(0, 1), and of τ, half-normal, given levels, one a row.

    By quadrature over τ, with the common level integrated out.
    """
    rng, grid = np.random.default_rng(0), np.linspace(0.005, 5.0, 1_000)
    count, mean = levels.shape[1], levels.mean(axis=1)
    square = count * levels.var(axis=1)
    variance = 1.0 + grid**2 / count
    density = -0.5 * grid**2 - (count - 1) * np.log(grid) - 0.5 * np.log(variance)
    density = density - 0.5 * square[:, None] / grid**2
    density -= 0.5 * mean[:, None] ** 2 / variance
    density = np.exp(density - density.max(axis=1, keepdims=True))
    total = np.cumsum(density, axis=1)
    level = rng.random((len(total), 1)) * total[:, -1:]
    spread = grid[(total < level).sum(axis=1)]
    precision = 1.0 + count / spread**2
    common = count * mean / spread**2 / precision
    return common + rng.standard_normal(mean.size) / np.sqrt(precision), spread


@pytest.mark.slow
@pytest.mark.parametrize("context", [True, False])
def test_the_fit_without_privacy_is_that_of_numpyro(context: bool) -> None:
    pytest.importorskip("numpyro")
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    from exact_posteriors import weighted

    frames = tables()
    x = np.stack([f[["x", "z"]].to_numpy() / 3.0 for f in frames.values()])
    y = np.stack([f["y"].to_numpy() for f in frames.values()])
    away = x.mean(axis=1) - x.mean(axis=(0, 1))
    size = (away**2).mean(axis=0) + 0.3**2 * x.var(axis=(0, 1))
    away = context * away / np.sqrt(2.0 * size)
    own = np.sqrt(1.0 - FOLLOWED * (away**2).mean(axis=0).sum())

    def model() -> None:
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        gamma = numpyro.sample("gamma", dist.Normal(0.0, 1.0).expand([2]))
        followed = np.sqrt(FOLLOWED) * tau * (away @ gamma)
        level = numpyro.sample("level", dist.Normal(mean + followed, own * tau))
        beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]))
        numpyro.sample("y", dist.Bernoulli(logits=level[:, None] + x @ beta), obs=y)

    def named(place: Any) -> tuple[dict[str, Any], Any]:
        found = {"mean": place[0], "tau": jnp.exp(place[1]), "level": place[2:7]}
        return {**found, "beta": place[7:9], "gamma": place[9:]}, place[1]

    theirs = weighted(model, named, 11, 30_000)
    assert theirs.worth > 5_000
    mean, levels = theirs.draws[:, 0], theirs.draws[:, 2:7]
    spread = np.exp(theirs.draws[:, 1])
    if context:
        mean, spread = told_of_sites(levels)
    quick = {"rounds": 450, "burn_in": 0.1, "chains": 2}
    ours = cb.run(study(inference=quick, hierarchy={"context": context}), frames)
    rows = {row["name"]: row for row in ours.record["posterior"]}
    hierarchy = ours.hierarchy()
    assert hierarchy is not None
    pairs = [
        (rows["intercept"], mean),
        (rows["x"], theirs.draws[:, 7] / 3.0),
        (rows["z"], theirs.draws[:, 8] / 3.0),
        (hierarchy["between"][0], spread),
    ]
    pairs += [(row, levels[:, k] - mean) for k, row in enumerate(hierarchy["sites"])]
    for row, values in pairs:
        expected, sd = theirs.of(values)
        assert row["sd"] is not None
        assert abs(row["mean"] - expected) < 0.2 * sd
        assert row["sd"] == pytest.approx(sd, rel=0.2)


@pytest.mark.slow
def test_without_a_low_site_the_common_level_is_higher() -> None:
    quick = {"rounds": 150, "burn_in": 0.1, "chains": 1}
    found = cb.run(study(inference=quick), tables()).hierarchy()
    assert found is not None
    shifts = {
        row["site"]: row["shift"]
        for row in found["influence"]
        if row["name"] == "intercept"
    }
    levels = {row["site"]: row["mean"] for row in found["sites"]}
    assert min(levels, key=lambda site: levels[site]) == "a"
    assert max(levels, key=lambda site: levels[site]) == "d"
    assert shifts["a"] > 0.2
    assert shifts["d"] < -0.2


@pytest.mark.torture
@pytest.mark.usefixtures("fewer_draws")
def test_with_hardly_any_noise_the_private_fit_is_the_one_without_privacy() -> None:
    frames = tables(600, seed=1)
    private = cb.run(
        study(
            study={"protocol": "pooled"},
            privacy={"epsilon": 200.0, "records": 3000, "clip": 6.0},
            preparation={"method": "public-bounds"},
        ),
        frames,
    )
    plain = cb.run(
        study(inference={"rounds": 250, "burn_in": 0.1, "chains": 2}), frames
    )
    for ours, theirs in zip(
        private.record["posterior"], plain.record["posterior"], strict=True
    ):
        assert ours["sd"] is not None
        assert theirs["sd"] is not None
        assert abs(ours["mean"] - theirs["mean"]) < 0.4 * theirs["sd"]
        assert ours["sd"] == pytest.approx(theirs["sd"], rel=0.25)
    both = [each.hierarchy() for each in (private, plain)]
    assert both[0] is not None
    assert both[1] is not None
    for mine, other in zip(both[0]["sites"], both[1]["sites"], strict=True):
        assert mine["site"] == other["site"]
        assert abs(mine["mean"] - other["mean"]) < 0.4 * other["sd"]


def test_sites_that_differ_draw_missing_values_at_their_own_parameters() -> None:
    """Where sites are alike it is that of one table, and the gradient is its slope."""
    found = tables(60)
    for table in found.values():
        table.loc[::4, "x"] = np.nan
    gaps = {**FEATURES, "x": {"low": -3, "high": 3, "missing": "impute"}}
    sites: dict[str, Any] = {site: {} for site in SITES}
    model = Logistic(outcome="y")
    alike = cb.Study(model=model, features=gaps, sites=sites)
    apart = cb.Study(model=model, features=gaps, sites=sites, hierarchy={})
    target = target_of(apart, open_sites(apart, found))
    whole = target_of(alike, open_sites(alike, found))
    assert isinstance(target, SiteTarget)
    slots = target.site_prior.slots
    own, theta = np.array([-0.4, 1.5, -1.0]), np.empty(slots.dimension)
    for site in SITES:
        theta[slots.of_site(site)] = own
    data = whole.log_density(own) - whole.prior.log_density(own)
    assert target.log_likelihood(theta) == pytest.approx(float(data))
    theta += 0.1 * np.arange(theta.size)
    for place, slope in enumerate(target.likelihood_slope(theta)):
        step = np.where(np.arange(theta.size) == place, 1e-5, 0.0)
        rise = target.log_likelihood(theta + step) - target.log_likelihood(theta - step)
        assert slope == pytest.approx(rise / 2e-5, rel=1e-4, abs=1e-4)
