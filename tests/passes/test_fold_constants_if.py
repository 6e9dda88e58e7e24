"""`fold-constants` in and around subgraphs: branches, and If with a constant condition."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.graph import Graph
from graphkit.passes.fold_constants import FoldConstants
from graphkit.testing import assert_equal_outputs, graph_of, parse

PASS = FoldConstants()


def fold(text: str) -> Graph:
    """The graph after the pass, structurally checked."""
    graph = graph_of(text)
    PASS.run(graph)
    graph.check()
    return graph


IF = """agraph (%s float[n] x) => (float[n] y) <float[1] w = {4}%s> {
    a = Relu(x)
    z = If(c) <
        then_branch = t () => (float[n] u) { k = Sqrt(w) v = Add(a, k) u = Neg(v) },
        else_branch = e () => (float[n] r) { v = Exp(a) r = Identity(v) }
    >
    y = Neg(z)
}"""


def test_constants_inside_a_branch_become_constant_nodes() -> None:
    text = IF % ("bool c,", "")
    graph = fold(text)
    then = next(node for node in graph.nodes if node.op == "If").subgraphs["then_branch"]
    assert then.op_counts() == {"Constant": 1, "Add": 1, "Neg": 1}
    assert not then.initializers
    assert_equal_outputs(parse(text), graph.to_model(), inputs={"c": np.array(True), "x": np.ones(3, np.float32)})


@pytest.mark.parametrize(
    ("condition", "ops"),
    [(1, {"Relu": 1, "Add": 1, "Neg": 2}), (0, {"Relu": 1, "Exp": 1, "Identity": 1, "Neg": 1})],
)
def test_if_with_a_constant_condition(condition: int, ops: dict[str, int]) -> None:
    text = IF % ("", f", bool c = {{{condition}}}")
    graph = fold(text)
    PASS.run(graph)
    assert graph.op_counts() == ops
    assert_equal_outputs(parse(text), graph.to_model())


def test_an_inlined_branch_that_passes_an_outer_value_on() -> None:
    text = """agraph (float[n] x) => (float[n] y, float[n] z) <bool c = {1}> {
        a = Relu(x)
        y, z = If(c) <
            then_branch = t () => (float[n] p, float[n] q) { p = Identity(a) q = Identity(a) },
            else_branch = e () => (float[n] r, float[n] s) { r = Neg(a) s = Neg(a) }
        >
    }"""
    graph = fold(text)
    assert "If" not in graph.op_counts()
    assert_equal_outputs(parse(text), graph.to_model())


def test_nested_ifs_are_inlined_with_fresh_names() -> None:
    text = """agraph (float[n] x) => (float[n] y) <bool c = {1}> {
        y = If(c) <
            then_branch = t () => (float[n] p) {
                v = Relu(x)
                p = If(c) <
                    then_branch = tt () => (float[n] q) { u = Neg(v) q = Exp(u) },
                    else_branch = te () => (float[n] w) { u = Exp(v) w = Neg(u) }
                >
            },
            else_branch = e () => (float[n] r) { v = Neg(x) r = Neg(v) }
        >
    }"""
    graph = fold(text)
    assert graph.op_counts() == {"Relu": 1, "Neg": 1, "Exp": 1}
    assert_equal_outputs(parse(text), graph.to_model())
