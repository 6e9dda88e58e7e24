"""`infer-shapes` and the evaluator under it: symbolic sizes, control flow, and what is not believed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Dim
from graphkit.passes.infer_shapes import InferShapes
from graphkit.symbolic.evaluate import evaluate
from graphkit.symbolic.symbols import Symbols
from graphkit.testing import graph_of, parse, run


def shape_of(text: str, value: str = "y", opset: int = 18) -> tuple[Dim, ...] | None:
    """Inferred shape of a value."""
    return graph_of(text, opset=opset).shape(value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s = Shape(x) y = Reshape(x, s)", ("n", 4)),
        ("y = Concat<axis = 0>(x, x)", ("2*n", 4)),
        ("y = Flatten<axis = 0>(x)", (1, "4*n")),
        ("c = Constant<value_ints = [1]>() y = Slice(x, c, m, o)", ("max(0, n - 1)", 4)),
        ("c = Constant<value_ints = [2, -1]>() y = Reshape(x, c)", (2, "2*n")),
        ("c = Constant<value_ints = [-1, 2]>() y = Reshape(x, c)", ("2*n", 2)),
        ("t = Constant<value_ints = [3, 1]>() y = Tile(x, t)", ("3*n", 4)),
        ("s = Shape(x) d = Concat<axis = 0>(five, s) y = Expand(x, d)", (5, "n", 4)),
        ("y = NonZero(x)", (2, "y[1]")),
        ("p = NonZero(x) y = Transpose(p)", ("p[1]", 2)),
    ],
)  # fmt: skip
def test_sizes_are_expressions_of_input_sizes(body: str, expected: tuple[Dim, ...]) -> None:
    weights = "int64[1] m = {9223372036854775807}, int64[1] o = {0}, int64[1] five = {5}"
    assert shape_of(f"agraph (float[n,4] x) => (float y) <{weights}> {{ {body} }}") == expected


def test_equal_sizes_are_recognized_through_broadcasting() -> None:
    text = """agraph (float[b,seq,8] x, float[1,128,8] w) => (float[b,seq,8] y)
    <int64[1] z = {0}, int64[1] o = {1}> {
        s = Shape(x) l = Gather(s, o) p = Slice(w, z, l, o) y = Add(x, p)
    }"""
    graph = graph_of(text)
    assert graph.shape("p") == (1, "min(128, seq)", 8)
    assert graph.shape("y") == ("b", "seq", 8)  # a size that is cut to 128 broadcasts with itself only


def test_names_of_inputs_that_look_like_expressions_are_names() -> None:
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node("Concat", ["x", "x"], ["y"], axis=0)
    proto = onnx.helper.make_model(
        onnx.helper.make_graph([node], "g", [info("x", 1, ["n"]), info("z", 1, ["2*n"])], [info("y", 1, ["m"])])
    )
    graph = Graph.of(Model.from_proto(proto))
    shapes.infer(graph)
    assert graph.shape("z") == ("2*n",)
    assert graph.shape("y") == ("(2*n)",)


def test_declared_shapes_of_inner_values_are_not_believed() -> None:
    model = parse("agraph (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Relu(a) }")
    model.proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", 1, [7, 4]))
    graph = Graph.of(model)
    InferShapes().run(graph)
    assert graph.shape("a") == ("n", 4)


@pytest.mark.parametrize(("declared", "corrected"), [("3,4", "n"), ("n,5", "n"), ("k,4", "k")])
def test_wrong_declared_outputs_are_corrected(declared: str, corrected: str) -> None:
    model = parse(f"agraph (float[n,4] x) => (float[{declared}] y) {{ y = Relu(x) }}")
    graph = Graph.of(model)
    result = InferShapes().run(graph)
    dims = graph.output_infos["y"].type.tensor_type.shape.dim
    assert (dims[0].dim_param, dims[1].dim_value) == (corrected, 4)
    assert bool(result.notes) == (corrected == "n")
    run(graph.to_model(), {"x": np.zeros((5, 4), np.float32)})


def test_declared_rank_and_type_are_kept_and_noted() -> None:
    graph = Graph.of(parse("agraph (float[n,4] x) => (int64[n] y) { y = Relu(x) }"))
    result = InferShapes().run(graph)
    assert graph.output_infos["y"].type.tensor_type.elem_type == onnx.TensorProto.INT64
    assert "left as declared" in result.notes[0]


def test_modified_only_when_something_became_known() -> None:
    graph = Graph.of(parse("agraph (float[n,4] x) => (float[n,4] y) { a = Relu(x) y = Relu(a) }"))
    first, second = InferShapes().run(graph), InferShapes().run(graph)
    assert first.modified
    assert not second.modified
    assert first.counters["typed"] == second.counters["typed"] == 2


def test_if_knows_what_both_branches_agree_on() -> None:
    text = """agraph (bool c, float[n,4] x) => (float y) {
        y = If(c) <
            then_branch = t () => (float a) { a = Concat<axis = 1>(x, x) },
            else_branch = e () => (float b) { s = Concat<axis = 1>(x, x) b = Concat<axis = 0>(s, s) }
        >
    }"""
    assert shape_of(text) == ("y[0]", 8)


def test_loop_sizes_that_change_are_unknown() -> None:
    text = """agraph (float[n,4] x, int64 m) => (float y, float z) <bool t = {1}> {
        y, z, w = Loop(m, t, x, x) <
            body = b (int64 i, bool c, float g, float h) => (bool d, float k, float l, float o) {
                d = Identity(c) k = Concat<axis = 0>(g, h) l = Relu(h) o = Relu(h)
            }
        >
    }"""
    graph = graph_of(text)
    assert graph.shape("y") == ("y[0]", 4)
    assert graph.shape("z") == ("n", 4)
    assert graph.shape("w") == ("w[0]", "n", 4)


def test_scan_slices_and_stacks() -> None:
    text = """agraph (float[4] s, float[n,4] x) => (float[4] y, float[n,4] z) {
        y, z = Scan <
            num_scan_inputs = 1,
            body = b (float[4] p, float[4] q) => (float[4] r, float[4] t) { r = Add(p, q) t = Relu(r) }
        > (s, x)
    }"""
    graph = graph_of(text)
    assert graph.shape("y") == (4,)
    assert graph.shape("z") == ("z[0]", 4)


def test_names_made_in_sibling_branches_are_told_apart() -> None:
    text = """agraph (bool c, float[n] x) => (int64 y) {
        y = If(c) <
            then_branch = t () => (int64 a) { v = NonZero(x) a = Identity(v) },
            else_branch = e () => (int64 b) { u = Relu(x) v = NonZero(u) b = Identity(v) }
        >
    }"""
    assert shape_of(text) == (1, "y[1]")


def test_local_functions_have_types() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "local": 1]>
    agraph (float[n,4] x) => (float[n,8] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["": 18]> twice (a) => (b) { b = Concat<axis = 1>(a, a) }"""
    graph = Graph.of(parse(text))
    shapes.infer(graph)
    assert graph.shape("y") == ("n", 8)


