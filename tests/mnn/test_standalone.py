"""Parts of a .mnn file as files of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted import converted

from graphkit.mnn import standalone, worker
from graphkit.mnn.document import Document, GraphView, read, write
from graphkit.mnn.document.tree import Table
from graphkit.mnn.fileinfo import file_info
from graphkit.testing import parse

BRANCHES = """g (bool c, float[2,3] x) => (float[2,3] y) {
    a = Exp(x)
    b = If (c) <then_branch = t () => (float[2,3] p) { p1 = Neg(a) p = Abs(p1) },
        else_branch = e () => (float[2,3] q) { q = Sqrt(a) }>
    y = Sin(b) }"""
X = np.array([[0.5, 1.0, 2.0], [0.25, -1.0, 0.0]], np.float32)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """`BRANCHES`, converted."""
    return read(converted(parse(BRANCHES), tmp_path_factory.mktemp("standalone"))[1])


def view(document: Document, holds: str) -> GraphView:
    """The graph that has an operator of this name."""
    return next(graph for graph in document.graphs() if any(op["name"] == holds for op in graph.ops))


def values(**known: np.ndarray) -> standalone.Value:
    """What operators would have computed, by their names."""
    return lambda op, slot, name: known.get(op["name"])


def run(part: standalone.Part, folder: Path) -> dict[str, np.ndarray]:
    """What MNN computes from a part."""
    write(part.document, folder / "part.mnn")
    return worker.run(folder / "part.mnn", part.feeds).outputs


def test_the_main_graph_runs_without_its_branches(document: Document, tmp_path: Path) -> None:
    graph = view(document, "y")
    held = next(op["name"] for op in graph.ops if op.label("type") == "If")
    part = standalone.opened(document, graph, values(c=np.array(True), x=X, **{held: X}))
    assert "If" not in file_info(part.document).op_counts
    assert (held, 0) in part.given
    made = run(part, tmp_path)
    np.testing.assert_allclose(made["y"], np.sin(X), rtol=1e-5)
    np.testing.assert_allclose(made["a"], np.exp(X), rtol=1e-5)


def test_a_branch_runs_as_a_main_graph(document: Document, tmp_path: Path) -> None:
    part = standalone.opened(document, view(document, "p1"), values(a=X))
    np.testing.assert_allclose(next(iter(run(part, tmp_path).values())), np.abs(X))


def test_what_reads_the_unknown_is_left_out(document: Document) -> None:
    part = standalone.opened(document, view(document, "y"), values(x=X))
    assert "y" in part.left_out
    assert [op["name"] for op in part.document.net.tables("oplists") if op.label("type") == "UnaryOp"] == ["a"]


def test_inputs_that_nothing_reads_are_left_out(document: Document) -> None:
    part = standalone.opened(document, view(document, "y"), values(c=np.array(True), x=X))
    assert list(part.feeds) == ["x"]


def test_the_source_stays_as_it_is(document: Document) -> None:
    before = [op["name"] for graph in document.graphs() for op in graph.ops], list(document.net.fields)
    standalone.opened(document, view(document, "y"), values(x=X))
    assert ([op["name"] for graph in document.graphs() for op in graph.ops], list(document.net.fields)) == before


def test_a_part_between_known_values_keeps_its_branches(document: Document, tmp_path: Path) -> None:
    part = standalone.between(document, view(document, "y"), [("y", 0)], values(c=np.array(False), a=np.exp(X)))
    assert "If" in file_info(part.document).op_counts
    assert "x" not in part.feeds
    np.testing.assert_allclose(run(part, tmp_path)["y"], np.sin(np.sqrt(np.exp(X))), rtol=1e-5)


def test_small_integers_become_constants_in_branches(tmp_path: Path) -> None:
    model = parse("""g (bool c, float[2,3] x, int64[2] s) => (float[3,2] y) {
        y = If (c) <then_branch = t () => (float[3,2] p) { p = Reshape(x, s) },
            else_branch = e () => (float[3,2] q) { n = Neg(x) q = Reshape(n, s) }> }""")
    document = read(converted(model, tmp_path)[1])
    graph = view(document, "n")
    part = standalone.opened(document, graph, values(x=X, s=np.array([3, 2])))
    assert list(part.feeds) == ["x"]
    np.testing.assert_allclose(next(iter(run(part, tmp_path).values())), -X.reshape(3, 2))


def test_values_of_blocks_of_channels_are_told(tmp_path: Path) -> None:
    model = parse("""g (float[1,2,4,4] x) => (float[1,32] y)
    <float[2,2,1,1] w = {1.0,2.0,3.0,4.0}> { c = Conv(x, w) r = Sin(c) y = Flatten<axis = 1>(r) }""")
    document = read(converted(model, tmp_path)[1])
    graph = next(document.graphs())
    blocked = standalone.channelled(graph)
    inside = {op["name"] for op in graph.ops if blocked.issuperset(op.ints("outputIndexes"))}
    assert {"c", "r"} <= inside
    assert "x" not in inside


def test_names_that_come_up_twice_are_told_apart() -> None:
    assert standalone._unique(["a", "b", "a"]) == ["a", "b", "a#2"]


def test_a_scalar_becomes_a_constant_without_dimensions(document: Document) -> None:
    graph = view(document, "p1")
    asked: list[str] = []

    def value(op: Table, slot: int, name: str) -> np.ndarray | None:
        asked.append(name)
        return np.array(7) if name == "a" else None

    part = standalone.opened(document, graph, value)
    constant = next(op for op in part.document.net.tables("oplists") if op.label("type") == "Const")
    assert "dims" not in constant["main"]
    assert constant["main"].ints("int32s") == (7,)
    assert "a" in asked
