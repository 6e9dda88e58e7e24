"""Rules and the driver: what a rewrite leaves behind, when it stops, and which refusals are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import (
    Builder,
    Change,
    Outcome,
    Pass,
    PassResult,
    Refusal,
    Rewrite,
    Rule,
    apply,
    apply_rules,
    rule,
)
from graphkit.testing import assert_rewrites, assert_unchanged, canonical, graph_of, run


@rule("Identity")
def drop_identity(graph: Graph, node: Node) -> Outcome:
    return Rewrite("drop identity", {node.outputs[0]: node.inputs[0]})


@rule("Neg")
def fold_neg(graph: Graph, node: Node) -> Outcome:
    """Neg(Neg(x)) is x; a refusal when the inner one has other users."""
    inner = graph.producer(node.inputs[0])
    if inner is None or inner.op != "Neg":
        return None
    if graph.sole_consumer(node.inputs[0]) is None:
        return fold_neg.refuse(node, "the inner Neg is used elsewhere")
    return Rewrite("drop both", {node.outputs[0]: inner.inputs[0]})


@rule("Relu", name="relu-as-max")
def relu_as_max(graph: Graph, node: Node) -> Outcome:
    build = Builder(graph, node)
    zero = build.const(np.zeros((), np.float32), "zero")
    return build.rewrite({node.outputs[0]: build.op("Max", node.inputs[0], zero)}, "Relu to Max")


@rule("Split")
def split_as_slices(graph: Graph, node: Node) -> Outcome:
    build = Builder(graph, node)
    axes = build.ints(0)
    parts = {
        out: build.op("Slice", node.inputs[0], build.ints(i), build.ints(i + 1), axes)
        for i, out in enumerate(node.outputs)
    }
    return build.rewrite(parts, "Split to Slices")


@dataclass(frozen=True)
class Rules:
    """A pass made of rules."""

    rules: tuple[Rule, ...]
    name: ClassVar[str] = "rules"
    summary: ClassVar[str] = "apply rules"

    def run(self, graph: Graph) -> PassResult:
        return apply_rules(graph, self.rules)


IN_BRANCH = """g (float[N] x, bool c) => (float[N] y) {{
    y = If (c) <then_branch = t () => (float[N] p) {{ {then} }},
                else_branch = e () => (float[N] q) {{ q = Exp(x) }}>
}}"""


def test_rules_apply_until_none_matches() -> None:
    result = assert_rewrites(
        Rules((drop_identity, fold_neg)),
        "g (float[N] x) => (float[N] y) { a = Neg(x) b = Identity(a) c = Neg(b) y = Exp(c) }",
        "g (float[N] x) => (float[N] y) { y = Exp(x) }",
    )
    assert result.changes == (Change("b", "drop identity"), Change("c", "drop both"))
    assert result.counters == {"drop-identity": 1, "fold-neg": 1}
    assert result.refusals == ()
    assert isinstance(Rules(()), Pass)


def test_a_replaced_output_keeps_its_name_and_type() -> None:
    graph = graph_of("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    before = graph.output_infos["y"]
    apply_rules(graph, [relu_as_max])
    node = graph.producer("y")
    assert node is not None
    assert node.op == "Max"
    assert graph.output_infos["y"] == before
    assert graph.type("y").shape == ("N",)  # type: ignore[union-attr]
    assert len(graph) == 1
    onnx.checker.check_model(graph.to_model().materialized(), full_check=True)


def test_the_node_name_stays_with_the_value() -> None:
    graph = graph_of("g (float[N] x) => (float[N] y) { a = Exp(x) [layer] b = Relu(a) y = Exp(b) }")
    apply_rules(graph, [relu_as_max])
    assert [(n.name, n.op) for n in graph.nodes] == [("", "Exp"), ("layer", "Max"), ("", "Exp")]


def test_all_outputs_of_a_node_are_replaced() -> None:
    assert_rewrites(
        Rules((split_as_slices,)),
        "g (float[2] x) => (float[M] y, float[M] z) { y, z = Split <num_outputs = 2> (x) }",
        """g (float[2] x) => (float[M] y, float[M] z) {
            a = Constant <value_ints = [0]> ()
            b = Constant <value_ints = [1]> ()
            c = Constant <value_ints = [2]> ()
            y = Slice(x, a, b, a)
            z = Slice(x, b, c, a)
        }""",
        inputs={"x": np.array([3, 4], np.float32)},
    )


def test_rules_work_inside_branches_with_constants_as_nodes() -> None:
    graph = graph_of(IN_BRANCH.format(then="a = Relu(x) p = Relu(a)"))
    expected = run(graph.to_model(), {"x": np.array([-1, 2], np.float32), "c": np.array(True)})["y"]
    result = apply_rules(graph, [relu_as_max])
    assert len(result.changes) == 2
    inner = graph.by_op("If")[0].subgraphs["then_branch"]
    assert not inner.initializers
    assert not graph.initializers
    assert [node.op for node in inner.nodes] == ["Constant", "Constant", "Max", "Max"]
    graph.check()
    got = run(graph.to_model(), {"x": np.array([-1, 2], np.float32), "c": np.array(True)})["y"]
    np.testing.assert_array_equal(got, expected)


def test_bypassing_to_an_outer_value_or_an_input_keeps_an_identity() -> None:
    for text in (
        "g (float[N] x) => (float[N] y) { a = Neg(x) y = Neg(a) }",
        IN_BRANCH.format(then="a = Neg(x) p = Neg(a)"),
    ):
        graph = graph_of(text)
        apply_rules(graph, [fold_neg])
        inner = list(graph.walk())[1] if graph.by_op("If") else graph
        assert [node.op for node in inner.nodes] == ["Identity"]
        graph.check()
        onnx.checker.check_model(graph.to_model().materialized(), full_check=True)


def test_an_inner_value_used_by_a_branch_is_replaced_there_too() -> None:
    graph = graph_of(
        """g (float[N] x, bool c) => (float[N] y) {
            a = Exp(x)
            b = Identity(a)
            y = If (c) <then_branch = t () => (float[N] p) { p = Neg(b) },
                        else_branch = e () => (float[N] q) { q = Abs(b) }>
        }"""
    )
    apply_rules(graph, [drop_identity])
    assert graph.by_op("If")[0].subgraphs["then_branch"].captures() == {"a": 1}
    graph.check()


@pytest.mark.parametrize("stop", [0, 1, 2, 3, 4])
def test_the_gate_stops_exactly_there(stop: int) -> None:
    text = IN_BRANCH.format(then="a = Identity(x) b = Exp(a) d = Identity(b) p = Abs(d)").replace(
        "{\n", "{\n e = Exp(x) f = Identity(e) h = Exp(f) ", 1
    )
    graph = graph_of(text)
    feeds = {"x": np.array([-1, 2], np.float32), "c": np.array(True)}
    expected = run(graph.to_model(), feeds)["y"]
    before = sum(len(inner.by_op("Identity")) for inner in graph.walk())
    asked = []

    def gate(node: str, what: str) -> bool:
        asked.append(node)
        return len(asked) <= stop

    graph.gate = gate
    result = apply_rules(graph, [drop_identity])
    assert len(result.changes) == min(stop, 3)
    assert len(asked) == min(stop, 2) + 1
    after = sum(len(inner.by_op("Identity")) for inner in graph.walk())
    assert before - after == min(stop, 3)
    graph.check()
    np.testing.assert_array_equal(run(graph.to_model(), feeds)["y"], expected)


def test_refusals_are_reported_for_nodes_that_live_on() -> None:
    text = "g (float[N] x) => (float[N] y, float[N] z) { a = Neg(x) y = Neg(a) z = Exp(a) }"
    result = assert_unchanged(Rules((fold_neg,)), text, refuses="used elsewhere")
    assert result.refusals == (Refusal("fold-neg", "y", "the inner Neg is used elsewhere"),)
    assert not result.modified


def test_refusals_of_nodes_that_went_are_not_reported() -> None:
    @rule("Neg")
    def neg_as_mul(graph: Graph, node: Node) -> Outcome:
        build = Builder(graph, node)
        minus = build.const(np.float32(-1).reshape(()))
        return build.rewrite({node.outputs[0]: build.op("Mul", node.inputs[0], minus)}, "Neg to Mul")

    graph = graph_of("g (float[N] x) => (float[N] y, float[N] z) { a = Neg(x) y = Neg(a) z = Exp(a) }")
    result = apply_rules(graph, [fold_neg, neg_as_mul])
    assert result.refusals == ()
    assert result.counters == {"neg-as-mul": 2}


def test_what_only_replaced_nodes_used_goes_with_them() -> None:
    graph = graph_of("g (float[N] x) => (float[N] y) { s = Shape(x) t = Cast <to = 1> (s) y = Sum(x, t) }")
    node = graph.producer("y")
    assert node is not None
    proto = helper.make_node("Abs", ["x"], ["new"])
    inserted = apply(graph, Rewrite("simplify", {"y": "new"}, (proto,)))
    assert [n.op for n in graph.nodes] == ["Abs"]
    assert [n.outputs for n in inserted] == [("y",)]


def test_new_nodes_that_nobody_uses_do_not_stay() -> None:
    graph = graph_of("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    protos = (helper.make_node("Abs", ["x"], ["new"]), helper.make_node("Neg", ["x"], ["unused"]))
    inserted = apply(graph, Rewrite("simplify", {"y": "new"}, protos))
    assert [n.op for n in inserted] == [n.op for n in graph.nodes] == ["Abs"]


def test_builder_names_are_new_and_none_attributes_are_left_out() -> None:
    graph = graph_of("g (float[N] x) => (float[N] y) { y = Exp(x) }")
    node = graph.producer("y")
    assert node is not None
    build = Builder(graph, node)
    first, second = build.op("Abs", "x", axis=None), build.op("Abs", "x", outputs=2, domain="my", k=1)
    assert first != second
    assert list(build.nodes[1].output) == [second, f"{second}:1"]
    assert [a.name for p in build.nodes for a in p.attribute] == ["k"]
    assert build.const(np.zeros(2)) != build.const(np.zeros(2))
    assert len(graph) == 1


def test_results_add_up() -> None:
    one = PassResult((Change("a", "x"),), (), {"k": 1}, ("note",), 0.5)
    two = PassResult((), (Refusal("r", "n", "why"),), {"k": 2, "l": 1}, (), 0.25)
    both = one + two
    assert both == PassResult(one.changes, two.refusals, {"k": 3, "l": 1}, ("note",), 0.75)
    assert both.modified
    assert not two.modified
    assert canonical(graph_of("g (float[N] x) => (float[N] x) { }")) == ["output x = input x"]


def _apply_to_both(graph: Graph, outputs: dict[str, str], *nodes: NodeProto) -> None:
    apply(graph, Rewrite("merge", outputs, nodes))
    graph.check()


TWINS = "g (float[N] x) => (float[N] p, float[N] q) { a = Relu(x) b = Relu(x) p = Neg(a) q = Neg(b) }"


def test_two_values_may_be_replaced_by_one_that_exists() -> None:
    graph = graph_of(TWINS)
    _apply_to_both(graph, {"p": "x", "q": "x"})
    assert graph.outputs == ["p", "q"]
    graph = graph_of(TWINS)
    _apply_to_both(graph, {"b": "a"})
    _apply_to_both(graph, {"q": "p"})
    assert {graph.producer(out).op for out in graph.outputs} == {"Neg", "Identity"}  # type: ignore[union-attr]


def test_two_values_may_be_replaced_by_one_new_one() -> None:
    graph = graph_of(TWINS)
    new = onnx.helper.make_node("Abs", ["x"], ["fresh"], name="fresh")
    _apply_to_both(graph, {"p": "fresh", "q": "fresh"}, new)
    assert graph.outputs == ["p", "q"]
    assert sorted(node.op for node in graph.nodes) == ["Abs", "Identity"]


def test_half_a_node_cannot_be_replaced() -> None:
    graph = graph_of("g (float[4] x) => (float[2] p, float[2] q) { p, q = Split<num_outputs=2>(x) }")
    with pytest.raises(GraphkitError, match="'q', which the same node makes"):
        apply(graph, Rewrite("half", {"p": "x"}))
