from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cipherbayes.crypto.ckks.polynomial import (
    PreconditionerPolynomial,
    chebyshev,
    minimax,
)
from cipherbayes.errors import CryptoError


@pytest.mark.parametrize(
    ("low", "error"), [(1e-3, 0.48), (1e-2, 0.12), (0.03, 0.031), (0.1, 0.0024)]
)
def test_minimax_reaches_the_known_errors_and_beats_chebyshev(
    low: float, error: float
) -> None:
    best = minimax(low)
    assert best.relative_error == pytest.approx(error, rel=0.03)
    assert best.relative_error < chebyshev(low).relative_error


@settings(max_examples=30, deadline=None)
@given(low=st.floats(1e-3, 0.5), floor=st.floats(1e-6, 1e-2))
def test_every_factored_form_is_the_polynomial(low: float, floor: float) -> None:
    polynomial = minimax(low, floor)
    v = np.linspace(0.0, 1.0, 101)
    forms = polynomial.factored_forms()
    assert forms
    for form in forms:
        assert np.abs(form(v) - polynomial(v)).max() < 1e-7 * polynomial(v).max()


def test_real_roots_are_paired_too() -> None:
    coefficients = np.polynomial.polynomial.polyfromroots([1.1, 2, 3, -1, -2, 4, 5])
    polynomial = PreconditionerPolynomial(tuple(coefficients), 0.1, 1e-4)
    assert len(polynomial.factored_forms()) > 3


def test_unusable_intervals_and_degrees_are_refused() -> None:
    with pytest.raises(CryptoError, match="interval"):
        minimax(0.95)
    with pytest.raises(CryptoError, match="degree 7"):
        PreconditionerPolynomial((1.0, 2.0), 0.1, 1e-4)
