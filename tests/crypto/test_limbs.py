from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cipherbayes.crypto.bfv.limbs import centre, join_limbs, split_limbs
from cipherbayes.crypto.bfv.parameters import PARAMETER_SETS, ParameterSet

INT64 = st.integers(-(2**63), 2**63 - 1)
every_set = pytest.mark.parametrize(
    "parameters", PARAMETER_SETS.values(), ids=PARAMETER_SETS
)


def centred(value: int, bits: int) -> int:
    return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)  # type: ignore[no-any-return]


@given(st.lists(INT64, min_size=1), st.integers(1, 64))
def test_centring_takes_the_representative_nearest_to_zero(
    values: list[int], bits: int
) -> None:
    words = np.array(values, dtype=np.int64).view(np.uint64)
    assert centre(words, bits).tolist() == [centred(v, bits) for v in values]


@every_set
@given(vectors=st.lists(st.lists(INT64, min_size=5, max_size=5), min_size=1))
def test_adding_limbs_is_adding_integers_modulo_the_word_size(
    parameters: ParameterSet, vectors: list[list[int]]
) -> None:
    arrays = [np.array(vector, dtype=np.int64) for vector in vectors]
    limbs = [split_limbs(array, parameters) for array in arrays]
    assert all(int(each.max()) <= parameters.limb_mask for each in limbs)
    total = np.add.reduce(limbs)
    expected = [
        centred(sum(column), parameters.word_bits)
        for column in zip(*vectors, strict=True)
    ]
    assert join_limbs(total, parameters).tolist() == expected
