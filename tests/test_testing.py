"""The helpers for tests of passes must fail when a pass is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto
from passes_for_tests import Custom, DropIdentity, Replace, ScaleOutput, Silent

from graphkit.graph import Graph
from graphkit.rewrite import Change, PassResult
from graphkit.testing import (
    assert_equal_outputs,
    assert_rewrites,
    assert_unchanged,
    canonical,
    graph_of,
    parse,
    random_feeds,
)

BEFORE = "g (float[N,4] x) => (float[N,4] y) { a = Identity(x) b = Relu(a) y = Add(b, a) }"
AFTER = "g (float[N,4] x) => (float[N,4] y) { b = Relu(x) y = Add(b, x) }"


def test_a_good_pass_passes() -> None:
    result = assert_rewrites(DropIdentity(), BEFORE, AFTER)
    assert result.counters == {"identity": 1}


def test_another_structure_is_shown() -> None:
    with pytest.raises(AssertionError, match=r"expected:\n%0 = Relu\(input x\)\n(.*\n)*got:\n%0 = Relu"):
        assert_rewrites(DropIdentity(), BEFORE, AFTER.replace("Add(b, x)", "Mul(b, x)"))


def test_other_numbers_are_found() -> None:
    after = "g (float[N,4] x) => (float[N,4] y) { y = Sigmoid(x) }"
    before = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_rewrites(Replace("Relu", "Sigmoid"), before, after)


def test_a_change_that_is_not_reported_is_found() -> None:
    with pytest.raises(AssertionError, match="reports no change"):
        assert_rewrites(Silent(), BEFORE, AFTER)


def test_an_unused_node_left_behind_is_found() -> None:
    def leave(graph: Graph) -> PassResult:
        result = DropIdentity().run(graph)
        graph.insert(NodeProto(op_type="Neg", input=["b"], output=["left"]))
        return result

    with pytest.raises(AssertionError, match=r"unused:\n%4 = Neg"):
        assert_rewrites(Custom(leave), BEFORE, AFTER)


def test_a_protobuf_changed_in_place_is_found() -> None:
    def write(graph: Graph) -> PassResult:
        graph.by_op("Relu")[0].proto.op_type = "Abs"
        return PassResult()

    with pytest.raises(AssertionError, match="changed node 'b' in place; use graph methods"):
        assert_unchanged(Custom(write), BEFORE)


def test_an_invalid_graph_is_found() -> None:
    def cut(graph: Graph) -> PassResult:
        graph.remove(graph.by_op("Relu")[0])
        return PassResult((Change("b", "cut"),))

    with pytest.raises(Exception, match="reads value 'b', which is not defined"):
        assert_rewrites(Custom(cut), BEFORE, AFTER)


def test_unchanged() -> None:
    text = "g (float[4] x) => (float[4] y) { y = Identity(x) }"
    assert_unchanged(DropIdentity(), text, refuses="graph output")
    with pytest.raises(AssertionError, match="no refusal says 'opset'"):
        assert_unchanged(DropIdentity(), text, refuses="opset")
    with pytest.raises(AssertionError, match="the graph changed:"):
        assert_unchanged(ScaleOutput(), text)
    with pytest.raises(AssertionError, match="nothing changed, but the pass reports"):
        assert_unchanged(Custom(lambda graph: PassResult((Change("a", "b"),))), text)


def test_equal_outputs_checks_type_and_shape() -> None:
    one = parse("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    half = parse("g (float[N,4] x) => (float16[N,4] y) { a = Relu(x) y = Cast<to = 10>(a) }")
    flat = parse("g (float[N,4] x) => (float[M] y) <int64[1] s = {-1}> { a = Relu(x) y = Reshape(a, s) }")
    with pytest.raises(AssertionError, match="y: float16 instead of float32"):
        assert_equal_outputs(one, half)
    with pytest.raises(AssertionError, match=r"y: shape \(12,\) instead of \(3, 4\)"):
        assert_equal_outputs(one, flat)
    assert_equal_outputs(one, one, inputs={"x": np.ones((1, 4), np.float32)})


def test_canonical_ignores_names_and_order_only() -> None:
    one = "g (float[4] x) => (float[4] y) { a = Relu(x) b = Neg(x) y = Sub(a, b) }"
    two = "g (float[4] x) => (float[4] y) { q = Neg(x) p = Relu(x) y = Sub(p, q) }"
    swapped = "g (float[4] x) => (float[4] y) { q = Neg(x) p = Relu(x) y = Sub(q, p) }"
    assert canonical(graph_of(one)) == canonical(graph_of(two))
    assert canonical(graph_of(one)) != canonical(graph_of(swapped))


@pytest.mark.parametrize("size", [3, 100])
def test_canonical_sees_constants(size: int) -> None:
    values = [", ".join(["1.0"] * (size - 1) + [last]) for last in ("1.0", "2.0")]
    texts = [
        f"g (float[{size}] x) => (float[{size}] y) <float[{size}] w = {{{v}}}> {{ y = Mul(x, w) }}" for v in values
    ]
    one, two = (canonical(graph_of(text)) for text in texts)
    assert one != two
    assert one == canonical(graph_of(texts[0].replace("w", "other")))


def test_random_feeds_fit() -> None:
    text = """
        g (float[N,4] x, int64[N] i, bool[2] c, float16 s, float[4] d) => (float[N,4] y)
        <float[4] d = {1.0, 2.0, 3.0, 4.0}> { y = Relu(x) }
    """
    feeds = random_feeds(parse(text), size=5)
    kinds = {name: (array.dtype.name, array.shape) for name, array in feeds.items()}
    assert kinds == {
        "x": ("float32", (5, 4)),
        "i": ("int64", (5,)),
        "c": ("bool", (2,)),
        "s": ("float16", ()),
    }
