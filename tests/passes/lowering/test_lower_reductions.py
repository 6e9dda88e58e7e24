"""Reductions for MNN: the same numbers in ONNX for all forms, and in MNN for those that it got wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse
from tests.in_mnn import assert_right_in_mnn

COMPOSITE = ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"]


def lowered(text: str, opset: int = 18) -> list[str]:
    """Operators after the pass; both models compute the same on positive numbers."""
    graph = graph_of(text, opset=opset)
    LowerForMnn().run(graph)
    graph.check()
    x = np.random.default_rng(0).uniform(0.1, 3, (2, 3, 4)).astype(np.float32)
    assert_equal_outputs(parse(text, opset=opset), graph.to_model(), inputs={"x": x})
    return [node.op for node in graph.nodes if node.op != "Constant"]


def test_l2_by_a_product_and_a_sum() -> None:
    assert_rewrites(
        LowerForMnn(),
        """g (float[2, N, 4] x) => (float[2, 1, 4] y) <int64[1] axes = {1}> { y = ReduceL2(x, axes) }""",
        """g (float[2, N, 4] x) => (float[2, 1, 4] y) <int64[1] axes = {1}> {
          s = Mul(x, x)
          t = ReduceSum<keepdims = 1>(s, axes)
          y = Sqrt(t)
        }""",
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(COMPOSITE),
    st.sampled_from([9, 11, 13, 18]),
    st.lists(st.integers(-3, 2), max_size=3, unique_by=lambda axis: axis % 3),
    st.integers(0, 1),
)
def test_composites_in_all_spellings(kind: str, opset: int, axes: list[int], keepdims: int) -> None:
    listing = ", ".join(map(str, axes))
    given_axes = f"axes = [{listing}], " if axes and opset < 18 else ""
    if opset < 11:
        given_axes = given_axes.replace("-1", "2").replace("-2", "1").replace("-3", "0")
    initial = f"<int64[{len(axes)}] a = {{{listing}}}>" if axes and opset >= 18 else ""
    call = f"{kind}<{given_axes}keepdims = {keepdims}>(x{', a' if initial else ''})"
    ops = lowered(
        f"g (float[2, 3, 4] x) => (float[] y) {initial} {{ y = {call} }}".replace("float[] y", "float y"), opset
    )
    assert not set(ops) & set(COMPOSITE)


@pytest.mark.parametrize("kind", COMPOSITE)
def test_composites_in_mnn(kind: str, tmp_path: Path) -> None:
    text = f"g (float[2, N, 4] x) => (float[2, 4] y) <int64[1] a = {{1}}> {{ y = {kind}<keepdims = 0>(x, a) }}"
    x = np.random.default_rng(1).uniform(0.1, 3, (2, 3, 4)).astype(np.float32)
    assert_right_in_mnn(text, tmp_path, feeds={"x": x})


def test_log_sum_exp_of_large_and_infinite_numbers(tmp_path: Path) -> None:
    text = "g (float[3, 2] x) => (float[3, 1] y) <int64[1] a = {1}> { y = ReduceLogSumExp(x, a) }"
    x = np.array([[200, 210], [-np.inf, 1], [-np.inf, -np.inf]], np.float32)
    graph = graph_of(text)
    LowerForMnn().run(graph)
    expected = {"y": np.array([[210.0000454], [1], [-np.inf]], np.float32)}
    assert_right_in_mnn(graph.to_model(), tmp_path, feeds={"x": x}, expected=expected)


def test_integers_reduce_in_floats_where_roots_are_taken() -> None:
    text = "g (int32[2, 3] x) => (int32[2, 1] y) <int64[1] a = {1}> { y = ReduceL2(x, a) }"
    graph = graph_of(text)
    LowerForMnn().run(graph)
    assert [node.op for node in graph.nodes] == ["Cast", "Mul", "ReduceSum", "Sqrt", "Cast"]


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"])
@pytest.mark.parametrize("noop", [0, 1])
def test_empty_axes(kind: str, noop: int, tmp_path: Path) -> None:
    shape = "2, 3" if noop else "1, 1"
    text = (
        f"g (float[2, 3] x) => (float[{shape}] y) <int64[0] a = {{}}>"
        f"{{ z = {kind}<noop_with_empty_axes = {noop}>(x, a) y = Neg(z) }}"
    )
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf), ("ReduceLogSumExp", -np.inf)],
)
def test_no_elements(kind: str, value: float) -> None:
    text = f"g (float[2, 0, 4] x) => (float[2, 1, 4] y) <int64[1] a = {{1}}> {{ y = {kind}(x, a) }}"
    graph = graph_of(text)
    LowerForMnn().run(graph)
    (node,) = graph.nodes
    constant = graph.constant(node.inputs[0])
    assert node.op == "Identity"
    assert constant is not None
    np.testing.assert_array_equal(constant, np.full((2, 1, 4), value, np.float32))


def test_axes_that_are_computed() -> None:
    text = "g (float[2, 3] x, int64[1] a) => (float[2, 1] y) { y = ReduceL1(x, a) }"
    assert_unchanged(LowerForMnn(), text, refuses="not constant")
    assert_unchanged(LowerForMnn(), text.replace("L1", "Sum"), refuses="MNN reads constant axes only")


def test_plain_reductions_stay() -> None:
    assert_unchanged(LowerForMnn(), "g (float[2, 3] x) => (float[2, 1] y) <int64[1] a = {1}> { y = ReduceSum(x, a) }")
