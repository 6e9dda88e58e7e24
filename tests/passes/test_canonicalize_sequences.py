"""`canonicalize`: sequences, and attributes and inputs that drifted from the operator set."""

from __future__ import annotations

import pytest

from graphkit.graph import Graph
from graphkit.passes.canonicalize import Canonicalize
from graphkit.testing import assert_rewrites, assert_unchanged, canonical, graph_of

PASS = Canonicalize()


def run(text: str, opset: int = 18) -> Graph:
    """The graph after the pass, structurally checked."""
    graph = graph_of(text, opset=opset)
    PASS.run(graph)
    graph.check()
    return graph


def test_concat_of_a_sequence() -> None:
    head = "agraph (float[n,2] x, float[n,2] z)"
    assert_rewrites(
        PASS,
        f"{head} => (float[n,4] y) {{ s = SequenceConstruct(x, z) y = ConcatFromSequence<axis = 1>(s) }}",
        f"{head} => (float[n,4] y) {{ y = Concat<axis = 1>(x, z) }}",
    )
    assert_rewrites(
        PASS,
        f"""{head} => (float[n,2,2] y)
        {{ s = SequenceConstruct(x, z) y = ConcatFromSequence<axis = -1, new_axis = 1>(s) }}""",
        f"""{head} => (float[n,2,2] y) <int64[1] k = {{2}}>
        {{ a = Unsqueeze(x, k) b = Unsqueeze(z, k) y = Concat<axis = -1>(a, b) }}""",
    )


SPLIT = """agraph (float[n,5] x) => (float[n,2] y) <int64 i = {0}, int64 j = {-2}%s> {
    s = SplitToSequence<axis = 1>(x%s) a = SequenceAt(s, i) b = SequenceAt(s, j) y = Add(a, b)
}"""


@pytest.mark.parametrize("sizes", ["int64 z = {2}", "int64[3] z = {2, 2, 1}"])
def test_split_to_sequence_becomes_split(sizes: str) -> None:
    assert_rewrites(
        PASS,
        SPLIT % (f", {sizes}", ", z"),
        """agraph (float[n,5] x) => (float[n,2] y) <int64[3] z = {2, 2, 1}>
        { a, b, c = Split<axis = 1>(x, z) y = Add(a, b) }""",
    )


def test_split_to_sequence_of_single_slices() -> None:
    graph = run(
        """agraph (float[n,3] x) => (float[n] y) <int64 i = {2}>
        { s = SplitToSequence<axis = 1, keepdims = 0>(x) a = SequenceAt(s, i) y = Neg(a) }"""
    )
    assert graph.op_counts() == {"Split": 1, "Squeeze": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = SequenceAt(s, i) y = Neg(a)", "used by SequenceAt"),
        ("q = SequenceErase(s) a = ConcatFromSequence<axis = 0>(q) y = Neg(a)", "used by SequenceErase"),
    ],
)
def test_sequences_with_other_uses_are_refused(text: str, reason: str) -> None:
    assert_unchanged(
        PASS,
        f"agraph (float[4,n] x, int64 i) => (y) <int64 z = {{2}}> {{ s = SplitToSequence(x, z) {text} }}",
        refuses=reason,
    )


def test_split_of_an_unknown_size_is_refused() -> None:
    assert_unchanged(
        PASS,
        """agraph (float[n] x) => (y) <int64 z = {2}, int64 i = {0}>
        { s = SplitToSequence(x, z) y = SequenceAt(s, i) }""",
        refuses="is not known",
    )


def test_sequence_length_and_elements() -> None:
    assert_rewrites(
        PASS,
        """agraph (float[n] x, float[n] z) => (float[n] y, int64 k) <int64 i = {1}>
        { s = SequenceConstruct(x, z) a = SequenceAt(s, i) y = Neg(a) l = SequenceLength(s) k = Neg(l) }""",
        """agraph (float[n] x, float[n] z) => (float[n] y, int64 k) <int64 l = {2}>
        { y = Neg(z) k = Neg(l) }""",
    )


# -- operator-set drift -----------------------------------------------------------------------------------


def drifted(text: str, opset: int) -> Graph:
    """The graph of an invalid model after the pass has put it right."""
    graph = graph_of(text, opset=opset, infer=False)
    PASS.run(graph)
    return graph


@pytest.mark.parametrize(
    ("op", "opset", "expected"),
    [
        ("ReduceSum<axes = [1], keepdims = 1>(x)", 13, ("ReduceSum", ["int64[1][1]"])),
        ("ReduceMean<axes = [1], keepdims = 1>(x)", 18, ("ReduceMean", ["int64[1][1]"])),
        ("Unsqueeze<axes = [0]>(x)", 13, ("Unsqueeze", ["int64[1][0]"])),
        ("Clip<min = 0.0, max = 6.0>(x)", 11, ("Clip", ["float32[]0.", "float32[]6."])),
        ("Clip<max = 6.0>(x)", 11, ("Clip", ["-", "float32[]6."])),
        ("Slice<starts = [1], ends = [2]>(x)", 10, ("Slice", ["int64[1][1]", "int64[1][2]"])),
    ],
)
def test_attributes_that_became_inputs(op: str, opset: int, expected: tuple[str, list[str]]) -> None:
    graph = drifted(f"agraph (float[2,3] x) => (y) {{ y = {op} }}", opset)
    line = next(line for line in canonical(graph) if line.startswith("%"))
    assert f"{expected[0]}(input x, {', '.join(expected[1])})" in line
    assert not {"axes", "min", "max", "starts"} & set(next(iter(graph.nodes)).attrs)


@pytest.mark.parametrize(
    ("op", "opset", "name", "value"),
    [
        ("ReduceMean<keepdims = 1>(x, k)", 13, "axes", [1]),
        ("Squeeze(x, k)", 11, "axes", [1]),
        ("Clip(x, f)", 6, "min", 0.5),
        ("TopK(x, k)", 9, "k", 1),
    ],
)
def test_inputs_that_are_still_attributes(op: str, opset: int, name: str, value: object) -> None:
    graph = drifted(f"agraph (float[2,1] x) => (y) <int64[1] k = {{1}}, float f = {{0.5}}> {{ y = {op} }}", opset)
    node = next(iter(graph.nodes))
    assert node.attr(name) == value
    assert node.inputs == ("x",)


def test_an_input_that_cannot_be_an_attribute_is_refused() -> None:
    graph = graph_of("agraph (float[2,1] x, int64[1] k) => (y) { y = Squeeze(x, k) }", opset=11, infer=False)
    assert "takes no input 'axes'" in PASS.run(graph).refusals[0].reason
