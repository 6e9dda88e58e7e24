"""The structural check: what differs from a snapshot, and what a pass may not leave behind."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.node import TensorType
from graphkit.structure import differs, find_fault
from graphkit.testing import graph_of

PLAIN = """
    g (float[N,4] x, float[4] z) => (float[N,4] y, float[N,4] side) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {
        a = Add(x, w)
        side = Relu(a)
        y = Mul(a, z)
    }
"""
BRANCH = """
    g (float[4] x, bool c) => (float[4] y) {
        a = Relu(x)
        y = If (c) <
            then_branch = t () => (float[4] p) { p = Sqrt(a) },
            else_branch = e () => (float[4] q) { r = Exp(a) q = Neg(r) }
        >
    }
"""
FUNCTION = """
    <ir_version: 8, opset_import: ["": 18, "own": 1]>
    g (float[4] x) => (float[4] y) { y = own.Twice(x) }
    <domain: "own", opset_import: ["": 18]>
    Twice (p) => (q) { t = Add(p, p) q = Identity(t) }
"""


def node(op: str, inputs: list[str], outputs: list[str], **attrs: object) -> NodeProto:
    return onnx.helper.make_node(op, inputs, outputs, **attrs)


def branch(graph: Graph, name: str = "else_branch") -> Graph:
    return graph.by_op("If")[0].subgraphs[name]


# -- differs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [PLAIN, BRANCH, FUNCTION])
def test_a_graph_does_not_differ_from_itself(text: str) -> None:
    graph = graph_of(text)
    state = graph.snapshot()
    assert not differs(graph, state)
    shapes.infer(graph)
    graph.set_type("t", TensorType(1, (4,)))
    graph.new_name("x")
    assert not differs(graph, state)
    graph.restore(state)
    assert not differs(graph, state)
    assert not differs(graph, graph.snapshot())


def _set_weight(graph: Graph) -> None:
    graph.set_initializer("w", np.ones(4, np.float32))


def _set_input_type(graph: Graph) -> None:
    graph.set_input_type("x", TensorType(1, (2, 4)))


CHANGES: list[Callable[[Graph], object]] = [
    lambda graph: graph.replace_node(graph.by_op("Relu")[0], node("Tanh", ["a"], ["side"])),
    lambda graph: graph.insert(node("Tanh", ["a"], ["more"])),
    lambda graph: graph.remove(graph.by_op("Relu")[0]),
    lambda graph: graph.set_input(graph.by_op("Mul")[0], 0, "x"),
    lambda graph: graph.rename("a", "b"),
    lambda graph: graph.opsets.update({"": 19}),
    lambda graph: graph.add_constant(np.ones(1, np.float32)),
    lambda graph: graph.remove_initializer("w"),
    lambda graph: graph.remove_input("z"),
    lambda graph: graph.reorder([*list(graph.nodes)[:1], *list(graph.nodes)[:0:-1]]),
    _set_weight,
    _set_input_type,
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_seen(change: Callable[[Graph], object]) -> None:
    graph = graph_of(PLAIN)
    state = graph.snapshot()
    change(graph)
    assert differs(graph, state)
    graph.restore(state)
    assert not differs(graph, state)


def test_changes_inside_subgraphs_and_functions_are_seen() -> None:
    graph = graph_of(BRANCH)
    state = graph.snapshot()
    inner = branch(graph)
    inner.replace_node(inner.by_op("Exp")[0], node("Abs", ["a"], ["r"]))
    assert differs(graph, state)
    graph = graph_of(FUNCTION)
    state = graph.snapshot()
    (function,) = graph.functions.values()
    function.replace_node(function.by_op("Add")[0], node("Mul", ["p", "p"], ["t"]))
    assert differs(graph, state)


def test_nan_in_an_attribute_of_a_subgraph_is_no_change() -> None:
    graph = graph_of(BRANCH)
    inner = branch(graph)
    inner.replace_node(inner.by_op("Exp")[0], node("LeakyRelu", ["a"], ["r"], alpha=float("nan")))
    assert not differs(graph, graph.snapshot())


# -- find_fault -------------------------------------------------------------------------------------------


def fault_after(text: str, change: Callable[[Graph], object]) -> str | None:
    graph = graph_of(text)
    state = graph.snapshot()
    change(graph)
    return find_fault(graph, state)


@pytest.mark.parametrize("text", [PLAIN, BRANCH, FUNCTION])
def test_no_change_no_fault(text: str) -> None:
    assert fault_after(text, lambda graph: None) is None


@pytest.mark.parametrize("change", CHANGES[:2])
def test_valid_changes_have_no_fault(change: Callable[[Graph], object]) -> None:
    assert fault_after(PLAIN, change) is None


def _rename_output(graph: Graph) -> None:
    graph.output_infos = {"other": graph.output_infos["y"], "side": graph.output_infos["side"]}


def _swap_outputs(graph: Graph) -> None:
    graph.output_infos = dict(reversed(graph.output_infos.items()))


def _add_input(graph: Graph) -> None:
    graph.input_infos["extra"] = onnx.helper.make_tensor_value_info("extra", 1, [4])


def _use_early(graph: Graph) -> None:
    first = next(graph.nodes)
    graph.insert(node("Neg", ["a"], ["early"]), before=first)


def _half_output(graph: Graph) -> None:
    graph.replace_node(graph.by_op("Relu")[0], node("Cast", ["a"], ["side"], to=TensorProto.FLOAT16))


def _half_in_steps(graph: Graph) -> None:
    graph.replace_node(graph.by_op("Relu")[0], node("Relu", ["half"], ["side"]))
    relu = graph.by_op("Relu")[0]
    graph.insert(node("Cast", ["a"], ["half"], to=TensorProto.FLOAT16), before=relu)


def _flat_output(graph: Graph) -> None:
    graph.replace_node(graph.by_op("Relu")[0], node("ReduceMax", ["a"], ["side"], keepdims=0))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_rename_output, "the model's outputs changed from ['y', 'side'] to ['other', 'side']"),
        (_swap_outputs, "the model's outputs changed from ['y', 'side'] to ['side', 'y']"),
        (_add_input, "the model has new inputs: ['extra']"),
        (_use_early, "node 'early' reads value 'a', which is used before it is made"),
        (
            lambda graph: graph.remove(graph.by_op("Add")[0]),
            "node 'side' reads value 'a', which is not defined",
        ),
        (lambda graph: graph.remove(graph.by_op("Relu")[0]), "graph output 'side' is not made by any node"),
        (_half_output, "output 'side' changed its element type from float to float16"),
        (_half_in_steps, "output 'side' changed its element type from float to float16"),
        (_flat_output, "output 'side' changed its rank from 2 to 0"),
        (
            lambda graph: graph.insert(node("Tanh", ["a", "a"], ["more"])),
            "node 'more' (Tanh) is not valid ONNX: Node with schema(::Tanh:13) has input size 2",
        ),
        (
            lambda graph: graph.insert(node("Softmax", ["a"], ["more"], axes=1)),
            "node 'more' (Softmax) is not valid ONNX: Unrecognized attribute: axes for operator Softmax",
        ),
    ],
)
def test_faults_are_named(change: Callable[[Graph], object], fault: str) -> None:
    found = fault_after(PLAIN, change)
    assert found is not None
    assert found.startswith(fault)


def test_new_nodes_in_subgraphs_are_checked() -> None:
    def spoil(graph: Graph) -> None:
        inner = branch(graph)
        inner.replace_node(inner.by_op("Exp")[0], node("Expp", ["a"], ["r"]))

    found = fault_after(BRANCH, spoil)
    assert found is not None
    assert found.startswith("node 'r' (Expp) is not valid ONNX: No Op registered for Expp")


def test_a_value_that_a_subgraph_misses_is_named() -> None:
    found = fault_after(BRANCH, lambda graph: graph.remove(graph.by_op("Relu")[0]))
    assert found is not None
    assert "reads value 'a'" in found


def test_functions_are_checked() -> None:
    def spoil(graph: Graph) -> None:
        (function,) = graph.functions.values()
        function.remove(function.by_op("Add")[0])

    found = fault_after(FUNCTION, spoil)
    assert found == "node 'q' reads value 't', which is not defined"


def test_what_the_checker_refused_before_is_no_fault() -> None:
    text = "g (float[4] x) => (float[4] y) { a = Unheard(x) y = Relu(a) }"

    def rename(graph: Graph) -> None:
        old = graph.by_op("Unheard")[0]
        graph.replace_node(old, node("Unheard", ["x"], ["a"], name="named"))

    assert fault_after(text, rename) is None
    assert fault_after(text, lambda graph: graph.insert(node("Unheard", ["x"], ["b"]))) is not None


def test_types_of_unknown_operators_are_not_judged() -> None:
    def swap(graph: Graph) -> None:
        graph.opsets["own"] = 1
        graph.replace_node(graph.by_op("Relu")[0], node("Mine", ["a"], ["side"], domain="own"))

    assert fault_after(PLAIN, swap) is None


def test_node_checks_are_shared_between_equal_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    check = onnx.checker.check_node
    monkeypatch.setattr(onnx.checker, "check_node", lambda *args: (calls.append(1), check(*args)))

    def add(graph: Graph) -> None:
        for index in range(50):
            graph.insert(node("LeakyRelu", ["a"], [f"more{index}"], alpha=index / 50))

    assert fault_after(PLAIN, add) is None
    assert len(calls) == 1


def test_a_large_constant_in_a_branch_is_valid() -> None:
    """Its data are in a buffer of ours, where the ONNX checker would look for a file."""
    graph = graph_of(
        """
        g (float[N] x, bool c) => (float[N] y)
        {
            y = If <
                then_branch = t () => (float[N] a) { a = Relu(x) },
                else_branch = e () => (float[N] b) { b = Neg(x) }
            >(c)
        }
        """
    )
    before = graph.snapshot()
    inner = next(iter(next(graph.nodes).subgraphs.values()))
    inner.add_constant(np.zeros(5000, np.float32))
    assert find_fault(graph, before) is None


def test_types_that_became_known_in_a_branch_are_no_change() -> None:
    graph = graph_of(
        """
        g (float[N] x, bool c) => (float[N] y)
        {
            y = If <
                then_branch = t () => (float[N] a) { r = Relu(x) a = Neg(r) },
                else_branch = e () => (float[N] b) { b = Neg(x) }
            >(c)
        }
        """,
        infer=False,
    )
    before = graph.snapshot()
    shapes.infer(graph)
    assert not differs(graph, before)
