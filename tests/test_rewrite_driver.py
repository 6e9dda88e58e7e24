"""The driver of rewrite rules: where new nodes go, what is looked at again, and that it ends."""

from __future__ import annotations

import pytest

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Builder, Outcome, Refusal, Rewrite, Rule, apply, apply_rules
from graphkit.testing import canonical, graph_of


def drop_identity(graph: Graph, node: Node) -> Outcome:
    return Rewrite("dropped", {node.outputs[0]: node.inputs[0]})


def neg_neg(graph: Graph, node: Node) -> Outcome:
    user = graph.sole_consumer(node.outputs[0])
    if user is None:
        return Refusal("neg-neg", node.label, "used twice")
    return Rewrite("none", {user.outputs[0]: node.inputs[0]}) if user.op == "Neg" else None


def test_a_producer_is_looked_at_again_when_another_user_goes() -> None:
    text = """
        g (float[4] x) => (float[4] y) {
            a = Neg(x)
            b = Neg(a)
            c = Relu(b)
            d = Mul(a, c)
            y = Add(d, c)
        }
    """

    def only_c(graph: Graph, node: Node) -> Outcome:
        return Rewrite("the product is c", {node.outputs[0]: node.inputs[1]})

    graph = graph_of(text)
    result = apply_rules(graph, [Rule("neg-neg", ("Neg",), neg_neg), Rule("only-c", ("Mul",), only_c)])
    assert canonical(graph) == canonical(graph_of("g (float[4] x) => (float[4] y) { c = Relu(x) y = Add(c, c) }"))
    assert [change.what for change in result.changes] == ["the product is c", "none"]
    assert not result.refusals


def test_a_user_is_looked_at_again_when_its_input_changes() -> None:
    def abs_neg(graph: Graph, node: Node) -> Outcome:
        first = graph.producer(node.inputs[0])
        if first is None or first.op != "Neg":
            return None
        build = Builder(graph, node)
        return build.rewrite({node.outputs[0]: build.op("Abs", first.inputs[0])}, "abs")

    graph = graph_of("g (float[4] x) => (float[4] y) { a = Neg(x) b = Identity(a) y = Abs(b) }")
    rules = [Rule("abs", ("Abs",), abs_neg), Rule("late", ("Identity",), drop_identity)]
    result = apply_rules(graph, rules)
    assert canonical(graph) == canonical(graph_of("g (float[4] x) => (float[4] y) { y = Abs(x) }"))
    assert result.counters == {"late": 1, "abs": 1}


def test_rules_that_fight_are_named() -> None:
    def turn(other: str) -> Rule:
        def match(graph: Graph, node: Node) -> Outcome:
            build = Builder(graph, node)
            return build.rewrite({node.outputs[0]: build.op(other, *node.inputs)}, other)

        return Rule(f"to-{other}", ("Relu" if other == "Neg" else "Neg",), match)

    graph = graph_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    with pytest.raises(GraphkitError, match=r"no end after \d+ rewrites; still matching: to-Neg, to-Relu"):
        apply_rules(graph, [turn("Neg"), turn("Relu")])


def test_a_value_that_no_node_makes_cannot_be_replaced() -> None:
    graph = graph_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    with pytest.raises(GraphkitError, match="'swap' replaces 'x', which no node of this graph makes"):
        apply(graph, Rewrite("swap", {"x": "y"}))


@pytest.mark.parametrize("outputs", [("p", "q"), ("q", "p")])
def test_several_values_are_replaced_at_once(outputs: tuple[str, str]) -> None:
    text = """
        g (float[2,4] x) => (float[2,4] u, float[2,4] v) {
            p = Neg(x)
            u = Relu(p)
            m = Abs(x)
            q = Exp(x)
            v = Relu(q)
        }
    """
    graph = graph_of(text)
    build = Builder(graph, graph.by_op("Neg")[0])
    both = build.op("Concat", "x", "x", axis=0)
    parts = build.op("Split", both, outputs=2, num_outputs=2)
    values = {"p": parts, "q": f"{parts}:1"}
    apply(graph, build.rewrite({name: values[name] for name in outputs}, "both"))
    graph.check()
    assert [node.op for node in graph.nodes] == ["Concat", "Split", "Relu", "Abs", "Relu"]


def test_new_nodes_go_after_what_they_read() -> None:
    text = """
        g (float[4] x) => (float[4] u, float[4] v) {
            p = Neg(x)
            m = Abs(x)
            q = Exp(m)
            u = Relu(p)
            v = Relu(q)
        }
    """
    graph = graph_of(text)
    build = Builder(graph, graph.by_op("Neg")[0])
    values = {"p": build.op("Sub", "x", "m"), "q": build.op("Add", "x", "m")}
    apply(graph, build.rewrite(values, "both"))
    graph.check()
    assert [node.op for node in graph.nodes] == ["Abs", "Sub", "Add", "Relu", "Relu"]


def test_new_value_names_are_new() -> None:
    graph = graph_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    taken = Builder(graph, graph.by_op("Relu")[0]).op("Neg", "x")
    graph.insert(graph.by_op("Relu")[0].proto.__class__(op_type="Abs", input=["x"], output=["y/Abs_out"]))
    fresh = Builder(graph, graph.by_op("Relu")[0]).op("Abs", "x")
    assert fresh not in ("y/Abs_out", taken)
    build = Builder(graph, graph.by_op("Relu")[0])
    apply(graph, build.rewrite({"y": build.op("Neg", build.op("Abs", "x"))}, "negated"))
    graph.check()
