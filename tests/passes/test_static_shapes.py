"""`static-shapes`: bindings of input sizes, what they settle, and what they cannot."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.node import Dim
from graphkit.options import build
from graphkit.passes.static_shapes import StaticShapes
from graphkit.rewrite import PassResult
from graphkit.testing import assert_equal_outputs, assert_unchanged, graph_of, parse, run

HEADS = """agraph (float[batch,seq,8] x, float[batch,seq,8] z) => (float[batch,heads,seq,4] y)
<int64[2] r = {-1, 4}> {
    s = Shape<start = 0, end = 2>(x) k = Concat<axis = 0>(s, r) v = Reshape(z, k)
    y = Transpose<perm = [0, 2, 1, 3]>(v)
}"""


def bind(text: str, **dims: str) -> tuple[Graph, PassResult]:
    """The graph after binding, structurally checked, and the pass's result."""
    return bind_all(text, tuple(dims.items()))


def bind_all(text: str, dims: tuple[tuple[str, str], ...]) -> tuple[Graph, PassResult]:
    """The same with keys of any form."""
    graph = graph_of(text)
    result = StaticShapes(dims).run(graph)
    graph.check()
    return graph, result


def declared(graph: Graph, value: str) -> tuple[Dim, ...]:
    """Declared shape of an input or output."""
    info = {**graph.input_infos, **graph.output_infos}[value]
    return tuple(dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim)


def test_names_bind_all_inputs() -> None:
    graph, result = bind(HEADS, batch="2", seq="3")
    assert declared(graph, "x") == declared(graph, "z") == (2, 3, 8)
    assert declared(graph, "y") == (2, 2, 3, 4)
    assert graph.op_counts() == {"Reshape": 1, "Transpose": 1}
    assert result.counters["bound input"] == 2
    assert not [note for note in result.notes if "dynamic" in note]
    feeds = {name: np.ones((2, 3, 8), np.float32) for name in "xz"}
    assert_equal_outputs(parse(HEADS), graph.to_model(), inputs=feeds)


@pytest.mark.parametrize(
    "dims",
    [
        (("x[0]", "2"), ("x[1]", "3")),
        (("x[-3]", "2"), ("z[-2]", "3")),
        (("x", "2x3x8"),),
        (("z", "2,3,8"),),
        (("x", "[2, 3, 8]"),),
        (("batch", "2"), ("z", "?x3x8")),
        (("x", "2x3x8"), ("batch", "2")),
    ],
)
def test_every_way_to_name_a_size(dims: tuple[tuple[str, str], ...]) -> None:
    graph, _ = bind_all(HEADS, dims)
    assert declared(graph, "x") == declared(graph, "z") == (2, 3, 8)


def test_what_is_not_bound_stays_dynamic_and_is_noted() -> None:
    graph, result = bind(HEADS, batch="2")
    assert declared(graph, "x") == (2, "seq", 8)
    assert "still dynamic: x[1] (seq), z[1] (seq)" in result.notes
    assert declared(graph, "y") == (2, 2, "seq", 4)


def test_nothing_is_bound_without_options() -> None:
    assert_unchanged(StaticShapes(), HEADS)


def test_options_come_from_text() -> None:
    assert build(StaticShapes, [("batch", "2"), ("x[1]", "3")]) == StaticShapes((("batch", "2"), ("x[1]", "3")))


def test_fixed_sizes_change_when_named_by_place() -> None:
    text = "agraph (float[10,3,s] x) => (float[10,3,s] y) { y = Relu(x) }"
    graph, result = bind_all(text, (("x", "1x3x4"),))
    assert declared(graph, "x") == declared(graph, "y") == (1, 3, 4)
    assert "input 'x' axis 0 was declared 10 and is 1 now, as asked" in result.notes
    assert run(graph.to_model(), {"x": np.zeros((1, 3, 4), np.float32)})["y"].shape == (1, 3, 4)


def test_inputs_without_a_shape_take_a_whole_one() -> None:
    text = "agraph (float[] x) => (float y) { y = Relu(x) }"
    model = parse(text)
    model.proto.graph.input[0].type.tensor_type.ClearField("shape")
    graph = Graph.of(model)
    StaticShapes((("x", "2x3"),)).run(graph)
    assert declared(graph, "x") == (2, 3)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ((("bach", "1"),), "did you mean 'batch'"),
        ((("w[0]", "1"),), "'w' is no input"),
        ((("batch", "0"),), "from 1 to"),
        ((("batch", "-1"),), "from 1 to"),
        ((("batch", "two"),), "from 1 to"),
        ((("x", "2x3"),), "gives 2 sizes, but the input has 3 axes"),
        ((("x[3]", "2"),), "has 3 axes"),
        ((("x[0]", "2"), ("z[0]", "3")), "it is 2 already"),
        ((("x[2]", "2"), ("x[-1]", "3")), "is 2 already"),
    ],
)
def test_wrong_bindings(dims: tuple[tuple[str, str], ...], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("[", r"\[")):
        bind_all(HEADS, dims)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        bind_all(HEADS, (("nothing", "1"),))
    assert "batch, seq" in str(caught.value.hint)
    assert "x float[batch,seq,8]" in str(caught.value.hint)


def test_shapes_that_depend_on_data_are_noted() -> None:
    text = "agraph (float[n,4] x) => (int64[2,k] y, float[n,4] z) { a = NonZero(x) y = Neg(a) z = Relu(x) }"
    graph, result = bind(text, n="3")
    notes = [note for note in result.notes if "depends on" in note]
    assert notes == ["the output shape of NonZero 'a' depends on the number of nonzero elements"]
    assert declared(graph, "z") == (3, 4)
    assert declared(graph, "y") == (2, "k")


def test_stale_declarations_of_inner_values_go() -> None:
    from onnx import helper

    model = parse("agraph (float[n,4] x) => (float[m,4] y) { a = NonZero(x) c = Cast<to = 1>(a) y = Transpose(c) }")
    model.proto.graph.value_info.append(helper.make_tensor_value_info("c", 1, ["n", 7]))
    graph = Graph.of(model)
    StaticShapes((("n", "3"),)).run(graph)
    infos = {info.name: info for info in graph.to_model().proto.graph.value_info}
    assert infos["c"].type.tensor_type.shape.dim[0].dim_value == 2


def test_loops_of_sizes_and_ranges_are_computed() -> None:
    text = """agraph (float[batch,seq] x) => (float[batch,seq] y) <int64 i = {1}, int64 zero = {0}> {
        s = Shape(x) n = Gather(s, i) r = Range(zero, n, i) c = Cast<to = 1>(r) e = Cos(c) y = Mul(x, e)
    }"""
    graph, _ = bind(text, batch="1", seq="400")
    assert graph.op_counts() == {"Mul": 1}
    feeds = {"x": np.ones((1, 400), np.float32)}
    assert_equal_outputs(parse(text), graph.to_model(), inputs=feeds)


def test_the_gate_stops_before_folding() -> None:
    graph = graph_of(HEADS)
    graph.gate = lambda node, what: False
    assert not StaticShapes((("batch", "2"),)).run(graph).modified
    assert declared(graph, "x") == ("batch", "seq", 8)
