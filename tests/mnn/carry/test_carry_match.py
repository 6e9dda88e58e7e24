"""Rows of layers found among quantized weights: split, joined, moved, scaled, and not found when they are others."""

from __future__ import annotations

import numpy as np
import pytest
from carrying import Array, codes, model, scales
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.mnn.carry.index import Index, marks
from graphkit.mnn.carry.lift import Lifted, lift
from graphkit.mnn.carry.match import Match, find, proportional
from graphkit.mnn.carry.structure import block_of, codes_of, stands_for
from graphkit.quant.codes import Codes


def lifted(*weights: tuple[Array, Array], block: int = 0) -> list[Lifted]:
    """Quantized weights [rows, columns], each multiplied transposed; scales are along rows or in blocks."""
    lines: list[str] = []
    constants: dict[str, Array] = {}
    for number, (quantized, scale) in enumerate(weights):
        attributes = f"axis=1, block_size={block}" if block else "axis=0"
        lines.append(f"w{number} = DequantizeLinear<{attributes}>(q{number}, s{number})")
        lines.append(f"y{number} = Gemm<transB=1>(x, w{number})")
        constants |= {f"q{number}": quantized, f"s{number}": scale}
    outputs = ", ".join(f"float[N, M{number}] y{number}" for number in range(len(weights)))
    columns = weights[0][0].shape[1]
    return lift(model(f"g (float[N, {columns}] x) => ({outputs}) {{ {' '.join(lines)} }}", constants))


