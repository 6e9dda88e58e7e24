"""The graph as onnx-graphsurgeon and networkx see it."""

from __future__ import annotations

import sys

import networkx
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from onnx import ModelProto

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.testing import parse, run
from tests.random_models import feeds, models


def test_graphsurgeon_there_and_back() -> None:
    graph = Graph.of(
        parse(
            """g (float[N,4] x, bool c) => (float[N,4] y) {
                k = Constant <value_float = 2.0> ()
                a = Mul(x, k)
                y = If (c) <then_branch = t () => (float[N,4] p) { p = Neg(a) },
                            else_branch = e () => (float[N,4] q) { q = Abs(a) }>
            }"""
        )
    )
    graph.set_initializer("w", np.ones((2048, 4), np.float32))
    feeds_ = {"x": np.full((2, 4), -3, np.float32), "c": np.array(True)}
    before = run(graph.to_model(), feeds_)["y"]
    surgeon = graph.to_graphsurgeon()
    assert [node.op for node in surgeon.nodes][-2:] == ["Mul", "If"]
    next(node for node in surgeon.nodes if node.op == "Mul").op = "Add"
    graph.from_graphsurgeon(surgeon)
    assert (graph.inputs, graph.outputs, graph.opset()) == (["x", "c"], ["y"], 18)
    assert graph.shape("x") == ("N", 4)
    assert graph.by_op("Add")
    assert graph.by_op("If")[0].subgraphs["then_branch"].captures() == {"a": 1}
    graph.check()
    assert (before == 6).all()
    assert (run(graph.to_model(), feeds_)["y"] == 1).all()


def test_the_header_survives_graphsurgeon() -> None:
    proto = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").materialized()
    proto.metadata_props.add(key="k", value="v")
    graph = Graph.of(Model.from_proto(proto))
    graph.from_graphsurgeon(graph.to_graphsurgeon())
    model = graph.to_model().proto
    assert model.ir_version == proto.ir_version
    assert [(p.key, p.value) for p in model.metadata_props] == [("k", "v")]


def test_without_graphsurgeon_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_graphsurgeon", None)
    graph = Graph.of(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    with pytest.raises(UsageError, match="not installed") as caught:
        graph.to_graphsurgeon()
    assert "graphkit-mnn[graphsurgeon]" in str(caught.value.hint)


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(models(shadow=False))
def test_random_models_there_and_back(proto: ModelProto) -> None:
    graph = Graph.of(Model.from_proto(proto))
    expected = run(graph.to_model(), feeds(True))
    graph.from_graphsurgeon(graph.to_graphsurgeon())
    graph.check()
    got = run(graph.to_model(), feeds(True))
    assert list(got) == list(expected)
    for name, want in expected.items():
        np.testing.assert_array_equal(got[name], want)


def test_networkx_has_an_edge_for_every_use_also_from_inside() -> None:
    graph = Graph.of(
        parse(
            """g (float[2] x, bool c) => (float[2] y) {
                a = Relu(x)
                b = Add(a, a)
                y = If (c) <then_branch = t () => (float[2] p) { p = Neg(a) },
                            else_branch = e () => (float[2] q) { q = Abs(b) }>
            }"""
        )
    )
    found = graph.to_networkx()
    relu, add, branch = graph.nodes
    assert list(found.nodes) == [relu, add, branch]
    assert found.nodes[relu] == {"op": "Relu", "label": "a"}
    assert sorted(found.edges(keys=True), key=lambda edge: edge[2] + edge[1].op) == [
        (relu, add, "a"),
        (relu, branch, "a"),
        (add, branch, "b"),
    ]
    assert list(networkx.topological_sort(found)) == [relu, add, branch]
