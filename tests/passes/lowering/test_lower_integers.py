"""Narrow integers and bitwise operators, against numpy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged, graph_of
from tests.in_mnn import assert_right_in_mnn

WIDTHS = ["uint8", "int8", "int16", "uint16", "int32", "int64", "uint32"]


def reference(text: str, feeds: Mapping[str, Any], opset: int = 18) -> npt.NDArray[Any]:
    """What the graph after the pass computes."""
    graph = graph_of(text, opset=opset)
    result = LowerForMnn().run(graph)
    graph.check()
    assert result.modified
    (got,) = ReferenceEvaluator(graph.to_model().materialized()).run(None, dict(feeds))
    return np.asarray(got)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_arithmetic_wraps(kind: str, dtype: str, tmp_path: Path) -> None:
    if dtype != "uint8" and kind in ("Max", "Min", "Mod"):
        return
    a: npt.NDArray[Any] = (
        np.array([250, 3, 7, 200], np.uint8) if dtype == "uint8" else np.array([-30000, 3, 7, 100], np.int16)
    )
    b: npt.NDArray[Any] = np.array([200, 9, 3, 2], a.dtype)
    text = f"g ({dtype}[4] a, {dtype}[4] b) => ({dtype}[4] y) {{ y = {kind}(a, b) }}"
    with np.errstate(over="ignore"):
        plain = {"Add": a + b, "Sub": a - b, "Mul": a * b, "Max": np.maximum(a, b), "Min": np.minimum(a, b)}
        want: npt.NDArray[Any] = plain.get(kind, np.trunc(a / b).astype(a.dtype) if kind == "Div" else a % b)
    got = reference(text, {"a": a, "b": b})
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)
    assert_right_in_mnn(text, tmp_path, feeds={"a": a, "b": b}, expected={"y": want})


def test_comparison_of_uint8(tmp_path: Path) -> None:
    text = "g (uint8[4] a, uint8[4] b) => (bool[4] y) { y = Less(a, b) }"
    feeds = {"a": np.array([250, 3, 7, 200], np.uint8), "b": np.array([3, 9, 7, 250], np.uint8)}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


def test_clip_of_int8(tmp_path: Path) -> None:
    text = "g (int8[4] x) => (int8[4] y) <int8 lo = {-3}, int8 hi = {7}> { y = Clip(x, lo, hi) }"
    assert_right_in_mnn(text, tmp_path, feeds={"x": np.array([-5, 0, 5, 100], np.int8)})


def test_topk_of_uint8(tmp_path: Path) -> None:
    text = "g (uint8[2, 4] x) => (uint8[2, 2] v, int64[2, 2] i) <int64[1] k = {2}> { v, i = TopK(x, k) }"
    x = np.array([[3, 1, 4, 2], [5, 200, 7, 9]], np.uint8)
    assert_right_in_mnn(text, tmp_path, feeds={"x": x})


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(WIDTHS), st.sampled_from(["And", "Or", "Xor"]), st.integers(0, 2**32), st.booleans())
def test_bitwise_operators(dtype: str, kind: str, seed: int, constant: bool) -> None:
    rng, info = np.random.default_rng(seed), np.iinfo(dtype)
    low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
    a, b = (rng.integers(low, high, (2, 3), endpoint=True).astype(dtype) for _ in range(2))
    a[0, 0], b[0, 0], b[0, 1] = low, high, low
    feeds = {"a": a, "b": b}
    second = f", {dtype}[2, 3] b"
    weights = ""
    if constant:
        b = np.array(15, dtype)
        feeds, second, weights = {"a": a}, "", f"<{dtype} b = {{15}}>"
    text = f"g ({dtype}[2, 3] a{second}) => ({dtype}[2, 3] y) {weights} {{ y = Bitwise{kind}(a, b) }}"
    want: npt.NDArray[Any] = {"And": np.bitwise_and, "Or": np.bitwise_or, "Xor": np.bitwise_xor}[kind](a, b)
    got = reference(text, feeds)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize("kind", ["And", "Xor"])
def test_bitwise_operators_in_mnn(dtype: str, kind: str, tmp_path: Path) -> None:
    values = [-(2**31), -1, 2**31 - 1, 123456789] if dtype == "int32" else [0, 255, 170, 15]
    a = np.array(values, dtype)
    b = a[::-1].copy()
    text = f"g ({dtype}[4] a, {dtype}[4] b) => ({dtype}[4] y) {{ y = Bitwise{kind}(a, b) }}"
    want = np.bitwise_and(a, b) if kind == "And" else np.bitwise_xor(a, b)
    assert_right_in_mnn(text, tmp_path, feeds={"a": a, "b": b}, expected={"y": want}, rtol=1e-30)


@pytest.mark.parametrize("dtype", [width for width in WIDTHS if width != "uint32"])
def test_bitwise_not(dtype: str) -> None:
    x = np.array([0, 1, 100], dtype)
    np.testing.assert_array_equal(
        reference(f"g ({dtype}[3] x) => ({dtype}[3] y) {{ y = BitwiseNot(x) }}", {"x": x}), ~x
    )


@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shift_of_uint8(direction: str, tmp_path: Path) -> None:
    text = f'g (uint8[4] a, uint8[4] b) => (uint8[4] y) {{ y = BitShift<direction = "{direction}">(a, b) }}'
    feeds = {"a": np.array([16, 255, 1, 9], np.uint8), "b": np.array([1, 2, 7, 0], np.uint8)}
    want = feeds["a"] << feeds["b"] if direction == "LEFT" else feeds["a"] >> feeds["b"]
    np.testing.assert_array_equal(reference(text, feeds), want)
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"y": want})


@pytest.mark.parametrize("dtype", ["int8", "int32"])
@pytest.mark.parametrize("direction", ["LEFT", "RIGHT"])
def test_shift_beyond_the_width(dtype: str, direction: str) -> None:
    text = f'g ({dtype}[4] a, {dtype}[4] b) => ({dtype}[4] y) {{ y = BitShift<direction = "{direction}">(a, b) }}'
    a, b = np.array([-5, 100, 7, -1], dtype), np.array([2, -1, 40, 33], dtype)
    want = [-20, 0, 0, 0] if direction == "LEFT" else [-2, 0, 0, -1]
    assert reference(text, {"a": a, "b": b}, opset=28).tolist() == want


def test_bit_cast() -> None:
    x = np.array([-1, 5], np.int8)
    assert reference("g (int8[2] x) => (uint8[2] y) { y = BitCast<to = 2>(x) }", {"x": x}, opset=28).tolist() == [
        255,
        5,
    ]
    text = "g (float[2] x) => (int32[2] y) { y = BitCast<to = 6>(x) }"
    assert_unchanged(LowerForMnn(), text, opset=28, refuses="no bits of floats")


@pytest.mark.parametrize("op", ["BitwiseAnd(a, a)", "BitwiseNot(a)", 'BitShift<direction = "LEFT">(a, a)'])
def test_bits_of_an_unknown_type(op: str) -> None:
    text = f"g (float[2] x) => (int32[2] y) {{ a = c.F(x) y = {op} }}"
    assert_unchanged(LowerForMnn(), text, refuses="", imports={"c": 1})


def test_constants_beyond_what_mnn_holds() -> None:
    text = "g (int64[4] x) => (int64[4] y) <int64 big = {2654435761}> { y = Mul(x, big) }"
    assert_unchanged(LowerForMnn(), text, refuses="beyond ±2³⁰")
    assert_unchanged(LowerForMnn(), text.replace("2654435761", "1000"))


@pytest.mark.parametrize("op", ["Less", "Greater", "Equal", "LessOrEqual", "GreaterOrEqual", "Max", "Min"])
def test_computed_int8(op: str, tmp_path: Path) -> None:
    made = "int8" if op in ("Max", "Min") else "bool"
    text = f"""g (float[2, 3] a, float[3] b) => ({made}[2, 3] y)
        {{ c = Cast<to = 3>(a) d = Cast<to = 3>(b) y = {op}(c, d) }}"""
    feeds = {"a": np.array([[-5, 0, 3], [100, -128, 1]], np.float32), "b": np.array([-5, 2, -3], np.float32)}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)
