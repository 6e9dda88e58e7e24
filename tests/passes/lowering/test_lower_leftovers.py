"""MatMul, Gemm, Det, EyeLike, Range, and operators written as their function bodies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from graphkit.graph import Graph
from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, parse
from tests.in_mnn import assert_right_in_mnn

B = "float[4,2] b = {1.0,-2.0,3.0,0.5,-1.0,2.5,4.0,-3.0}"


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("opset", [9, 18])
def test_gemm_of_a_transposed_a(trans_b: int, opset: int, tmp_path: Path) -> None:
    """MNN makes a convolution of a constant B and forgets transA."""
    weight = B if not trans_b else B.replace("[4,2]", "[2,4]")
    head = f"g (float[4,3] a, float[2] c) => (float[3,2] y) <{weight}>"
    before = f"{head} {{ y = Gemm<transA=1, transB={trans_b}, alpha=0.5>(a, b, c) }}"
    after = f"{head} {{ t = Transpose<perm=[1,0]>(a) y = Gemm<transB={trans_b}, alpha=0.5>(t, b, c) }}"
    assert_rewrites(LowerForMnn(), before, after, opset=opset)
    assert_right_in_mnn(before, tmp_path, opset=opset)


@pytest.mark.parametrize("form", ["Gemm<transA=1>(a, b)", "Gemm<transA=0>(t, k)"])
def test_other_gemms_stay(form: str) -> None:
    assert_unchanged(
        LowerForMnn(),
        f"g (float[4,3] a, float[3,4] t, float[4,2] b) => (float[3,2] y) <{B.replace(' b', ' k')}> {{ y = {form} }}",
    )


@pytest.mark.parametrize("size", ["4", "n"])
def test_matmul_of_two_vectors(size: str, tmp_path: Path) -> None:
    head = f"g (float[{size}] a, float[{size}] b) => (float y)"
    before = f"{head} {{ y = MatMul(a, b) }}"
    after = f"{head} <int64[1] axis = {{0}}> {{ m = Mul(a, b) y = ReduceSum<keepdims=0>(m, axis) }}"
    assert_rewrites(LowerForMnn(), before, after)
    assert_right_in_mnn(before, tmp_path)


def test_matmul_by_a_constant_vector(tmp_path: Path) -> None:
    text = "g (float[2,n,4] a) => (float[2,n] y) <float[4] b = {1.0, -2.0, 3.0, 0.5}> { y = MatMul(a, b) }"
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_matmul_of_integers(dtype: str, tmp_path: Path) -> None:
    """MNN reads their bits as floats; products are right up to 2²⁴, sums beyond that."""
    text = f"g ({dtype}[2,3,4] a, {dtype}[4,5] b) => ({dtype}[2,3,5] y) {{ y = MatMul(a, b) }}"
    rng = np.random.default_rng(0)
    feeds = {"a": rng.integers(-4000, 4000, (2, 3, 4)), "b": rng.integers(-4000, 4000, (4, 5))}
    feeds = {name: array.astype(dtype) for name, array in feeds.items()}
    assert_right_in_mnn(text, tmp_path, feeds=feeds, rtol=0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("g (int32[4] a, int32[4,5] b) => (int32[5] y) { y = MatMul(a, b) }", "is a vector"),
        ("g (int32[4096,4096] a, int32[4096,5] b) => (int32[4096,5] y) { y = MatMul(a, b) }", "too much memory"),
        ("g (float[5,5] x) => (float y) { y = Det(x) }", "larger than 4 rows"),
        ("g (float[n,n] x) => (float[n,n] y) { y = EyeLike<dtype=1>(x) }", "from opset 11 only"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=9 if "EyeLike" in text else 18)


@pytest.mark.parametrize("shape", ["1,1", "2,2", "3,3", "4,4", "5,2,2", "2,3,4,4", "n,3,3"])
def test_det(shape: str) -> None:
    before = parse(f"g (float[{shape}] x) => (float y) {{ y = Det(x) }}")
    made = optimize(before, "lower-for-mnn", verify="none").model
    assert "Det" not in {node.op for node in Graph.of(made).nodes}
    assert_equal_outputs(before, made)


@pytest.mark.parametrize("rows", [[[0, 1], [1, 0]], [[0, 2, 1], [3, 0, 1], [1, 1, 0]]])
def test_det_keeps_its_sign_where_a_pivot_is_zero(rows: list[list[int]], tmp_path: Path) -> None:
    size = len(rows)
    text = f"g (float[{size},{size}] x) => (float y) {{ y = Det(x) }}"
    assert_right_in_mnn(text, tmp_path, feeds={"x": np.array(rows, np.float32)})


@pytest.mark.parametrize("shape", ["3,4", "n,4"])
@pytest.mark.parametrize("attrs", ["", "<dtype=1>", "<dtype=7, k=1>", "<dtype=1, k=-2>"])
def test_eye_like(shape: str, attrs: str) -> None:
    dtype = "int64" if "7" in attrs else "float"
    before = parse(f"g (float[{shape}] x) => ({dtype}[{shape}] y) {{ y = EyeLike{attrs}(x) }}")
    assert_equal_outputs(before, optimize(before, "lower-for-mnn", verify="none").model)


def test_eye_like_in_mnn(tmp_path: Path) -> None:
    assert_right_in_mnn("g (float[n,m] x) => (float[n,m] y) { y = EyeLike<dtype=1, k=1>(x) }", tmp_path)


def test_range_of_doubles(tmp_path: Path) -> None:
    text = "g (double s, double l, double d) => (double[n] y) { y = Range(s, l, d) }"
    feeds = {name: np.array(value, np.float64) for name, value in (("s", 1), ("l", 4.5), ("d", 0.5))}
    assert_right_in_mnn(text, tmp_path, feeds=feeds)


LINEAR = """g (float[2,4,8] q, float[2,4,8] k, float[2,4,8] v) => (float[2,4,8] y, float[2,2,4,4] state) {
  y, state = LinearAttention<q_num_heads=2, kv_num_heads=2, update_rule="linear">(q, k, v) }"""
FLEX = """g (float[1,2,3,4] q, float[1,2,3,4] k, float[1,2,3,4] v) => (float[1,2,3,4] y) {
  y = ai.onnx.preview.FlexAttention<score_mod: graph = m (float[B,H,L,S] s) => (float[B,H,L,S] o) { o = Tanh(s) }>
    (q, k, v) }"""
DEPTH = 'g (float[1,2,4,6] x) => (float[1,8,2,3] y) { y = SpaceToDepth<blocksize=2, mode="CRD">(x) }'


@pytest.mark.parametrize(
    ("text", "opset", "imports"),
    [(LINEAR, 27, {}), (FLEX, 26, {"ai.onnx.preview": 1}), (DEPTH, 28, {})],
    ids=["LinearAttention", "FlexAttention", "SpaceToDepth"],
)
def test_function_bodies_of_the_schema(text: str, opset: int, imports: dict[str, int], tmp_path: Path) -> None:
    model = parse(text, opset=opset, imports=imports, ir_version=13)
    rng = np.random.default_rng(0)
    graph = Graph.of(model)
    feeds = {n: rng.standard_normal(graph.type(n).shape).astype(np.float32) for n in graph.inputs}  # type: ignore[union-attr,arg-type]
    expected = dict(zip(graph.outputs, ReferenceEvaluator(model.materialized()).run(None, feeds), strict=True))
    assert_right_in_mnn(model, tmp_path, feeds=feeds, expected=expected)


def test_function_bodies_need_types_and_operators() -> None:
    unknown = LINEAR.replace("(q, k, v) }", "(q2, k, v) }").replace(") {\n", ") {\n q2 = my.domain.Thing(q)\n")
    header = {"opset": 27, "imports": {"my.domain": 1}, "ir_version": 13}
    assert_unchanged(LowerForMnn(), unknown, refuses="the type of 'q2' is unknown", **header)
    header = {"opset": 11, "imports": {"ai.onnx.preview": 1}, "ir_version": 13}
    assert_unchanged(LowerForMnn(), FLEX, refuses="is another one in 11", **header)
