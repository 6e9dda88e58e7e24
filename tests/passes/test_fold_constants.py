"""`fold-constants`: what is folded, with onnxruntime's results, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.fold_constants import FoldConstants
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse, run

PASS = FoldConstants()


def fold(text: str, pass_: FoldConstants = PASS, opset: int = 18) -> Graph:
    """The graph after the pass, structurally checked."""
    graph = graph_of(text, opset=opset)
    pass_.run(graph)
    graph.check()
    return graph


def test_a_region_is_folded_as_one() -> None:
    result = assert_rewrites(
        PASS,
        "agraph (float[n,2] x) => (float[n,2] y) <float[2] w = {4, 9}> { a = Sqrt(w) b = "
        "Add(a, a) c = Mul(b, a) y = Add(x, c) }",
        "agraph (float[n,2] x) => (float[n,2] y) <float[2] c = {8, 18}> { y = Add(x, c) }",
    )
    assert result.counters == {"folded": 1}


def test_values_used_inside_and_outside_keep_their_names() -> None:
    graph = fold(
        "agraph (float[2] x) => (float[2] y, float[2] z) <float[2] w = {4, 9}> { a = Sqrt(w) "
        "b = Neg(a) y = Add(x, a) z = Add(x, b) }"
    )
    np.testing.assert_array_equal(graph.constant("a"), [2, 3])
    np.testing.assert_array_equal(graph.constant("b"), [-2, -3])
    assert len(graph) == 2


def test_constant_nodes_become_initializers() -> None:
    graph = fold("agraph (float[2] x) => (float[2] y) { c = Constant<value_floats = [1.0, 2.0]>() y = Add(x, c) }")
    assert "c" in graph.initializers
    assert len(graph) == 1


def test_empty_value_ints_stay_integers() -> None:
    model = parse("agraph (float[1] x) => (float y) { e = Constant<value_ints = [1]>() y = Reshape(x, e) }")
    del model.proto.graph.node[0].attribute[0].ints[:]
    graph = Graph.of(model)
    PASS.run(graph)
    empty = graph.constant("e")
    assert empty is not None
    assert (str(empty.dtype), empty.shape) == ("int64", (0,))
    assert_equal_outputs(model, graph.to_model())


@pytest.mark.parametrize("shape", ["value_ints = [3]", "value_ints = [2, 3]"])
def test_constant_of_shape(shape: str) -> None:
    graph = fold(
        f"agraph (float[2,3] x) => (float[2,3] y) {{ s = Constant<{shape}>() "
        "c = ConstantOfShape<value = float[1] {2}>(s) y = Add(x, c) }"
    )
    assert len(graph) == 1
    assert (np.asarray(graph.constant("c")) == 2).all()


def test_constant_of_empty_shape_is_a_scalar() -> None:
    graph = fold(
        "agraph (bool[2] x) => (bool[2] y) <int64[0] s = {}> { c = ConstantOfShape<value = "
        "bool[1] {1}>(s) y = And(x, c) }"
    )
    constant = graph.constant("c")
    assert constant is not None
    assert constant.shape == ()
    assert constant.dtype == np.bool_
    assert bool(constant)


def test_results_of_every_type() -> None:
    graph = fold(
        "agraph (float16[2] x) => (float16[2] y, string[1] z) "
        '<float16[2] w = {15360, 16384}, string[1] s = {"a"}> '
        "{ h = Exp(w) y = Add(x, h) z = Identity(s) }"
    )
    assert np.asarray(graph.constant("h")).dtype == np.float16
    np.testing.assert_array_equal(graph.constant("h"), np.exp(np.array([1, 2], np.float16)))
    assert list(np.asarray(graph.constant("z"))) in (["a"], [b"a"])


def test_bfloat16_goes_through_the_reference_or_is_refused() -> None:
    graph = graph_of(
        "agraph (bfloat16[2] x) => (bfloat16[2] y) <bfloat16[2] w = {16256, 16384}> { a = Neg(w) y = Add(x, a) }"
    )
    result = PASS.run(graph)
    constant = graph.constant("a")
    if constant is None:
        assert "cannot run" in result.refusals[0].reason
    else:
        np.testing.assert_array_equal(constant.astype(np.float32), [-1, -2])


def test_a_node_that_cannot_run_does_not_keep_the_others() -> None:
    text = (
        "agraph (float[2] x) => (float[2] y, float[3] z) <float[2] w = {1, 2}, int64[1] s = {3}> "
        "{ b = Reshape(w, s) a = Exp(w) y = Add(x, a) z = Relu(b) }"
    )
    graph = graph_of(text)
    result = PASS.run(graph)
    graph.check()
    assert graph.is_constant("a")
    assert not graph.is_constant("b")
    assert any("cannot run" in refusal.reason for refusal in result.refusals)


def test_large_weights_are_fed_and_transposed() -> None:
    weight = np.arange(300 * 200, dtype=np.float32).reshape(300, 200)
    proto = onnx.helper.make_model(
        onnx.helper.make_graph(
            [
                onnx.helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
                onnx.helper.make_node("Mul", ["t", "k"], ["u"]),
                onnx.helper.make_node("MatMul", ["x", "u"], ["y"]),
            ],
            "g",
            [onnx.helper.make_tensor_value_info("x", 1, ["n", 200])],
            [onnx.helper.make_tensor_value_info("y", 1, ["n", 300])],
            [
                onnx.numpy_helper.from_array(weight, "w"),
                onnx.numpy_helper.from_array(np.array(0.5, np.float32), "k"),
            ],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 18)],
        ir_version=8,
    )
    model = Model.from_proto(proto)
    graph = Graph.of(model)
    PASS.run(graph)
    assert len(graph) == 1
    np.testing.assert_array_equal(graph.constant("u"), weight.T * 0.5)
    assert_equal_outputs(model, graph.to_model())


def test_large_results_of_small_inputs_are_refused() -> None:
    text = (
        "agraph (float[1000] x) => (float[1000] y) { s = Constant<value_ints = [1000]>() c = "
        "ConstantOfShape(s) y = Add(x, c) }"
    )
    graph = graph_of(text)
    result = FoldConstants(max_bytes=1000).run(graph)
    assert not graph.is_constant("c")
    assert "more than max_bytes" in result.refusals[0].reason
    assert FoldConstants(max_bytes=4000).run(graph).modified
    assert graph.is_constant("c")


def test_large_results_of_larger_inputs_are_folded() -> None:
    text = (
        "agraph (float[2] x) => (float[2] y) <float[2,2] w = {1, 2, 3, 4}> { a = "
        "ReduceSum<keepdims = 0>(w, o) y = Add(x, a) }"
    )
    text = text.replace("w = {1, 2, 3, 4}>", "w = {1, 2, 3, 4}, int64[1] o = {0}>")
    assert fold(text, FoldConstants(max_bytes=1)).is_constant("a")


def test_dequantize_linear_is_kept_unless_asked() -> None:
    text = (
        "agraph (float[2] x) => (float[2] y) <int8[2] q = {1, 2}, float s = {0.5}, int8 z = {0}> "
        "{ w = DequantizeLinear(q, s, z) t = Neg(w) y = Add(x, t) }"
    )
    assert_unchanged(PASS, text, refuses="undo a quantization")
    np.testing.assert_array_equal(fold(text, FoldConstants(fold_dequantize=True)).constant("t"), [-0.5, -1])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = RandomNormalLike(w) y = Add(x, a)", "random"),
        ("a = Dropout(w, r, t) y = Add(x, a)", "training"),
        ("a = other.Strange(w) y = Add(x, a)", "domain 'other'"),
    ],
)
def test_refusals(body: str, reason: str) -> None:
    weights = "float[2] w = {1, 2}, float r = {0.5}, bool t = {1}"
    text = f"agraph (float[2] x) => (float[2] y) <{weights}> {{ {body} }}"
    assert_unchanged(PASS, text, refuses=reason, imports={"other": 1})


def test_nodes_without_inputs_are_not_folded() -> None:
    assert_unchanged(PASS, "agraph (float[2] x) => (float[2] y) { a = RandomNormal<shape = [2]>() y = Add(x, a) }")


def test_inputs_with_a_default_are_not_constant() -> None:
    model = parse(
        "agraph (float[2] x) => (float[2] y) { a = Neg(w) y = Add(x, a) }".replace(
            "float[2] x)", "float[2] x, float[2] w)"
        )
    )
    model.proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "w"))
    graph = Graph.of(model)
    assert not PASS.run(graph).modified


def test_unused_constant_nodes_are_left_to_cleanup() -> None:
    assert_unchanged(PASS, "agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Neg(w) y = Neg(x) }")


def test_several_outputs_of_one_node() -> None:
    graph = fold(
        "agraph (float[2] x) => (float[2] y, float[2] z) <float[4] w = {1, 2, 3, 4}> "
        "{ a, b = Split<num_outputs = 2>(w) c = Neg(a) y = Add(x, c) z = Add(x, b) }"
    )
    assert len(graph) == 2
    np.testing.assert_array_equal(graph.constant("b"), [3, 4])


def test_a_constant_output_stays_an_output() -> None:
    graph = fold("agraph (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1, 2}> { y = Neg(x) z = Neg(w) }")
    assert graph.outputs == ["y", "z"]
    np.testing.assert_array_equal(run(graph.to_model(), {"x": np.zeros(2, np.float32)})["z"], [-1, -2])


def test_the_gate_counts_and_stops() -> None:
    text = (
        "agraph (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { a = Neg(w) b = Add(x, a) "
        "c = Exp(w) y = Mul(b, c) }"
    )
    graph = graph_of(text)
    asked: list[str] = []

    def gate(node: str, what: str) -> bool:
        asked.append(what)
        return len(asked) < 2

    graph.gate = gate
    result = PASS.run(graph)
    graph.check()
    assert len(result.changes) == 1
    assert asked == ["fold Exp", "fold Neg"]
    assert_equal_outputs(parse(text), graph.to_model())
