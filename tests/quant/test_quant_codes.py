"""Codes as such: what they stand for, and what cannot be codes."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.errors import GraphkitError, UsageError
from graphkit.quant.codes import Codes, blocks_of, check_bits, code_range, stored_bytes


def test_weights_are_codes_less_zeros_times_scales() -> None:
    codes = np.array([[-8, 7, 0, 3], [1, 2, 3, 4]], np.int8)
    scales = np.array([[0.5, 2], [-1, 0]], np.float32)
    plain = Codes(codes, scales, None, 4)
    assert plain.values().tolist() == [[-4, 3.5, 0, 6], [-1, -2, 0, 0]]
    zeros = np.array([[-8, 1.5], [0, 9]], np.float32)
    shifted = Codes(codes, scales, zeros, 4)
    assert shifted.values().tolist() == [[0, 7.5, -3, 3], [-1, -2, 0, 0]]
    assert (plain.symmetric, shifted.symmetric) == (True, False)
    assert (plain.rows, plain.columns, plain.blocks, plain.block_columns) == (2, 4, 2, 2)


def test_values_of_many_rows_are_those_of_each() -> None:
    draw = np.random.default_rng(0)
    codes = draw.integers(-128, 128, (700, 1024)).astype(np.int8)
    scales = draw.standard_normal((700, 32)).astype(np.float32)
    made = Codes(codes, scales, None, 8).values()
    np.testing.assert_array_equal(made, codes * scales.repeat(32, axis=1))


@pytest.mark.parametrize("bits", [1, 9, 0, -4])
def test_widths_that_are_none(bits: int) -> None:
    with pytest.raises(UsageError, match=f"{bits} bits: a code has 2 to 8"):
        check_bits(bits)


@pytest.mark.parametrize(("bits", "low", "high"), [(2, -2, 1), (3, -4, 3), (4, -8, 7), (8, -128, 127)])
def test_ranges(bits: int, low: int, high: int) -> None:
    assert code_range(bits) == (low, high)


@pytest.mark.parametrize(
    ("codes", "scales", "zeros"),
    [
        (np.zeros((2, 4), np.int8), np.zeros((2, 3), np.float32), None),  # 3 does not divide 4
        (np.zeros((2, 4), np.int8), np.zeros((3, 1), np.float32), None),
        (np.zeros((2, 4), np.int8), np.zeros((2, 0), np.float32), None),
        (np.zeros((2, 4), np.int16), np.zeros((2, 1), np.float32), None),
        (np.zeros((2, 4), np.int8), np.zeros((2, 1), np.float64), None),
        (np.zeros(8, np.int8), np.zeros((8, 1), np.float32), None),
        (np.zeros((2, 4), np.int8), np.zeros((2, 1), np.float32), np.zeros((2, 2), np.float32)),
    ],
)
def test_arrays_that_do_not_belong_together(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None) -> None:
    with pytest.raises(GraphkitError, match="do not belong together"):
        Codes(codes, scales, zeros, 4)


def test_blocks_divide_a_row() -> None:
    assert blocks_of(384, 0) == 1
    assert blocks_of(384, 32) == 12
    for block in (100, -32):
        with pytest.raises(UsageError, match=f"block of {block} columns does not divide the 384") as caught:
            blocks_of(384, block, "the/layer")
        assert caught.value.node == "the/layer"


def test_bytes_follow_bits_blocks_and_scales() -> None:
    header = 1 + 4 + 1 + 16  # dimensions, two of them in 16 bits each, how many values, the values
    plain = header + 8 * 64 // 2 + 8 * 2 * 4
    assert stored_bytes(8, 64, 2, 4) == plain
    assert stored_bytes(8, 64, 2, 4, half_scales=True) == plain - 8 * 2 * 2
    assert stored_bytes(8, 64, 2, 4, symmetric=False) == plain + 8 * 2 * 4
    assert stored_bytes(3, 5, 1, 3) == 1 + 4 + 1 + 8 + 6 + 12  # 45 bits are 6 bytes
    assert stored_bytes(70_000, 16, 1, 8) == 1 + 8 + 1 + 256 + 70_000 * 16 + 70_000 * 4  # rows need 32 bits
