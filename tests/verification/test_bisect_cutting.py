"""A region as a model of its own computes what it does in the whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit import shapes
from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.testing import graph_of, parse
from graphkit.verification.bisect import _inside, regions
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.cutting import body_region, cut, doubled, doubled_feeds, feeds_of

CHAIN = """
    g (float[N,S,4] x) => (float[N,S,4] y) <float[4] w = {1, 2, 3, 4}> {
        a = Relu(x) b = Mul(a, w) c = Tanh(b) d = Add(c, a) y = Neg(d)
    }
"""
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
LOOP = """
    g (float[2] x, float[2] z) => (float[2] y) <int64 n = {3}, bool t = {1}> {
        [turn] y = Loop(n, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w) {
            d = Identity(c) s = Add(v, z) w = Tanh(s)
        }>
    }
"""
SCAN = """
    g (float[2] x, float[3,2] s) => (float[2] y, float[3,2] all) {
        [scan] y, all = Scan(x, s) <
            num_scan_inputs = 1,
            body = b (float[2] v, float[2] e) => (float[2] w, float[2] o) { w = Add(v, e) o = Neg(w) }>
    }
"""


def _typed(text: str) -> tuple[Model, Graph]:
    model = parse(text)
    graph = Graph.of(model)
    shapes.infer(graph)
    return model, graph


def _run(model: Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    onnx.checker.check_model(model.materialized())
    with Session(model) as session:
        return session.run(feeds)


@pytest.mark.parametrize("anchors", [(), ("a",), ("a", "b"), ("c", "a")])
def test_a_cut_computes_what_the_whole_does(anchors: tuple[str, ...]) -> None:
    model, graph = _typed(CHAIN)
    region = regions.between(graph, ["d"], anchors)
    values = Truth(model, {"x": X}).of([*region.inputs, "d"])
    made = _run(cut(region, values), feeds_of(region, values))
    np.testing.assert_array_equal(made["d"], values["d"])


def test_sizes_stay_dynamic_and_exposed_values_come_first() -> None:
    model, graph = _typed(CHAIN)
    region = regions.between(graph, ["d"], ["a"])
    values = Truth(model, {"x": X}).of(["a", "b", "c", "d"])
    made = cut(region, values, expose=("b", "c"))
    assert [output.name for output in made.proto.graph.output] == ["b", "c", "d"]
    assert [dim.dim_param for dim in made.proto.graph.input[0].type.tensor_type.shape.dim] == ["N", "S", ""]


def test_types_that_inference_lacks_are_read_from_the_reference() -> None:
    model = parse(CHAIN)
    region = regions.between(Graph.of(model), ["d"], ["a"])
    values = Truth(model, {"x": X}).of(["a", "d"])
    input_ = cut(region, values).proto.graph.input[0]
    assert input_.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    assert len(input_.type.tensor_type.shape.dim) == 3


def test_what_is_folded_is_a_constant() -> None:
    model, graph = _typed(
        "g (float[N,2] x) => (float[N,2] y) <int64[1] s = {2}> { c = ConstantOfShape(s) y = Add(x, c) }"
    )
    region = regions.between(graph, ["y"], ["c"])
    values = Truth(model, {"x": X[0, :, :2]}).of(["x", "c", "y"])
    made = cut(region, values, fold={"c"})
    feeds = feeds_of(region, values, fold={"c"})
    assert list(feeds) == ["x"]
    np.testing.assert_array_equal(_run(made, feeds)["y"], values["y"])


def test_a_region_that_reads_nothing_still_has_an_input() -> None:
    model, graph = _typed("g (float[2] x) => (float[2] y) <int64[1] s = {2}> { c = ConstantOfShape(s) y = Add(x, c) }")
    region = regions.between(graph, ["c"])
    made = _run(cut(region, {}), feeds_of(region, {}))
    np.testing.assert_array_equal(made["c"], np.zeros(2))
    assert model.proto.graph.input[0].name == "x"


def test_a_missing_reference_is_an_input_error_and_an_empty_region_a_model_error() -> None:
    graph = graph_of(CHAIN)
    region = regions.between(graph, ["d"], ["a", "c"])
    with pytest.raises(UsageError, match="no reference for"):
        feeds_of(region, {"c": X})
    with pytest.raises(ModelError, match="no nodes"):
        cut(regions.of_nodes(graph, []), {})


def test_the_body_of_an_if_takes_what_it_captures() -> None:
    model, graph = _typed("""
        g (float[4] x, bool b) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {
            z = Relu(x)
            [pick] y = If(b) <
                then_branch = t () => (float[4] p) { c = Mul(z, w) p = Tanh(c) },
                else_branch = e () => (float[4] q) { q = Neg(z) }>
        }
    """)
    node = graph.by_op("If")[0]
    for chosen, branch in ((True, "then_branch"), (False, "else_branch")):
        truth = Truth(model, {"x": X[0, 0], "b": np.array(chosen)})
        name, body, values = _inside.entered(graph, node, truth)
        assert (name, set(values)) == (branch, {"z"})
        assert body is not None
        region = body_region(body)
        made = _run(cut(region, values), feeds_of(region, values))
        np.testing.assert_array_equal(made[body.outputs[0]], truth.of(["y"])["y"])


def test_the_body_of_a_loop_is_its_first_round() -> None:
    model, graph = _typed(LOOP)
    feeds = {"x": np.float32([0.1, 0.2]), "z": np.float32([1, 2])}
    _, body, values = _inside.entered(graph, graph.by_op("Loop")[0], Truth(model, feeds))
    assert body is not None
    made = _inside.body_truth(body, values).of(["w"])
    np.testing.assert_allclose(made["w"], np.tanh(feeds["x"] + feeds["z"]), rtol=1e-6)


def test_the_body_of_a_scan_reads_the_first_slices() -> None:
    model, graph = _typed(SCAN)
    feeds = {"x": np.float32([1, 2]), "s": np.arange(6, dtype=np.float32).reshape(3, 2)}
    _, body, values = _inside.entered(graph, graph.by_op("Scan")[0], Truth(model, feeds))
    assert body is not None
    np.testing.assert_array_equal(_inside.body_truth(body, values).of(["o"])["o"], [-1, -3])


def test_a_node_without_a_body_is_not_entered() -> None:
    model, graph = _typed(CHAIN)
    assert _inside.entered(graph, next(iter(graph.nodes)), Truth(model, {"x": X})) == ("", None, {})


def test_doubled_computes_in_float64() -> None:
    model = parse("""
        g (float[N] x) => (float[N] y) <float[1] w = {0.1}> {
            c = Constant<value_float = 0.1>() d = Cast<to = 1>(c) s = Shape(x) z = ConstantOfShape(s)
            a = Mul(x, w) b = Add(a, d) y = Add(b, z)
        }
    """)
    feeds = {"x": np.float32([1, 3])}
    with Session(doubled(model)) as session:
        made = session.run(doubled_feeds(feeds))["y"]
    assert made.dtype == np.float64
    tenth = np.float64(np.float32(0.1))
    np.testing.assert_allclose(made, feeds["x"].astype(np.float64) * tenth + tenth, rtol=1e-15)
