"""What edits ask of a graph: operators and tensors by name or index, who writes a tensor and who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

import numpy as np

from graphkit.errors import UsageError
from graphkit.mnn.document._path_text import quoted
from graphkit.mnn.document.tree import Table

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document, GraphView

CONSTANTS = frozenset({"Const", "TrainableParam"})
_LISTED = 8


@dataclass(frozen=True)
class Edit:
    """One change that was made: `action` is the verb, `where` the path of what changed, `detail` a line for people."""

    action: str
    where: str
    detail: str


def main_graph(doc: Document) -> GraphView:
    """The graph that the net itself holds."""
    return next(doc.graphs())


def graph_named(doc: Document, name: str | None) -> GraphView:
    """A subgraph by name, the main graph for None or "". Raises UsageError."""
    if not name:
        return main_graph(doc)
    graphs = [graph for graph in list(doc.graphs())[1:] if graph.name == name]
    if len(graphs) == 1:
        return graphs[0]
    if graphs:
        raise UsageError(f"{len(graphs)} subgraphs are named '{name}'", hint="rename one: subgraphs[INDEX].name=…")
    raise unknown("subgraph", name, (graph.name for graph in list(doc.graphs())[1:]))


def find_op(doc: Document, key: str | int, graph: str | None = None) -> tuple[GraphView, int]:
    """The graph and the position of an operator: by its name anywhere, or by its index in the graph.

    `graph` is the subgraph to look in; without it the main graph is looked in first, then all others. A text of
    digits is an index when no operator has that name. Raises UsageError when there is none, or more than one.
    """
    if graph is not None:
        return _op_in([graph_named(doc, graph)], key)
    main, *others = doc.graphs()
    if isinstance(key, int) or any(op["name"] == key for op in main.ops):
        return _op_in([main], key)
    if key.isdecimal() and not any(op["name"] == key for view in others for op in view.ops):
        return _op_in([main], int(key))
    return _op_in([main, *others], key)


def _op_in(graphs: list[GraphView], key: str | int) -> tuple[GraphView, int]:
    if isinstance(key, int):
        graph = graphs[0]
        return graph, in_range(key, len(graph.ops), f"operators of {title(graph)}")
    found = [(graph, at) for graph in graphs for at, op in enumerate(graph.ops) if op["name"] == key]
    if len(found) == 1:
        return found[0]
    if found:
        places = [op_path(graph, at, by_index=True) for graph, at in found[:_LISTED]]
        raise UsageError(
            f"{len(found)} operators are named '{key}': {', '.join(places)}",
            hint="take one by its index, or say which subgraph with --graph NAME",
        )
    raise unknown("operator", key, (op["name"] or "" for graph in graphs for op in graph.ops))


def find_tensor(graph: GraphView, key: str | int) -> int:
    """The index of a tensor by name or index; a text of digits is an index when no tensor has that name.

    Raises UsageError when there is none of the name, or more than one.
    """
    if isinstance(key, int):
        return in_range(key, len(graph.tensors), f"tensors of {title(graph)}")
    found = [at for at, name in enumerate(graph.tensors) if name == key]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} tensors of {title(graph)} are named '{key}': {_some(found)}",
            hint="take one by its index; it gets a name of its own then",
        )
    if key.isdecimal():
        return find_tensor(graph, int(key))
    raise unknown("tensor", key, graph.tensors)


def in_range(index: int, count: int, what: str) -> int:
    """An index that may count from the end, checked. Raises UsageError."""
    if not -count <= index < count:
        raise UsageError(f"there is no index {index} among the {count} {what}")
    return index % count


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that does not exist, with the nearest that does."""
    names = [other for other in dict.fromkeys(known) if other]
    near = get_close_matches(name[:200], names, n=1)
    hint = None if near else f"there are {', '.join(names[:_LISTED])}{' …' if len(names) > _LISTED else ''}"
    meant = f"; did you mean '{near[0]}'?" if near else ""
    return UsageError(f"no {kind} is named '{name}'{meant}", hint=hint if names else f"there is no {kind} at all")


def title(graph: GraphView) -> str:
    """A graph in a sentence."""
    return f"subgraph '{graph.name}'" if graph.where.startswith("subgraphs") else "the main graph"


def op_path(graph: GraphView, at: int, *, by_index: bool = False) -> str:
    """The path of an operator: `ops[conv1]`, `subgraphs[body].ops[3]`."""
    name = graph.ops[at]["name"]
    alone = bool(name) and sum(op["name"] == name for op in graph.ops) == 1
    key = quoted(name) if alone and not by_index else str(at)
    prefix = f"subgraphs[{quoted(graph.name)}]." if graph.where.startswith("subgraphs") else ""
    return f"{prefix}ops[{key}]"


def writers(graph: GraphView, tensor: int) -> list[int]:
    """Positions of the operators that write a tensor."""
    return [at for at, op in enumerate(graph.ops) if tensor in op.ints("outputIndexes")]


def readers(graph: GraphView, tensor: int) -> list[int]:
    """Positions of the operators that read a tensor."""
    return [at for at, op in enumerate(graph.ops) if tensor in op.ints("inputIndexes")]


def result_tensors(graph: GraphView) -> set[int]:
    """Indexes of what a graph hands out: outputs by name of the main graph, by index of a subgraph."""
    if graph.table.type.name == "Net":
        wanted = set(graph.table.texts("outputName"))
        return {at for at, name in enumerate(graph.tensors) if name in wanted}
    return set(graph.table.ints("outputs"))


def tensor_name(graph: GraphView, tensor: int) -> str:
    """The name of a tensor in a sentence; files may speak of tensors that they do not have."""
    return graph.tensors[tensor] if 0 <= tensor < len(graph.tensors) else f"number {tensor}"


def replace_index(op: Table, field: str, old: int, new: int) -> None:
    """Put another tensor in the place of one that an operator reads or writes."""
    held = op.fields[field]
    op.fields[field] = np.where(held == old, held.dtype.type(new), held)


def calls(doc: Document) -> Iterator[Table]:
    """The parameters of all If and While operators, which call subgraphs by name."""
    for graph in doc.graphs():
        for op in graph.ops:
            main = op["main"]
            if isinstance(main, Table) and main.type.name in ("IfParam", "WhileParam"):
                yield main


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:_LISTED])) + (" …" if len(numbers) > _LISTED else "")
