"""`fold-shapes`: partial knowledge of sizes put to use, and only where it is certain."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.graph import Graph
from graphkit.passes.fold_shapes import FoldShapes
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

PASS = FoldShapes()


def fold(text: str, opset: int = 18) -> Graph:
    """The graph after the pass; checks structure, equal outputs, and that a second run changes nothing."""
    graph = graph_of(text, opset=opset)
    PASS.run(graph)
    graph.check()
    assert_equal_outputs(parse(text, opset=opset), graph.to_model())
    again = PASS.run(graph)
    assert not again.modified, again.changes
    return graph


def target(graph: Graph, op: str = "Reshape") -> list[int] | None:
    """The constant target of the only Reshape or Expand."""
    (node,) = graph.by_op(op)
    constant = graph.constant(node.inputs[1])
    return None if constant is None else constant.tolist()


# -- targets of Reshape -----------------------------------------------------------------------------------


def test_heads_are_split_with_a_constant() -> None:
    assert_rewrites(
        PASS,
        """agraph (float[batch,seq,64] x) => (float[batch,seq,4,16] y) <int64[2] r = {-1, 16}> {
            s = Shape<start = 0, end = 1>(x) t = Shape<start = 1, end = 2>(x)
            k = Concat<axis = 0>(s, t, r) y = Reshape(x, k)
        }""",
        """agraph (float[batch,seq,64] x) => (float[batch,seq,4,16] y) <int64[4] k = {0, 0, 4, 16}> {
            y = Reshape(x, k)
        }""",
    )


def test_shape_start_and_end_are_read() -> None:
    text = """agraph (float[2,3,4] x) => (float[2,12] y) <int64[1] r = {-1}> {
        s = Shape<start = 0, end = 1>(x) k = Concat<axis = 0>(s, r) y = Reshape(x, k)
    }"""
    assert target(fold(text)) == [2, 12]


def test_negative_start_of_shape() -> None:
    text = """agraph (float[n,3,4] x) => (float y) <int64[1] r = {-1}> {
        s = Shape<start = -1>(x) k = Concat<axis = 0>(r, s) y = Reshape(x, k)
    }"""
    assert target(fold(text)) == [-1, 4]


@pytest.mark.parametrize(
    ("shape", "pieces", "expected"),
    [
        ("n,4,4", "[a, r]", [0, -1]),  # the target's own -1
        ("n,4,4", "[r, four]", [-1, 4]),
        ("n,m,4", "[a, b, four]", None),  # nothing to do: goes as a whole
    ],
)
def test_constant_targets(shape: str, pieces: str, expected: list[int] | None) -> None:
    names = pieces.strip("[]")
    text = f"""agraph (float[{shape}] x) => (float y) <int64[1] r = {{-1}}, int64[1] four = {{4}}> {{
        a = Shape<start = 0, end = 1>(x) b = Shape<start = 1, end = 2>(x)
        k = Concat<axis = 0>({names}) y = Reshape(x, k)
    }}"""
    graph = fold(text)
    if expected is None:
        assert graph.op_counts() == {"Identity": 1}
    else:
        assert target(graph) == [16 if e == -1 and pieces == "[a, r]" else e for e in expected]


def test_minus_one_is_not_invented_where_a_size_may_be_zero() -> None:
    text = """agraph (float[n,2,2,m] x) => (float y) <int64[1] four = {4}> {
        a = Shape<start = 0, end = 1>(x) m = Shape<start = 3, end = 4>(x)
        k = Concat<axis = 0>(a, four, m) y = Reshape(x, k)
    }"""
    graph = graph_of(text)
    result = PASS.run(graph)
    assert target(graph) is None
    assert "0 included" in result.refusals[0].reason
    for n in (0, 3):
        feeds = {"x": np.zeros((n, 2, 2, 5), np.float32)}
        assert_equal_outputs(parse(text), graph.to_model(), inputs=feeds)


def test_minus_one_where_all_other_sizes_are_numbers() -> None:
    text = """agraph (float[n,m,4] x) => (float y) <int64[1] four = {4}> {
        s = Shape(x) i = Constant<value_ints = [0, 1]>() d = Gather(s, i) p = ReduceProd<keepdims = 1>(d)
        k = Concat<axis = 0>(p, four) y = Reshape(x, k)
    }"""
    graph = fold(text)
    assert target(graph) == [-1, 4]
    assert len(graph) == 1


def test_allowzero_goes_with_the_constant_that_copies() -> None:
    text = """agraph (float[n,4] x) => (float y) <int64[2] r = {2, 2}> {
        a = Shape<start = 0, end = 1>(x) k = Concat<axis = 0>(a, r) y = Reshape<allowzero = 1>(x, k)
    }"""
    graph = fold(text)
    assert target(graph) == [0, 2, 2]
    assert graph.by_op("Reshape")[0].attr("allowzero") is None
    feeds = {"x": np.zeros((0, 4), np.float32)}
    assert_equal_outputs(parse(text), graph.to_model(), inputs=feeds)


def test_targets_that_depend_on_data_are_left() -> None:
    text = """agraph (float[n,4] x) => (float y) <int64[1] r = {-1}> {
        z = NonZero(x) s = Shape<start = 1>(z) k = Concat<axis = 0>(s, r) y = Reshape(x, k)
    }"""
    assert_unchanged(PASS, text, refuses="no constant target")


def test_dynamic_sizes_do_not_become_numbers() -> None:
    text = "agraph (float[n,m] x) => (int64[2] y) { s = Shape(x) y = Add(s, s) }"
    graph = graph_of(text)
    PASS.run(graph)
    assert not graph.is_constant("y")
    assert_equal_outputs(parse(text), graph.to_model())


def test_wrong_declared_shapes_are_not_folded_in() -> None:
    model = parse("agraph (float[n,4] x) => (int64[2] y) { a = Relu(x) y = Shape(a) }")
    from onnx import helper

    model.proto.graph.value_info.append(helper.make_tensor_value_info("a", 1, [7, 4]))
    graph = Graph.of(model)
    PASS.run(graph)
    assert not graph.is_constant("y")


# -- Expand -----------------------------------------------------------------------------------------------


def test_repeated_heads_expand_by_ones() -> None:
    text = """agraph (float[b,2,1,seq,8] x) => (float y) <int64[1] two = {2}, int64[1] eight = {8}> {
        a = Shape<start = 0, end = 1>(x) s = Shape<start = 3, end = 4>(x)
        k = Concat<axis = 0>(a, two, two, s, eight) y = Expand(x, k)
    }"""
    assert target(fold(text), "Expand") == [1, 1, 2, 1, 1]


def test_torchscript_expand_minus_one_vanishes() -> None:
    text = """agraph (float[b,seq] x) => (float y) <int64 one = {1}, int64[1] m = {-1}, int64 neg = {-1}> {
        a = Shape<start = 0, end = 1>(x) s = Concat<axis = 0>(a, m)
        l = Shape(s) ones = ConstantOfShape<value = int64[1] {1}>(l) minus = Mul(ones, neg)
        e = Equal(s, minus) w = Where(e, ones, s) z = Expand(x, w) y = Neg(z)
    }"""
    graph = fold(text)
    assert graph.op_counts() == {"Neg": 1}


def test_expand_that_makes_a_named_size_is_kept() -> None:
    text = """agraph (float[1,m] x, float[n,m] z) => (float y) { s = Shape(z) y = Expand(x, s) }"""
    assert_unchanged(PASS, text)


# -- values known in full ---------------------------------------------------------------------------------


def test_known_sizes_become_constants() -> None:
    text = """agraph (float[n,4,6] x) => (int64[1] y, float z) {
        s = Shape(x) i = Constant<value_ints = [1, 2]>() d = Gather(s, i)
        p = ReduceProd<keepdims = 1>(d) y = Add(p, p) c = Cast<to = 1>(p) z = Sqrt(c)
    }"""
    graph = fold(text)
    assert graph.constant("y").tolist() == [48]  # type: ignore[union-attr]
    assert graph.op_counts()["Cast"] == 1
    assert "Shape" not in graph.op_counts()


def test_comparisons_that_hold_for_all_sizes() -> None:
    text = """agraph (float[n,4] x) => (float[n,4] y)
        <int64 zero = {0}, int64 i = {0}, float[1] a = {1}, float[1] b = {2}> {
        s = Shape(x) n = Gather(s, i) c = Less(n, zero) w = Where(c, a, b) y = Mul(x, w)
    }"""
    graph = fold(text)
    assert graph.constant("c").tolist() is False  # type: ignore[union-attr]


def test_the_gate_stops_in_the_middle() -> None:
    text = (
        "agraph (float[2,3] x) => (int64[2] y, int64 z, float[2,3] u) { y = Shape(x) z = "
        "Size(x) s = Shape(x) u = Reshape(x, s) }"
    )
    for limit in range(4):
        graph = graph_of(text)
        left = [limit]

        def gate(node: str, what: str, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] >= 0

        graph.gate = gate
        result = PASS.run(graph)
        graph.check()
        assert len(result.changes) == min(limit, 3)
        assert_equal_outputs(parse(text), graph.to_model())


# -- sizes from one input ---------------------------------------------------------------------------------


def test_chains_of_shapes_start_at_one_input() -> None:
    text = """agraph (float[batch,seq] x, float[batch,seq] z) => (float y, float w)
        <int64 i = {1}, int64 k = {0}, int64 one = {1}> {
        a = Relu(x) s = Shape(a) n = Gather(s, i) r = Range(k, n, one)
        b = Add(z, z) t = Shape(b) m = Gather(t, i) q = Range(k, m, one)
        f = Cast<to = 1>(r) g = Cast<to = 1>(q) y = Mul(a, f) w = Mul(b, g)
    }"""
    graph = fold(text)
    assert graph.op_counts()["Shape"] == 1
    assert graph.op_counts()["Gather"] == 1
    assert graph.by_op("Shape")[0].inputs == ("x",)


def test_vectors_of_sizes_are_picked_from_one_table() -> None:
    text = """agraph (float[1,1,1,1] x, float[batch,seq] z) => (float y) <int64[1] one = {1}> {
        s = Shape<start = 1, end = 2>(z) b = Shape<start = 0, end = 1>(z)
        k = Concat<axis = 0>(b, one, s, s) y = Expand(x, k)
    }"""
    graph = fold(text)
    assert graph.op_counts() == {"Shape": 1, "Concat": 1, "Gather": 1, "Expand": 1}


def test_products_of_sizes_are_computed_once() -> None:
    text = """agraph (float[1] x, float[batch,seq] z) => (float y, float w) {
        s = Size(z) i = Constant<value_ints = [-1]>() k = Reshape(s, i) y = Expand(x, k)
        a = Neg(z) t = Size(a) l = Reshape(t, i) w = Expand(x, l)
    }"""
    graph = fold(text)
    assert graph.op_counts() == {"Shape": 1, "Gather": 2, "Mul": 1, "Expand": 2}


def test_sizes_that_no_input_has_start_at_the_first_shape_that_has_them() -> None:
    text = """agraph (float[n,3,h,w] x, float[8,3,3,3] k) => (float y)
    <int64[1] a = {0}, int64[1] b = {3}, int64[2] r = {1, 8}> {
        c = Conv<strides = [2, 2]>(x, k) d = Relu(c) s = Shape(d) i = Cast<to = 6>(s)
        t = Cast<to = 7>(i) o = Constant<value_ints = [4]>() f = Slice(t, a, o) u = Gather(f, b)
        v = Shape(c) p = Gather(v, b) q = Concat<axis = 0>(p, r, u) z = ConstantOfShape(q) y = Add(z, z)
    }"""
    graph = fold(text)
    assert graph.op_counts()["Shape"] == 1
    assert "Cast" not in graph.op_counts()


# -- subgraphs --------------------------------------------------------------------------------------------


def test_inside_a_branch_outer_sizes_are_known() -> None:
    text = """agraph (bool c, float[n,4,6] x) => (float y) {
        z = If(c) <
            then_branch = t () => (float u) {
                s = Shape(x) i = Constant<value_ints = [0]>() a = Gather(s, i)
                m = Constant<value_ints = [-1]>()
                k = Concat<axis = 0>(a, m) u = Reshape(x, k)
            },
            else_branch = e () => (float w) { w = Flatten(x) }
        >
        y = Neg(z)
    }"""
    graph = graph_of(text)
    PASS.run(graph)
    graph.check()
    then = graph.by_op("If")[0].subgraphs["then_branch"]
    assert then.constant(then.by_op("Reshape")[0].inputs[1]).tolist() == [0, 24]  # type: ignore[union-attr]
    assert then.op_counts() == {"Constant": 1, "Reshape": 1}
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": np.ones((3, 4, 6), np.float32)}
        assert_equal_outputs(parse(text), graph.to_model(), inputs=feeds)


def test_sizes_that_change_between_iterations_stay_open() -> None:
    text = """agraph (float[n] x) => (float y) <int64 m = {3}, bool t = {1}> {
        y = Loop <
            body = b (int64 i, bool c, float[g0] g) => (bool d, float[k0] k) {
                d = Identity(c) s = Shape(g) e = ConstantOfShape<value = float[1] {1}>(s)
                k = Concat<axis = 0>(g, e)
            }
        > (m, t, x)
    }"""
    graph = graph_of(text)
    PASS.run(graph)
    graph.check()
    assert_equal_outputs(parse(text), graph.to_model())
