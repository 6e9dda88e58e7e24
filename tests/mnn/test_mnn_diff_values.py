"""Comparing arrays a piece at a time gives what numpy gives for the whole."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from graphkit.mnn._diff_types import ArrayChange
from graphkit.mnn._diff_values import compare_arrays, norm
from graphkit.mnn.document.stored import StoredArray


def stored(array: np.ndarray) -> StoredArray:
    return StoredArray("w", "weights", array.dtype.name, array.shape, array.nbytes, lambda: [array], lambda: array)


def compared(a: Any, b: Any) -> ArrayChange:
    change = compare_arrays("w", stored(np.asarray(a)), stored(np.asarray(b)))
    assert change is not None
    return change


def test_equal_bytes_are_no_change() -> None:
    array = np.array([1.0, math.nan, -0.0, math.inf], np.float32)
    assert compare_arrays("w", stored(array), stored(array.copy())) is None


def test_many_pieces_are_as_one() -> None:
    draw = np.random.default_rng(0)
    a = draw.standard_normal((700, 501)).astype(np.float32)
    b = a + draw.standard_normal(a.shape).astype(np.float32) * (draw.random(a.shape) < 0.01)
    change = compared(a, b)
    wide = a.astype(np.float64)
    assert change.relative == pytest.approx(np.linalg.norm(wide - b) / np.linalg.norm(wide), rel=1e-9)
    assert change.largest == np.max(np.abs(wide - b))
    assert (change.changed, change.count) == (np.count_nonzero(a != b), a.size)


@given(
    arrays.arrays(np.float32, 9, elements=st.floats(width=32)),
    arrays.arrays(np.float32, 9, elements=st.floats(width=32)),
)
def test_any_floats(a: np.ndarray, b: np.ndarray) -> None:
    change = compare_arrays("w", stored(a), stored(b))
    same_bits = a.tobytes() == b.tobytes()
    assert (change is None) == same_bits
    if change is None:
        return
    both = np.isnan(a) & np.isnan(b)
    assert change.changed == np.count_nonzero((a != b) & ~both)
    assert change.nans == np.count_nonzero(np.isnan(a) ^ np.isnan(b))
    assert change.relative is not None
    assert change.largest is not None
    assert not math.isnan(change.relative)
    assert not math.isnan(change.largest)


def test_nan_on_one_side_is_counted_and_left_out_of_the_norm() -> None:
    change = compared([3.0, math.nan, 4.0, math.nan], [3.0, math.nan, math.nan, 1.0])
    assert (change.nans, change.changed, change.relative, change.largest) == (2, 2, 0.0, 0.0)
    assert change.weight == math.inf


def test_infinities() -> None:
    change = compared([math.inf, -math.inf, 1.0], [math.inf, -math.inf, 2.0])
    assert (change.changed, change.relative, change.largest) == (1, 1.0, 1.0)
    assert compared([math.inf, 1.0], [2.0, 1.0]).largest == math.inf


def test_minus_zero_is_another_bit_pattern_and_no_other_value() -> None:
    change = compared([0.0, 1.0], [-0.0, 1.0])
    assert (change.changed, change.relative) == (0, 0.0)
    assert change.old.sha256 != change.new.sha256


def test_difference_from_nothing_but_zeros_is_infinite() -> None:
    assert compared([0.0, 0.0], [0.0, 1.0]).relative == math.inf


def test_large_integers_are_compared_exactly() -> None:
    change = compared(np.array([2**60, 5]), np.array([2**60 + 1, 5]))
    assert change.changed == 1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.int4, np.bool_, np.uint8, np.complex64])
def test_other_types(dtype: Any) -> None:
    a, b = np.array([0, 1, 1], dtype), np.array([0, 1, 0], dtype)
    change = compared(a, b)
    assert (change.changed, change.largest) == (1, 1.0)
    assert change.relative == pytest.approx(1 / math.sqrt(2))


def test_types_that_differ_are_compared_by_value() -> None:
    change = compared(np.array([1, 2], np.int8), np.array([1.0, 2.0], np.float32))
    assert (change.changed, change.old.dtype, change.new.dtype) == (0, "int8", "float32")


def test_texts() -> None:
    change = compared(np.array(["a", "b"], object), np.array(["a", "c"], object))
    assert (change.changed, change.count, change.relative) == (1, 2, None)
    assert (change.old.values, change.new.values) == (("a", "b"), ("a", "c"))


def test_empty_arrays_of_two_shapes() -> None:
    change = compared(np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32))
    assert (change.changed, change.relative) == (0, 0.0)


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1.0, 1e170, 1e300])
def test_norms_neither_overflow_nor_vanish(scale: float) -> None:
    assert norm(np.array([3.0, 4.0]) * scale) == pytest.approx(5.0 * scale)
