"""Parts of a graph: between anchors, around, cut at dominators; the graphs inside nodes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.testing import graph_of
from graphkit.verification.bisect import regions

DIAMOND = """
    g (float[N,4] x) => (float[N,4] y) <float[4] w = {1, 2, 3, 4}> {
        a = Relu(x) l = Mul(a, w) r = Tanh(a) j = Add(l, r) k = Neg(j) y = Abs(k)
    }
"""
NESTED = """
    g (float[4] x, bool b) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {
        z = Relu(x)
        [pick] y = If(b) <
            then_branch = t () => (float[4] p) { c = Mul(z, w) p = Tanh(c) },
            else_branch = e () => (float[4] q) {
                [inner] q = If(b) <
                    then_branch = tt () => (float[4] r) { r = Neg(z) },
                    else_branch = ee () => (float[4] s) { s = Abs(z) }>
            }>
    }
"""


def test_between_goes_back_to_the_anchors_and_no_further() -> None:
    graph = graph_of(DIAMOND)
    region = regions.between(graph, ["k"], {"l", "a"})
    assert region.labels == ("r", "j", "k")
    assert set(region.inputs) == {"l", "a"}
    assert region.outputs == ("k",)


def test_without_anchors_it_is_all_that_is_needed_and_constants_are_no_inputs() -> None:
    region = regions.between(graph_of(DIAMOND), ["j"])
    assert region.labels == ("a", "l", "r", "j")
    assert region.inputs == ("x",)


def test_an_anchor_that_is_asked_for_is_computed() -> None:
    assert regions.between(graph_of(DIAMOND), ["j"], {"j", "l", "r"}).labels == ("j",)


def test_what_no_node_makes_is_an_input_error() -> None:
    with pytest.raises(UsageError, match="no node makes 'x'"):
        regions.between(graph_of(DIAMOND), ["x"])


def test_nodes_look_at_what_leaves_them() -> None:
    graph = graph_of(DIAMOND)
    chosen = [node for node in graph.nodes if node.label in ("a", "l")]
    assert regions.of_nodes(graph, chosen).outputs == ("a", "l")


def test_around_adds_a_layer_on_both_sides() -> None:
    graph = graph_of(DIAMOND)
    region = regions.around(regions.between(graph, ["j"], {"l", "r"}), 1)
    assert region.labels == ("l", "r", "j", "k")
    assert region.outputs == ("j", "k")


def test_dominators_skip_what_lies_on_one_way_only() -> None:
    region = regions.between(graph_of(DIAMOND), ["y"])
    assert regions.dominators(region, "y") == ("a", "j", "k")
    with pytest.raises(UsageError, match="does not make"):
        regions.dominators(region, "x")


def test_a_region_of_constants_has_no_dominators() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) <int64[1] s = {2}> { c = ConstantOfShape(s) y = Add(x, c) }")
    assert regions.dominators(regions.between(graph, ["c"]), "c") == ()


def test_constant_nodes_know_types_and_static_shapes() -> None:
    graph = graph_of("""
        g (float[N,3] x, float[2,3] z) => (float[A,B] y, float[C,D] w) <float c = {1}> {
            like = CastLike(c, x) known = Shape(z) open = Shape(x) y = Expand(like, known) w = Expand(like, open)
        }
    """)
    assert {node.label for node in regions.constant_nodes(graph)} == {"like", "known", "y"}


def test_places_name_the_graphs_inside() -> None:
    graph = graph_of(NESTED)
    found = dict(regions.places(graph))
    assert list(found) == [
        "", "pick/then_branch", "pick/else_branch", "pick/else_branch/inner/then_branch",
        "pick/else_branch/inner/else_branch",
    ]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=10))
def test_what_a_region_feeds_into_its_dominator_is_all_that_reaches_the_end(reads: list[tuple[int, int]]) -> None:
    graph = _random(reads)
    output = f"v{len(reads)}"
    region = regions.between(graph, [output])
    for name in regions.dominators(region, output):
        behind = regions.between(graph, [output], {name})
        assert behind.inputs == (name,)
        assert set(behind.labels) | set(regions.between(graph, [name]).labels) == set(region.labels)


def _random(reads: list[tuple[int, int]]) -> Graph:
    lines = [f"v{k} = Add({_name(a, k)}, {_name(b, k)})" for k, (a, b) in enumerate(reads, 1)]
    return graph_of(f"g (float[2] x) => (float[2] v{len(reads)}) {{ {' '.join(lines)} }}")


def _name(value: int, before: int) -> str:
    return "x" if value == 0 or value >= before else f"v{value}"