def values(weight: tuple[Array, Array]) -> Array:
    quantized, scale = weight
    spread = scale[:, None] if scale.ndim == 1 else np.repeat(scale, quantized.shape[1] // scale.shape[1], axis=1)
    return np.asarray(quantized.astype(np.float32) * spread)


def matched(weights: list[Lifted], layer: Array) -> Match:
    match = find(Index(weights, {layer.shape[1]}), layer)
    assert match is not None
    return match


def found(weights: list[Lifted], layer: Array) -> Codes:
    """The codes of a layer, which stand for its numbers."""
    match = matched(weights, layer)
    assert match.missing == 0
    made = codes_of(match, layer.shape[1])
    assert stands_for(made, layer, match.close)
    return made


A = (codes(12, 32, seed=1), scales(12, seed=1))
B = (codes(8, 32, seed=2), scales(8, seed=2))


def test_a_layer_that_is_a_weight_has_its_codes_and_scales() -> None:
    made = found(lifted(A, B), values(A))
    np.testing.assert_array_equal(made.codes, A[0])
    np.testing.assert_array_equal(made.scales[:, 0], A[1])
    assert made.symmetric
    assert made.bits == 8


def test_rows_in_any_order_from_several_weights() -> None:
    both = np.concatenate([values(A), values(B)])
    order = np.random.default_rng(0).permutation(20)[:15]
    made = found(lifted(A, B), both[order])
    np.testing.assert_array_equal(made.codes, np.concatenate([A[0], B[0]])[order])


def test_scales_take_the_factor_of_a_row() -> None:
    factor = np.linspace(0.3, 7, 12, dtype=np.float32)
    made = found(lifted(A), values(A) * factor[:, None])
    np.testing.assert_array_equal(made.codes, A[0])
    np.testing.assert_allclose(made.scales[:, 0], A[1] * factor, rtol=1e-6)


def test_rows_that_were_turned_have_turned_codes() -> None:
    quantized = np.clip(codes(6, 32), -127, 127)
    quantized[2, 5] = -128  # has no negative in 8 bits: this row's scale is negative instead
    weight = (quantized, scales(6))
    made = found(lifted(weight), -values(weight))
    turned = np.arange(6) != 2
    np.testing.assert_array_equal(made.codes[turned], -quantized[turned])
    np.testing.assert_array_equal(made.codes[2], quantized[2])
    assert (made.scales[turned] > 0).all()
    assert made.scales[2, 0] < 0


def test_rows_with_zero_points_can_always_be_turned() -> None:
    text = "g (float[N, 32] x) => (float[N, 6] y) { w = DequantizeLinear<axis=0>(q, s, z) y = Gemm<transB=1>(x, w) }"
    quantized, scale, zero = codes(6, 32), scales(6), codes(6, seed=9)
    weights = lift(model(text, {"q": quantized, "s": scale, "z": zero}))
    layer = (quantized.astype(np.float32) - zero[:, None]) * scale[:, None]
    made = found(weights, -layer)
    assert (made.scales > 0).all()
    np.testing.assert_array_equal(made.codes, -1 - quantized)


def test_blocks_are_found_from_where_scales_change() -> None:
    weight = (codes(6, 64), scales(6, 4))
    made = found(lifted(weight, block=16), values(weight))
    assert made.block_columns == 16
    np.testing.assert_array_equal(made.scales, weight[1])
    same = (codes(6, 64), np.repeat(scales(6, 2), 2, axis=1))
    assert found(lifted(same, block=16), values(same)).block_columns == 32


def test_few_levels_take_few_bits() -> None:
    weight = (codes(6, 32) % 4, scales(6))
    assert found(lifted(weight), values(weight)).bits == 3


def test_rows_of_zeros_need_no_weight() -> None:
    quantized = A[0].copy()
    quantized[[3, 7]] = 0
    made = found(lifted((quantized, A[1])), values((quantized, A[1])))
    np.testing.assert_array_equal(made.codes, quantized)
    np.testing.assert_array_equal(made.scales[:, 0], A[1])  # their scales are kept, though nothing depends on them
    padded = np.concatenate([values(A), np.zeros((4, 32), np.float32)])
    assert not found(lifted(A), padded).codes[12:].any()


def test_a_float_layer_matches_nothing() -> None:
    layer = np.random.default_rng(0).standard_normal((12, 32)).astype(np.float32)
    assert find(Index(lifted(A, B), {32}), layer) is None
    assert find(Index(lifted(A, B), {16}), layer[:, :16]) is None


def test_rows_of_something_else_are_counted() -> None:
    layer = values(A)
    layer[[2, 5]] = np.random.default_rng(0).standard_normal((2, 32))
    assert matched(lifted(A), layer).missing == 2


def test_one_number_that_differs_makes_another_row() -> None:
    layer = values(A)
    layer[4, 7] *= np.float32(1.00001)
    assert matched(lifted(A), layer).missing == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_never_carried(bad: float) -> None:
    layer = values(A)
    layer[4] = bad
    match = matched(lifted(A), layer)
    assert match.missing or not stands_for(codes_of(match, 32), layer, match.close)


def test_equal_weights_are_used_in_turn() -> None:
    twice = lifted(A, A)
    index = Index(twice, {32})
    first = find(index, values(A))
    assert first is not None
    second = find(index, values(A), used=set(first.weights))
    assert second is not None
    assert {*first.weights, *second.weights} == set(twice)


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_short_rows_with_equal_signs_are_told_apart_by_their_numbers(columns: int) -> None:
    weight = (np.abs(codes(300, columns, seed=3).astype(np.int16)).clip(1, 127).astype(np.int8), scales(300, seed=3))
    other = (weight[0][::-1].copy(), scales(300, seed=4))
    made = found(lifted(other, weight), values(weight))
    assert made.rows == 300


def test_many_short_rows_are_looked_for_in_their_place() -> None:
    rows = 3000  # of one sign: nine million pairs
    weight = (codes(rows, 1, seed=3).astype(np.int16).__abs__().clip(1, 127).astype(np.int8), scales(rows, seed=3))
    other = (weight[0].copy(), scales(rows, seed=4))
    made = found(lifted(other, weight), values(weight))
    np.testing.assert_allclose(made.values(), values(weight), rtol=1e-6)


def test_rows_whose_numbers_are_too_small_for_mnn() -> None:
    quantized, scale = codes(6, 32, seed=1), scales(6)
    scale[[1, 4]] = 1e-42, 2e-40  # all numbers of one row are denormal, some of the other
    layer = values((quantized, scale))
    layer[np.abs(layer) < np.finfo(np.float32).tiny] = 0
    made = found(lifted((quantized, scale)), layer)
    np.testing.assert_array_equal(made.codes[[0, 2, 3, 4, 5]], quantized[[0, 2, 3, 4, 5]])


def test_numbers_rounded_to_halves_are_found() -> None:
    layer = values(A).astype(np.float16).astype(np.float32)
    match = find(Index(lifted(A), {32}, halved=True), layer)
    assert match is not None
    assert match.missing == 0
    np.testing.assert_array_equal(codes_of(match, 32).codes, A[0])


@given(st.integers(1, 300), st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
def test_marks_depend_on_signs_only(columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((4, columns)).astype(np.float32)
    expected = marks(rows)
    np.testing.assert_array_equal(marks(rows * rng.uniform(0.01, 9, (4, columns)).astype(np.float32)), expected)
    np.testing.assert_array_equal(marks(-rows), expected)
    assert marks(np.zeros((1, columns), np.float32))[0] == 0
    assert (expected > 0).all()


def test_proportional_rows() -> None:
    rows = np.array([[1, -2, 4], [0, 0, 0], [3, 1, 2]], np.float32)
    agree, factor = proportional(rows * np.array([[2], [1], [-0.5]], np.float32), rows, 1e-6)
    assert agree.tolist() == [True, False, True]
    assert factor[[0, 2]].tolist() == [2, -0.5]


def test_blocks_of_one_length() -> None:
    weight = (codes(4, 48), scales(4, 3))
    weights = lifted(weight, block=16)
    match = matched(weights, values(weight))
    part = match.taken[0]
    assert block_of([(part.matrix, part.source_rows)], 48) == 16
