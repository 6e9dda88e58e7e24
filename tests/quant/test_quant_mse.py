"""Clipping without data: never worse than rounding to nearest, and near the best there is."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.errors import ModelError, UsageError
from graphkit.quant import mse, rtn
from graphkit.quant.codes import Array, Codes, code_range


def lost(matrix: Array, codes: Codes) -> Array:
    """Squared error of each block."""
    errors = (codes.values() - matrix) ** 2
    total: Array = errors.reshape(codes.rows, codes.blocks, -1).sum(axis=2)
    return total


def gaussian(rows: int = 64, columns: int = 128, seed: int = 0) -> Array:
    made: Array = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return made


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("block", [0, 32])
def test_no_block_is_worse_than_rounded_to_nearest(bits: int, block: int) -> None:
    matrix = gaussian()
    matrix[3], matrix[4, :40], matrix[5] = 0, 0, 2.5
    near, best = (
        lost(matrix, rtn.quantize_matrix(matrix, bits, block)),
        lost(matrix, mse.quantize_matrix(matrix, bits, block)),
    )
    assert (best <= near * (1 + 1e-5) + 1e-12).all()


@pytest.mark.parametrize(("bits", "part"), [(2, 0.35), (3, 0.6), (4, 0.8)])
def test_the_error_of_natural_looking_weights_falls(bits: int, part: float) -> None:
    matrix = gaussian()
    near, best = rtn.quantize_matrix(matrix, bits, 32), mse.quantize_matrix(matrix, bits, 32)
    assert lost(matrix, best).sum() < part * lost(matrix, near).sum()


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_scales_are_near_the_best_of_a_fine_search(bits: int) -> None:
    matrix = gaussian(24, 16, seed=3)
    low, high = code_range(bits)
    least = np.full(24, np.inf)
    for part in np.linspace(0.05, 1.5, 4000):
        for last in (low, high):
            scale = np.abs(matrix).max(axis=1, keepdims=True) * part / last
            rounded = np.clip(np.rint(matrix / scale), low, high) * scale
            least = np.minimum(least, ((rounded - matrix) ** 2).sum(axis=1))
    assert (lost(matrix, mse.quantize_matrix(matrix, bits))[:, 0] <= 1.03 * least).all()


def test_weights_on_a_grid_are_exact() -> None:
    matrix = np.array([[-8, 3, 7, 0, 1, -2, 5, 4], [8, -3, -7, 0, -1, 2, -5, -4]], np.float32) * np.float32(0.25)
    made = mse.quantize_matrix(matrix, 4)
    np.testing.assert_allclose(made.values(), matrix, rtol=1e-6)
    assert made.scales[1, 0] < 0 < made.scales[0, 0]  # 16 values from −7 to 8 need the other sign


def test_errors_that_count_more_are_smaller() -> None:
    matrix = gaussian(200, 16)
    tops = rtn.largest(matrix, 1)
    counts = np.where(np.arange(16) < 4, 100, 1).astype(np.float32)
    plain, heavy = (mse.best_scales(matrix, tops, 3, weights=weights) for weights in (None, counts))

    def error(scales: Array) -> float:
        rounded = np.clip(np.rint(matrix / scales), -4, 3) * scales
        return float((((rounded - matrix) ** 2) * counts).sum())

    assert error(heavy) < 0.8 * error(plain)


def test_blocks_of_zeros_and_of_next_to_nothing() -> None:
    matrix = gaussian(4, 64)
    matrix[1], matrix[2] = 0, 1e-35
    made = mse.quantize_matrix(matrix, 4, 32)
    assert (made.scales[1:3] == 0).all()
    assert (made.values()[1:3] == 0).all()
    assert np.isfinite(made.values()).all()


def test_many_rows_on_threads_are_as_few_without() -> None:
    matrix = gaussian(4096, 512)
    whole = mse.quantize_matrix(matrix, 4, 64)
    parts = [mse.quantize_matrix(matrix[at : at + 1024], 4, 64) for at in range(0, 4096, 1024)]
    np.testing.assert_array_equal(whole.codes, np.concatenate([part.codes for part in parts]))
    np.testing.assert_array_equal(whole.scales, np.concatenate([part.scales for part in parts]))


def test_bad_requests() -> None:
    matrix = gaussian(4, 64)
    with pytest.raises(UsageError, match="1 bits"):
        mse.quantize_matrix(matrix, 1)
    with pytest.raises(UsageError, match="does not divide"):
        mse.quantize_matrix(matrix, 4, 48)
    with pytest.raises(UsageError, match="mse has no zero points"):
        mse.quantize_matrix(matrix, 4, asymmetric=True)
    matrix[2, 2] = np.nan
    with pytest.raises(ModelError, match="NaN or infinite") as caught:
        mse.quantize_matrix(matrix, 4, name="/query")
    assert caught.value.node == "/query"
