"""Elementwise operators, comparisons and casts: the exact numbers of ONNX, in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of, parse, run
from tests.in_mnn import assert_right_in_mnn

HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.2, -3.7, 2.4999998, 4194303.5, 8388609, 1e30], np.float32)
ODD = np.array([np.nan, 1, np.inf, -np.inf, 0, -3, -5, np.nan], np.float32)
OTHERS = np.array([np.nan, np.nan, 1, -np.inf, -0.0, -5, -3, 1], np.float32)


def lowered(text: str, opset: int, **feeds: np.ndarray) -> np.ndarray:
    """What onnxruntime computes after the pass."""
    graph = graph_of(text, opset=opset)
    LowerForMnn().run(graph)
    graph.check()
    return run(graph.to_model(), feeds)["y"]


@pytest.mark.parametrize("dtype", ["float", "float16", "double"])
def test_round_halves_to_even(dtype: str) -> None:
    kind = {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype]
    x = HALVES[:9].astype(kind) if dtype == "float16" else HALVES.astype(kind)
    got = lowered(f"g ({dtype}[N] x) => ({dtype}[N] y) {{ y = Round(x) }}", 18, x=x)
    assert got.dtype == kind
    np.testing.assert_array_equal(got, np.round(x))


@given(st.floats(width=32))
@settings(max_examples=200, deadline=None)
def test_magic_number_rounds_as_numpy(value: float) -> None:
    x = np.float32(value)
    with np.errstate(over="ignore", invalid="ignore"):
        got = (x + np.float32(12582912)) - np.float32(12582912) if abs(x) < 4194304 else x
    np.testing.assert_array_equal(got, np.round(x))


def test_round_in_mnn(tmp_path: Path) -> None:
    expected = {"y": np.round(HALVES)}
    text = "g (float[12] x) => (float[12] y) { y = Round(x) }"
    assert_right_in_mnn(text, tmp_path, feeds={"x": HALVES}, expected=expected, rtol=1e-30)


def test_round_of_an_unknown_type() -> None:
    assert_unchanged(
        LowerForMnn(),
        "g (float[2] x) => (float[2] y) { a = c.F(x) y = Round(a) }",
        refuses="unknown",
        imports={"c": 1},
    )


@pytest.mark.parametrize("fmod", [1, 0])
def test_mod_of_floats(fmod: int, tmp_path: Path) -> None:
    a = np.array([-6.7, 7.3, -6.7, 7.3, -7.7, 6.3, 0.3, 5, 0], np.float32)
    b = np.array([3, 3, -3, -3, 4, -3, 5, np.inf, -2], np.float32)
    text = f"g (float[9] a, float[9] b) => (float[9] y) {{ y = Mod<fmod = {fmod}>(a, b) }}"
    opset = 18 if fmod else 28
    want = np.fmod(a, b) if fmod else np.mod(a, b)
    graph = graph_of(text, opset=opset)
    LowerForMnn().run(graph)
    with np.errstate(invalid="ignore"):
        (got,) = ReferenceEvaluator(graph.to_model().materialized()).run(None, {"a": a, "b": b})
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)
    assert_right_in_mnn(text, tmp_path, feeds={"a": a, "b": b}, expected={"y": want}, opset=opset)


def test_mod_of_integers_stays() -> None:
    assert_unchanged(LowerForMnn(), "g (int32[3] a, int32[3] b) => (int32[3] y) { y = Mod(a, b) }")


@pytest.mark.parametrize(("base", "exponent"), [("float", "int64"), ("int32", "float"), ("float", "double")])
def test_pow_of_two_types(base: str, exponent: str, tmp_path: Path) -> None:
    kinds = {"float": np.float32, "int64": np.int64, "int32": np.int32, "double": np.float64}
    feeds = {"a": np.array([2, 3, 4], kinds[base]), "b": np.array([3, 2, 0], kinds[exponent])}
    text = f"g ({base}[3] a, {exponent}[3] b) => ({base}[3] y) {{ y = Pow(a, b) }}"
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


def test_pow_of_int64_and_float_stays() -> None:
    text = "g (int64[3] a, float[3] b) => (int64[3] y) { y = Pow(a, b) }"
    assert_unchanged(LowerForMnn(), text, refuses="more digits")


@pytest.mark.parametrize("kind", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic_with_broadcasting(kind: str, count: int, tmp_path: Path) -> None:
    shapes = ["3", "2, 3", "1"][:count]
    inputs = ", ".join(f"float[{shape}] x{k}" for k, shape in enumerate(shapes))
    names = ", ".join(f"x{k}" for k in range(count))
    out = "3" if count == 1 else "2, 3"
    assert_right_in_mnn(f"g ({inputs}) => (float[{out}] y) {{ z = {kind}({names}) y = Neg(z) }}", tmp_path)


def test_mean_of_an_unknown_type() -> None:
    text = "g (float[2] x) => (float[2] y) { a = c.F(x) y = Mean(a, x) }"
    assert_unchanged(LowerForMnn(), text, refuses="unknown", imports={"c": 1})


def test_clip_without_bounds_and_with_crossed_ones(tmp_path: Path) -> None:
    x = np.array([-5, 0, 5, 100], np.int32)
    assert lowered("g (int32[4] x) => (int32[4] y) { y = Clip(x) }", 18, x=x).tolist() == x.tolist()
    text = "g (float[4] x) => (float[4] y) <float lo = {3}, float hi = {1}> { y = Clip(x, lo, hi) }"
    assert_right_in_mnn(text, tmp_path, feeds={"x": x.astype(np.float32)}, expected={"y": np.ones(4, np.float32)})


def test_less_is_greater_swapped() -> None:
    assert_rewrites(
        LowerForMnn(),
        "g (float[N] a, float[N] b) => (bool[N] y) { y = Less(a, b) }",
        "g (float[N] a, float[N] b) => (bool[N] y) { y = Greater(b, a) }",
    )


def test_less_of_integers_stays() -> None:
    assert_unchanged(LowerForMnn(), "g (int32[3] a, int32[3] b) => (bool[3] y) { y = Less(a, b) }")


@pytest.mark.parametrize("kind", ["Less", "Equal", "Greater", "LessOrEqual", "GreaterOrEqual"])
def test_comparisons_of_odd_floats(kind: str, tmp_path: Path) -> None:
    feeds = {"a": ODD, "b": OTHERS}
    assert_right_in_mnn(f"g (float[8] a, float[8] b) => (bool[8] y) {{ y = {kind}(a, b) }}", tmp_path, feeds=feeds)


def test_equal_to_a_number_stays() -> None:
    assert_unchanged(LowerForMnn(), "g (float[3] a) => (bool[3] y) <float z = {1}> { y = Equal(a, z) }")


ZEROS = np.array([np.nan, 0, -0.0, 1, -1, np.inf, -np.inf, 1e-30], np.float32)


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Equal(x, z)", ZEROS == 0),
        ("b = Abs(x) y = Equal(x, b)", np.abs(ZEROS) == ZEROS),
        ("y = Cast<to = 9>(x)", ZEROS != 0),
    ],
)
def test_minus_zero_is_zero_and_nan_is_not(body: str, expected: np.ndarray, opset: int, tmp_path: Path) -> None:
    text = f"g (float[8] x) => (bool[8] y) <float z = {{0}}> {{ {body} }}"
    np.testing.assert_array_equal(lowered(text, opset, x=ZEROS), expected)
    feeds = {"x": ZEROS[1:] if "Abs" in body else ZEROS}  # MNN's Abs of NaN is 0
    if "Abs" in body:
        text, expected = text.replace("[8]", "[7]"), expected[1:]
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"y": expected}, opset=opset)


@pytest.mark.parametrize("opset", [9, 10])
def test_cast_of_minus_zero_to_bool_in_old_operator_sets(opset: int) -> None:
    got = lowered("g (float[8] x) => (bool[8] y) { y = Cast<to = 9>(x) }", opset, x=ZEROS)
    np.testing.assert_array_equal(got, ZEROS != 0)


def test_mod_of_a_constant_settles() -> None:
    model = parse("g (float[1] x) => (float[2] y) <float[2] c = {0.9, 3}> { y = Mod<fmod = 1>(c, x) }")
    assert optimize(model, "mnn").ok


def test_what_the_operator_set_lacks_is_refused() -> None:
    assert_unchanged(
        LowerForMnn(), "g (int32[2] x) => (int16[2] y) { y = Cast<to = 5>(x) }", refuses="takes Mod", opset=9
    )


@pytest.mark.parametrize("opset", [9, 13])
@pytest.mark.parametrize("dtype", ["float", "int64", "int32"])
def test_cast_to_bool(dtype: str, opset: int, tmp_path: Path) -> None:
    x = np.array([2, 0, -1, 1], {"float": np.float32, "int64": np.int64, "int32": np.int32}[dtype])
    text = f"g ({dtype}[4] x) => (bool[4] y) {{ b = Cast<to = 9>(x) y = Not(b) }}"
    assert_right_in_mnn(text, tmp_path, feeds={"x": x}, opset=opset)


def test_cast_to_bool_of_an_unknown_type() -> None:
    text = "g (float[2] x) => (bool[2] y) { a = c.F(x) y = Cast<to = 9>(a) }"
    assert_unchanged(LowerForMnn(), text, refuses="unknown", imports={"c": 1})


@pytest.mark.parametrize(("source", "target"), [("int32", 2), ("float", 2), ("bool", 2), ("uint8", 3), ("int32", 5)])
def test_casts_to_narrow_integers(source: str, target: int, tmp_path: Path) -> None:
    kinds = {"int32": np.int32, "float": np.float32, "bool": np.bool_, "uint8": np.uint8}
    x: npt.NDArray[Any] = np.array([1, 0, 200, 255]).astype(kinds[source])
    name = {2: "uint8", 3: "int8", 5: "int16"}[target]
    assert_right_in_mnn(
        f"g ({source}[4] x) => ({name}[4] y) {{ y = Cast<to = {target}>(x) }}", tmp_path, feeds={"x": x}
    )


@pytest.mark.parametrize("op", ["Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"])
@pytest.mark.parametrize(("a", "b"), [("1, 3", "2, 1"), ("S", "T, 1"), ("3", "1, 3, 1, 1")])
def test_comparison_with_both_operands_broadcast(op: str, a: str, b: str, tmp_path: Path) -> None:
    result = ", ".join("UVWX"[: max(a.count(","), b.count(",")) + 1])
    text = f"g (float[{a}] a, float[{b}] b) => (bool[{result}] y) {{ y = {op}(a, b) }}"
    left, right = np.array([-1, -3, -0.5], np.float32), np.array([-0.5, -1, -2], np.float32)
    sizes = [[int(size) if size.strip().isdigit() else 3 for size in shape.split(",")] for shape in (a, b)]
    feeds = {name: x[: np.prod(n)].reshape(n) for name, x, n in zip("ab", (left, right), sizes, strict=True)}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


def test_comparison_with_one_operand_broadcast_stays() -> None:
    assert_unchanged(LowerForMnn(), "g (float[N, 3] a, float[3] b) => (bool[N, 3] y) { y = Greater(a, b) }")
