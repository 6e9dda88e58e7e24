"""Branches may have weights and values of one name: each keeps its own."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper
from quantized_layers import weight_matrix

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant._sizes import sizes_of
from graphkit.quant._trial_model import overridable
from graphkit.quant.codes import Array
from graphkit.quant.engine import plan_of, quantize
from graphkit.quant.layers import Layer, find_layers
from graphkit.quant.options import QuantizeOptions
from graphkit.quant.rtn import quantize_matrix
from graphkit.quant.setting import Setting
from graphkit.quant.together import Together
from graphkit.testing import run

OUTPUTS = [("o", "o"), ("then_o", "else_o")]
X = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)


def weights(branch: str) -> Array:
    made: Array = np.random.default_rng(len(branch)).standard_normal((64, 32)).astype(np.float32)
    return made if branch == "then" else made * 3 + 1


def branching(outputs: tuple[str, str], *, turned: bool = False, outer: bool = False) -> Model:
    """An If whose branches multiply with a `W` of their own (`outer`: with the one outside, through views of one
    name), in nodes of one name."""

    def branch(name: str, out: str) -> helper.GraphProto:
        nodes = [helper.make_node("MatMul", ["x", "t" if turned else "W"], [out], name="mm")]
        weight = weights("then" if outer else f"{name}")
        if turned:
            nodes.insert(0, helper.make_node("Transpose", ["W"], ["t"], perm=[1, 0]))
        held = [] if outer else [numpy_helper.from_array(np.ascontiguousarray(weight.T) if turned else weight, "W")]
        return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, 1, ["n", 32])], held)

    choice = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("then", outputs[0]),
        else_branch=branch("else_", outputs[1]),
    )
    outside = [numpy_helper.from_array(weights("then").T if turned else weights("then"), "W")] if outer else []
    graph = helper.make_graph(
        [choice],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 64]), helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("y", 1, ["n", 32])],
        outside,
    )
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def expected(branch: str) -> Array:
    """The output of a branch whose weights are rounded to 8 bits."""
    codes = quantize_matrix(np.ascontiguousarray(weights(branch).T), 8)
    return np.asarray(X @ codes.values().T)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_each_branch_gets_the_codes_of_its_own_weight(outputs: tuple[str, str], turned: bool) -> None:
    model = branching(outputs, turned=turned)
    done = quantize(model, QuantizeOptions())
    assert len({record.name for record in done.records}) == len(done.records) == 2
    for choice, branch in ((True, "then"), (False, "else_")):
        found = run(done.model, {"x": X, "c": np.array(choice)})["y"]
        np.testing.assert_allclose(found, expected(branch), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_a_weight_outside_is_one_layer_of_both(outputs: tuple[str, str], turned: bool) -> None:
    done = quantize(branching(outputs, turned=turned, outer=True), QuantizeOptions())
    (record,) = done.records
    assert record.nodes == 2
    for choice in (True, False):
        found = run(done.model, {"x": X, "c": np.array(choice)})["y"]
        np.testing.assert_allclose(found, expected("then"), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_trials_override_one_branch_at_a_time(outputs: tuple[str, str], turned: bool) -> None:
    model = branching(outputs, turned=turned)
    layers = find_layers(Graph.of(model))[0]
    trial, names = overridable(model, layers)
    graph = Graph.of(trial)
    for layer, branch in zip(layers, ("else_", "then"), strict=True):
        np.testing.assert_array_equal(weight_matrix(Graph.of(model), layer), weights(branch).T)
        np.testing.assert_array_equal(layer.matrix(graph.initializers[names[layer.name]].array()), weights(branch).T)
    sample = {"x": X, "c": np.array(True)}
    with Together(model, layers, [sample], executor="threads:1") as whole:
        assert whole.error({layers[0].name: Setting(2)}) == 0
        assert whole.error({layers[1].name: Setting(2)}) > 0.1


def test_bytes_count_both() -> None:
    model = branching(OUTPUTS[0])
    plan = plan_of(Graph.of(model))
    sizes = sizes_of(model, plan, plan.layers)
    assert (sizes.float_bytes, sizes.fixed) == (2 * 64 * 32 * 4, 0)


def test_names_that_nodes_share_with_outputs_of_others() -> None:
    names = [("a", "b"), ("a", "c"), ("b", "d")]  # of the node and of its output
    inputs = ["x", "b", "c"]
    nodes = [
        helper.make_node("MatMul", [source, f"w{i}"], [out], name=name)
        for i, (source, (name, out)) in enumerate(zip(inputs, names, strict=True))
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [2, 64])],
        [helper.make_tensor_value_info("d", 1, [2, 64])],
        [numpy_helper.from_array(np.eye(64, dtype=np.float32), f"w{i}") for i in range(3)],
    )
    model = Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    layers: list[Layer] = find_layers(Graph.of(model))[0]
    assert [layer.name for layer in layers] == ["b#2", "c", "b"]
    assert len(quantize(model).records) == 3
