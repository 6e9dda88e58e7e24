"""Whatever is done to a graph, its index is the one that reading the result again would give."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, helper

from graphkit import _body, _read
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Node
from graphkit.testing import run
from tests.random_models import SHAPE, feeds, models

quick = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
State = dict[str, Any]


def state(graph: Graph) -> State:
    """The whole index of a graph in comparable form: nodes by their place, subgraphs inside."""
    nodes = list(graph.nodes)
    place = {node: index for index, node in enumerate(nodes)}
    assert len(graph) == len(nodes)
    assert all(node.alive and node.graph is graph for node in nodes)
    assert [node._prev for node in nodes] == [None, *nodes][: len(nodes)]
    assert graph._last is (nodes[-1] if nodes else None)
    for node in nodes:
        assert tuple(node.proto.input) == node.inputs
        assert tuple(node.proto.output) == node.outputs
        assert all(sub.owner is node and sub.parent is graph for sub in node.subgraphs.values())
    return {
        "nodes": [(node.op, node.name, node.inputs, node.outputs) for node in nodes],
        "producers": {value: place[node] for value, node in graph._producer.items()},
        "uses": {v: {place[n]: count for n, count in uses.items()} for v, uses in graph._uses.items()},
        "by_op": {op: sorted(place[n] for n in group) for op, group in graph._by_op.items() if group},
        "captures": graph.captures(),
        "inputs": graph.inputs,
        "outputs": graph.outputs,
        "weights": {name: weight.array().tolist() for name, weight in graph.initializers.items()},
        "inner": [{key: state(sub) for key, sub in node.subgraphs.items()} for node in nodes],
    }


def assert_index_true(graph: Graph) -> None:
    """Compare a root graph and its functions with what reading their protobufs anew gives."""
    fresh = Graph(graph.model)
    _read.read_graph(fresh, graph.to_proto())
    assert state(graph) == state(fresh)
    for function in graph.functions.values():
        again = Graph(graph.model)
        proto = _body.write_function(function)
        again.input_infos, again.output_infos = function.input_infos, function.output_infos
        again.fill(proto.node)
        assert state(function) == state(again)


class Player:
    """Does random things to a graph and the graphs inside it, allowed or not."""

    def __init__(self, graph: Graph, rng: random.Random) -> None:
        self.graph = graph
        self.rng = rng
        self.kept: list[_body.Snapshot] = []
        self.gone: list[Node] = []
        self.moves: list[Callable[[Graph], object]] = [
            self.insert,
            self.insert_holder,
            self.remove,
            self.set_inputs,
            self.set_input,
            self.replace_node,
            self.replace_all_uses,
            self.rename,
            self.put_initializer,
            self.remove_initializer,
            self.remove_input,
            self.add_constant,
            self.bypass,
            self.remove_dead,
            self.touch_removed,
            self.snapshot,
            self.restore,
        ]

    def step(self) -> None:
        """One random move in one random graph; what the graph refuses must leave it as it was."""
        graph = self.rng.choice([*self.graph.walk(), *self.graph.functions.values()])
        before = state(self.graph)
        try:
            self.rng.choice(self.moves)(graph)
        except GraphkitError:
            assert state(self.graph) == before

    def value(self, graph: Graph) -> str:
        return self.rng.choice([*{name for g in (graph, graph.root) for name in self.values(g)}, "x0"])

    def values(self, graph: Graph) -> list[str]:
        return [*graph._producer, *graph._uses, *graph.inputs, *graph.initializers, *graph.outputs]

    def node(self, graph: Graph) -> Node:
        nodes = list(graph.nodes)
        if not nodes:
            raise GraphkitError("no node")
        return self.rng.choice(nodes)

    def new_node(self, graph: Graph, out: str | None = None) -> NodeProto:
        inputs = [self.rng.choice([self.value(graph), ""]), self.value(graph)]
        return helper.make_node("Max", inputs, [out or graph.new_name("new")], name=graph.new_name("node"))

    def before(self, graph: Graph) -> Node | None:
        return self.node(graph) if len(graph) and self.rng.random() < 0.7 else None

    def insert(self, graph: Graph) -> None:
        # half of the names are taken, or are those of values that nothing makes now
        out = self.value(graph) if self.rng.random() < 0.3 else None
        if out and any(out in self.values(g) for g in self.graph.walk() if g is not graph):
            out = None  # hiding the name of an inner graph is the caller's own fault
        graph.insert(self.new_node(graph, out), self.before(graph))

    def insert_holder(self, graph: Graph) -> None:
        holders = [n for g in self.graph.walk() for n in g.nodes if n.subgraphs]
        if not holders or graph.is_function or sum(len(g) for g in self.graph.walk()) > 60:
            return
        proto = NodeProto()
        proto.CopyFrom(_body.write_node(self.rng.choice(holders)))
        for index in range(len(proto.output)):
            proto.output[index] = graph.new_name("held")
        graph.insert(proto, self.before(graph))

    def remove(self, graph: Graph) -> None:
        node = self.node(graph)
        self.gone.append(node)
        graph.remove(node)
        with pytest.raises(GraphkitError):
            graph.remove(node)

    def set_inputs(self, graph: Graph) -> None:
        graph.set_inputs(self.node(graph), [self.value(graph) for _ in range(self.rng.randint(0, 3))])

    def set_input(self, graph: Graph) -> None:
        graph.set_input(self.node(graph), self.rng.randint(0, 3), self.value(graph))

    def replace_node(self, graph: Graph) -> None:
        node = self.node(graph)
        out = self.rng.choice([*(o for o in node.outputs if o), None])
        graph.replace_node(node, self.new_node(graph, out))

    def replace_all_uses(self, graph: Graph) -> None:
        graph.replace_all_uses(self.value(graph), self.value(graph))

    def rename(self, graph: Graph) -> None:
        new = self.value(graph) if self.rng.random() < 0.2 else graph.new_name("renamed")
        graph.rename(self.value(graph), new)

    def put_initializer(self, graph: Graph) -> None:
        name = self.value(graph) if self.rng.random() < 0.5 else graph.new_name("weight")
        graph.set_initializer(name, np.zeros(SHAPE, np.float32))

    def remove_initializer(self, graph: Graph) -> None:
        if graph.initializers:
            graph.remove_initializer(self.rng.choice(list(graph.initializers)))

    def remove_input(self, graph: Graph) -> None:
        if graph.inputs and not graph.is_function:
            graph.remove_input(self.rng.choice(graph.inputs))

    def add_constant(self, graph: Graph) -> None:
        graph.add_constant(np.ones(SHAPE, np.float32))

    def bypass(self, graph: Graph) -> None:
        node = self.node(graph)
        old, new = node.outputs[0], self.value(graph)
        if not old or new in node.outputs:
            return
        graph.remove(node)
        graph.bypass(old, new)

    def remove_dead(self, graph: Graph) -> None:
        graph.remove_dead([*graph.nodes][::2] + self.gone)

    def touch_removed(self, graph: Graph) -> None:
        for sub in self.gone[-1].subgraphs.values() if self.gone else ():
            for node in sub.nodes:
                sub.set_inputs(node, [self.value(graph)])
            sub.replace_all_uses("x0", "x1")

    def snapshot(self, graph: Graph) -> None:
        self.kept.append(self.graph.snapshot())

    def restore(self, graph: Graph) -> None:
        if self.kept:
            old = list(self.graph.nodes)
            self.graph.restore(self.rng.choice(self.kept))
            assert not any(self.graph.contains(node) for node in old)


@quick
@given(models(), st.integers(0, 2**32), st.integers(1, 25))
def test_the_index_stays_true(proto: ModelProto, seed: int, steps: int) -> None:
    graph = Graph.of(Model.from_proto(proto))
    assert_index_true(graph)
    player = Player(graph, random.Random(seed))
    for _ in range(steps):
        player.step()
        assert_index_true(graph)


@quick
@given(models(), st.integers(0, 2**32))
def test_a_snapshot_brings_everything_back(proto: ModelProto, seed: int) -> None:
    graph = Graph.of(Model.from_proto(proto))
    before, taken = state(graph), graph.snapshot()
    player = Player(graph, random.Random(seed))
    for _ in range(8):
        player.step()
    graph.replace_with(Model.from_proto(proto))
    graph.restore(taken)
    assert state(graph) == before
    assert_index_true(graph)


def assert_same(proto: ModelProto, model: Model) -> None:
    """Assert that both compute the same, whichever way the branches go."""
    for flag in (True, False):
        expected, actual = run(Model.from_proto(proto), feeds(flag)), run(model, feeds(flag))
        assert list(expected) == list(actual)
        for name, want in expected.items():
            np.testing.assert_array_equal(actual[name], want)


@quick
@given(models(shadow=False))
def test_reading_and_writing_change_no_output(proto: ModelProto) -> None:
    graph = Graph.of(Model.from_proto(proto))
    graph.check()
    assert_same(proto, graph.to_model())


@quick
@given(models(shadow=False), st.randoms(use_true_random=False))
def test_nodes_in_any_order_are_sorted(proto: ModelProto, rng: random.Random) -> None:
    mixed = ModelProto()
    mixed.CopyFrom(proto)
    nodes = list(proto.graph.node)
    rng.shuffle(nodes)
    del mixed.graph.node[:]
    mixed.graph.node.extend(nodes)
    graph = Graph.of(Model.from_proto(mixed))
    graph.check()
    assert_same(proto, graph.to_model())


def _rename(graph: Graph, rng: random.Random) -> None:
    values = [v for v in graph._producer if graph.parent is not None or not graph.is_output(v)]
    if values:
        graph.rename(rng.choice(values), graph.new_name("renamed"))


def _insert_identity(graph: Graph, rng: random.Random) -> None:
    value = rng.choice([*graph._producer, *graph.inputs])
    producer = graph.producer(value)
    before = producer._next if producer else next(iter(graph.nodes), None)
    new = graph.new_name(value)
    graph.replace_all_uses(value, new)
    graph.insert(helper.make_node("Identity", [value], [new]), before)


def _bypass_identity(graph: Graph, rng: random.Random) -> None:
    for node in graph.by_op("Identity"):
        graph.remove(node)
        graph.bypass(node.outputs[0], node.inputs[0])


def _drop_dead(graph: Graph, rng: random.Random) -> None:
    graph.remove_dead(graph.nodes)


@quick
@given(models(shadow=False), st.integers(0, 2**32))
def test_moves_that_keep_the_meaning_keep_the_outputs(proto: ModelProto, seed: int) -> None:
    rng = random.Random(seed)
    graph = Graph.of(Model.from_proto(proto))
    for _ in range(12):
        inner = rng.choice(list(graph.walk()))
        rng.choice([_rename, _insert_identity, _bypass_identity, _drop_dead])(inner, rng)
        assert_index_true(graph)
    graph.check()
    assert_same(proto, graph.to_model())