def test_unknown_operators_do_not_stop_inference() -> None:
    text = "agraph (float[n,4] x) => (float[n,4] y, float z) { y = Relu(x) z = other.Strange(x) }"
    graph = graph_of(text, imports={"other": 1})
    assert graph.shape("y") == ("n", 4)
    assert graph.type("z") is None


def test_invalid_nodes_do_not_stop_inference() -> None:
    text = (
        "agraph (float[n,4] x) => (float[n,4] y) { z = Concat<axis = 5>(x, x) w = "
        "Transpose<perm = [3, 1]>(x) y = Relu(x) }"
    )
    assert shape_of(text) == ("n", 4)


def test_sequences_pass_through() -> None:
    text = "agraph (float[n,4] x) => (float[m,4] y) { s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0>(s) }"
    assert shape_of(text) == ("y[0]", 4)


def test_sequences_of_different_types_are_told_apart() -> None:
    text = """agraph (float[n,4] x, int64[n,5] z, int64 i) => (float[n,4] y, int64[n,5] w) {
        s = SequenceConstruct(x) t = SequenceConstruct(z) u = SequenceConstruct(x)
        y = SequenceAt(s, i) w = SequenceAt(t, i) v = SequenceAt(u, i)
    }"""
    graph = graph_of(text)
    assert [str(graph.type(value)) for value in "ywv"] == ["float[n,4]", "int64[n,5]", "float[n,4]"]


@pytest.mark.parametrize("body", ["y = Squeeze(x, a)", "y = ReduceSum<keepdims = 0>(x, a)"])
def test_axes_that_depend_on_data(body: str) -> None:
    shape = shape_of(f"agraph (int64[1,1] x, int64[k] a) => (int64 y) {{ {body} }}")
    assert shape is None or None not in shape


def test_explicit_broadcasting_of_old_operator_sets() -> None:
    text = "agraph (float[n,3,s] x, float[3] b) => (float[n,3,s] y) { y = Add<broadcast = 1, axis = 1>(x, b) }"
    assert shape_of(text, opset=6) == ("n", 3, "s")


def test_resize_reads_float_scales() -> None:
    text = "agraph (float[1,3,8,8] x) => (float[1,3,16,16] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }"
    assert shape_of(text) == (1, 3, 16, 16)


def test_layers_that_repeat_are_inferred_once() -> None:
    body = " ".join(f"v{i + 1} = Relu(v{i})" for i in range(200))
    graph = graph_of(f"agraph (float[n,4] v0) => (float[n,4] v200) {{ {body} }}", infer=False)
    assert len(evaluate(graph)._memo) == 1


# -- arithmetic on sizes ----------------------------------------------------------------------------------


def test_products_and_quotients_simplify() -> None:
    symbols = Symbols()
    b, s = symbols.name("b"), symbols.name("s")
    area = symbols.mul(b, s)
    assert symbols.div(area, b) == "s"
    assert symbols.div(symbols.mul(area, 64), symbols.mul(b, 16)) == "4*s"
    assert symbols.sub(symbols.add(s, 1), s) == 1
    assert symbols.mul(s, 0) == 0
    assert symbols.div(symbols.add(s, 1), 2) == "(s + 1)//(2)"
    assert symbols.div(s, 0) is None


def test_what_is_certain_about_sizes() -> None:
    symbols = Symbols()
    s = symbols.name("s")
    more = symbols.add(s, 1)
    assert symbols.equal(s, -1) is False
    assert symbols.equal(s, 1) is None
    assert symbols.less(s, more) is True
    assert symbols.minimum(s, more) == s
    assert symbols.maximum(symbols.sub(s, 1), 0) == "max(0, s - 1)"
    assert symbols.nonnegative(symbols.maximum(symbols.sub(s, 1), 0))
    assert not symbols.nonnegative(symbols.sub(s, 1))
    assert symbols.value(symbols.maximum(symbols.sub(s, 1), 0), {"s": 7}) == 6
