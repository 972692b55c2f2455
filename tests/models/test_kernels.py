"""The compiled loops agree with numpy on every shape and on every odd value."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import expit

from cipherbayes.models import kernels
from cipherbayes.typing import Floats

ordinary = st.floats(-1e6, 1e6)
anything = st.floats(allow_nan=True, allow_infinity=True, allow_subnormal=True)


def _without_extension() -> ModuleType:
    """A second copy of the module that finds no compiled extension."""
    name = "cipherbayes._kernels"
    saved = sys.modules.get(name)
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        spec = importlib.util.find_spec("cipherbayes.models.kernels")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
        if saved is not None:
            sys.modules[name] = saved
    return module


FALLBACK = _without_extension()
BOTH = [pytest.param(FALLBACK, id="numpy")]
if kernels.COMPILED:
    BOTH.append(pytest.param(kernels, id="compiled"))
every_build = pytest.mark.parametrize("build", BOTH)


def test_the_package_works_without_the_compiled_extension() -> None:
    assert FALLBACK.COMPILED is False
    x = np.arange(6.0).reshape(2, 3)
    assert FALLBACK.weighted_sum(x, np.ones(3)).tolist() == [3.0, 12.0]


@st.composite
def blocks(draw: st.DrawFn, elements: st.SearchStrategy[float]) -> Floats:
    """A block of odd shape, often a slice out of a wider table."""
    p, m = draw(st.integers(0, 11)), draw(st.integers(0, 37))
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    whole = draw(arrays(np.float64, (p, before + m + after), elements=elements))
    return whole[:, before : before + m]


@pytest.mark.slow
@every_build
@given(x=blocks(ordinary), data=st.data())
def test_sums_agree_with_exact_arithmetic(
    build: ModuleType, x: Floats, data: st.DataObject
) -> None:
    p, m = x.shape
    theta = data.draw(arrays(np.float64, p, elements=ordinary))
    weights = data.draw(arrays(np.float64, m, elements=ordinary))
    found = (
        build.linear_predictor(theta, x),
        build.weighted_sum(x, weights),
        build.squared_norms(x),
    )
    terms = (
        [[(theta[j], x[j, i]) for j in range(p)] for i in range(m)],
        [[(x[j, i], weights[i]) for i in range(m)] for j in range(p)],
        [[(x[j, i], x[j, i]) for j in range(p)] for i in range(m)],
    )
    for values, sums in zip(found, terms, strict=True):
        assert values.shape == (len(sums),)
        for value, pairs in zip(values, sums, strict=True):
            products = [Fraction(a) * Fraction(b) for a, b in pairs]
            # Any order of n additions of rounded products: gamma(n) of the sizes.
            bound = (len(pairs) + 1) * Fraction(2) ** -53 * sum(map(abs, products))
            underflow = len(pairs) * Fraction(2) ** -1074
            assert abs(Fraction(float(value)) - sum(products)) <= bound + underflow


@every_build
def test_not_a_number_and_infinity_propagate(build: ModuleType) -> None:
    x = np.ones((5, 19))
    x[3, 7] = np.nan
    x[4, 18] = np.inf
    eta = build.linear_predictor(np.ones(5), x)
    assert np.flatnonzero(np.isnan(eta)).tolist() == [7]
    assert np.flatnonzero(np.isinf(eta)).tolist() == [18]
    total = build.weighted_sum(x, np.ones(19))
    assert np.isfinite(total[:3]).all()
    assert np.isnan(total[3])
    assert total[4] == np.inf
    norms = build.squared_norms(x)
    assert np.isnan(norms[7])
    assert norms[18] == np.inf
    assert np.isnan(build.expit(np.array([np.nan, 0.0]))[0])


@pytest.mark.slow
@every_build
@given(x=blocks(anything), data=st.data())
def test_clipped_scores_follow_their_definition(
    build: ModuleType, x: Floats, data: st.DataObject
) -> None:
    m = x.shape[1]
    score = data.draw(arrays(np.float64, m, elements=anything))
    norms = np.abs(data.draw(arrays(np.float64, m, elements=anything)))
    limit = data.draw(st.floats(1e-100, 1e100))
    found = build.clip_scores(score, norms, limit)
    for s, n, w in zip(score, norms, found, strict=True):
        with np.errstate(all="ignore"):
            root = np.sqrt(n + kernels.NORM_FLOOR)
            size = abs(s) * root
        if not size <= np.finfo(float).max:
            assert w == 0.0
        elif size <= limit:
            assert w == s
        else:
            assert w == np.copysign(limit / root, s)


@every_build
@given(
    values=arrays(np.float64, st.integers(0, 37), elements=anything),
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-3, 1e6),
)
def test_prepared_columns_stay_within_one(
    build: ModuleType, values: Floats, low: float, width: float
) -> None:
    centre, half = low + width / 2, width / 2
    out = np.full(values.size, 7.0)
    unusable = build.prepare_column(values, centre, 1 / half, out)
    assert unusable == np.count_nonzero(~np.isfinite(values))
    known = ~np.isnan(values)
    assert np.isnan(out[~known]).all()
    assert (np.abs(out[known]) <= 1.0).all()
    expected = np.clip((np.clip(values, low, low + width) - centre) / half, -1, 1)
    # Clipping before or after the affine map differs by its roundings only.
    slack = 8 * np.finfo(float).eps * (1 + (abs(low) + width) / half)
    np.testing.assert_allclose(out[known], expected[known], rtol=0, atol=slack)


@every_build
@given(x=arrays(np.float64, st.integers(0, 37), elements=st.floats(-1e4, 1e4)))
def test_the_logistic_function_is_accurate_to_four_roundings(
    build: ModuleType, x: Floats
) -> None:
    found, exact = build.expit(x), expit(x)
    near = x > -708.0
    # scipy's own roundings come on top.
    np.testing.assert_allclose(found[near], exact[near], rtol=8 * 2.0**-53, atol=0)
    assert (np.abs(found - exact) <= 4e-308 + 8 * 2.0**-53 * exact).all()


@every_build
def test_the_logistic_function_keeps_shapes_and_limits(build: ModuleType) -> None:
    x = np.array([[0.0, np.inf], [-np.inf, 40.0]])
    found = build.expit(x)
    assert found.shape == (2, 2)
    assert found[0].tolist() == [0.5, 1.0]
    assert 0.0 <= found[1, 0] < 4e-308


@every_build
def test_several_thetas_give_several_predictors(build: ModuleType) -> None:
    rng = np.random.default_rng(0)
    x, draws = rng.normal(size=(3, 50)), rng.normal(size=(4, 3))
    found = build.linear_predictor(draws, x)
    for theta, eta in zip(draws, found, strict=True):
        np.testing.assert_allclose(eta, build.linear_predictor(theta, x), rtol=1e-13)
    out = np.empty(50)
    assert build.linear_predictor(draws[0], x, out=out) is out


@every_build
def test_any_memory_layout_is_accepted(build: ModuleType) -> None:
    rng = np.random.default_rng(1)
    x = np.asfortranarray(rng.normal(size=(5, 40)))
    w = rng.normal(size=80)[::2]
    theta = rng.normal(size=10)[::-2]
    for block in (x, x[::-1], x[:, ::-1], x[:, ::3], x[:, :1], x[:0], x[:, :0]):
        m = block.shape[1]
        p = block.shape[0]
        plain = np.ascontiguousarray(block)
        found = build.weighted_sum(block, w[:m])
        np.testing.assert_allclose(found, plain @ w[:m], rtol=1e-12)
        found = build.linear_predictor(theta[:p], block)
        np.testing.assert_allclose(found, theta[:p] @ plain, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(build.squared_norms(block), (plain**2).sum(axis=0))


@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built")
def test_sums_do_not_depend_on_where_a_block_lies_in_memory() -> None:
    rng = np.random.default_rng(2)
    wide = np.zeros((7, 1100))
    x, w, theta = rng.normal(size=(7, 1001)), rng.normal(size=1001), rng.normal(size=7)
    for shift in range(16):
        wide[:, shift : shift + 1001] = x
        moved = wide[:, shift : shift + 1001]
        for found, expected in (
            (kernels.weighted_sum(moved, w), kernels.weighted_sum(x, w)),
            (
                kernels.linear_predictor(theta, moved),
                kernels.linear_predictor(theta, x),
            ),
            (kernels.squared_norms(moved), kernels.squared_norms(x)),
        ):
            assert found.tobytes() == expected.tobytes()


LENGTHS = (0, 1, 7, 8, 9, 511, 512, 513, 1030)


@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built")
@pytest.mark.parametrize("m", LENGTHS)
def test_what_is_computed_of_one_record_has_the_bits_of_numpy(m: int) -> None:
    rng = np.random.default_rng(m)
    x = rng.normal(size=(5, m + 3))[:, 3:]
    mean, scale = rng.normal(size=5), rng.uniform(0.1, 9.0, 5)
    for found, expected in zip(
        kernels.move_columns(x, mean, scale),
        FALLBACK.move_columns(x, mean, scale),
        strict=True,
    ):
        assert found.tobytes() == expected.tobytes()
    values, norms = rng.normal(size=m) * 10.0 ** rng.integers(-60, 60, m), x[0] ** 2
    values[::5], norms[::7] = np.nan, np.inf
    for matrices in (False, True):
        arguments = (values, norms, 0.7, 1e100)
        short = kernels.shorten(*arguments, matrices=matrices)
        plain = FALLBACK.shorten(*arguments, matrices=matrices)
        assert short.tobytes() == plain.tobytes()
        assert np.isfinite(short).all()
    bins = (x[0], 0.2, 1.1, float(x[0, 0]) if m else np.nan, 17)
    assert kernels.count_bins(*bins).tolist() == FALLBACK.count_bins(*bins).tolist()


@every_build
@pytest.mark.parametrize("matrices", [False, True])
def test_what_is_shortened_is_no_longer_than_its_limit(
    build: ModuleType, matrices: bool
) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(6, 400)) * 10.0 ** rng.uniform(-90, 40, 400)
    values = rng.normal(size=400) * 10.0 ** rng.uniform(-40, 40, 400)
    short = build.shorten(values, build.squared_norms(x), 0.3, 1e100, matrices=matrices)
    lengths = np.sqrt((x**2).sum(axis=0))
    sizes = np.abs(short) * (lengths**2 if matrices else lengths)
    assert sizes.max() <= 0.3 * (1.0 + 40 * 2.0**-53)
    long = (sizes > 0.0) & (short != values)
    assert long.any()
    np.testing.assert_allclose(sizes[long], 0.3, rtol=1e-14)


@every_build
@pytest.mark.parametrize("p", [1, 3, 4, 6, 9, kernels.WIDEST_GRAM + 1])
def test_a_weighted_gram_is_the_sum_over_the_records(build: ModuleType, p: int) -> None:
    rng = np.random.default_rng(p)
    for m in LENGTHS:
        x, weights = rng.normal(size=(p, m)), rng.normal(size=m)
        whole = np.einsum("ji,i,ki->jk", x, weights, x)
        found = build.weighted_gram(x, weights)
        expected = whole[np.triu_indices(p)]
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@every_build
def test_logistic_terms_are_those_of_the_formula(build: ModuleType) -> None:
    eta = np.array([-800.0, -40.0, -1.0, 0.0, 0.3, 2.0, 40.0, 800.0, np.nan])
    y, norms = np.arange(9.0) % 2, np.array([0.0, 1.0, 9.0] * 3)
    score, information = build.logistic_terms(eta, y, norms, 2.0)
    weights = np.minimum(1.0, 4.0 / np.maximum(norms, 1e-9))
    expected = weights * (y - expit(eta))
    np.testing.assert_allclose(score, expected, rtol=1e-14, atol=1e-300)
    expected = weights * expit(eta) * expit(-eta)
    np.testing.assert_allclose(information, expected, rtol=1e-14, atol=1e-300)


@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built")
def test_stored_columns_outside_of_their_record_are_refused() -> None:
    record, x, norms = np.zeros(64, dtype=np.uint8), np.empty((1, 8)), np.empty(8)
    recipes = np.array([[0.0, 1.0, -1.0, 1.0, 0.0, 1.0]])
    for offset, kind in ((0, 5), (0, -1), (8, 4), (-8, 1), (4, 1), (2**62, 1)):
        with pytest.raises(ValueError, match="do not match"):
            kernels.restore_columns(
                record, np.array([offset]), np.array([kind]), recipes, x, norms, 1
            )
    kernels.restore_columns(record, np.array([0]), np.array([4]), recipes, x, norms, 1)
    assert not x.any()


@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built")
def test_the_extension_refuses_what_it_cannot_read() -> None:
    compiled = importlib.import_module("cipherbayes._kernels")
    x, out = np.ones((2, 3)), np.empty(3)
    theta = np.ones(2)
    frozen = np.empty(3)
    frozen.flags.writeable = False
    for arguments in (
        (np.ones(3), x, out),
        (theta, x, np.empty(4)),
        (theta.astype(np.float32), x, out),
        (theta, x[0], out),
        (theta, x[:, ::2], np.empty(2)),
        (theta, x, frozen),
    ):
        with pytest.raises((ValueError, BufferError)):
            compiled.linear_predictor(*arguments)
    with pytest.raises(TypeError):
        compiled.linear_predictor(theta, x)
    with pytest.raises(TypeError):
        compiled.prepare_column(out, out.copy(), "0", 1.0)
