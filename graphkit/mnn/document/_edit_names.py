"""Rename operators and tensors, wherever their names are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.mnn.document._edit_graph import (
    Edit,
    calls,
    find_op,
    find_tensor,
    graph_named,
    main_graph,
    op_path,
    title,
    unknown,
)
from graphkit.mnn.document._path_text import quoted

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document, GraphView
    from graphkit.mnn.document.tree import Table

_BRANCHES = {"IfParam": ("then_graph", "else_graph"), "WhileParam": ("cond_graph", "body_graph")}


def rename(doc: Document, old: str, new: str, *, graph: str | None = None) -> list[Edit]:
    """Rename the operator and the tensor that are named `old`: both when there are both, as is MNN's habit.

    `graph` is the subgraph to look in; without it the main graph, else the only subgraph that knows the name.
    Raises UsageError when neither exists, when subgraphs leave a choice, or when `new` is taken.
    """
    view = _graph_with(doc, old, graph)
    named = any(op["name"] == old for op in view.ops)
    if named:
        find_op(doc, old, view.name)
        _check_new_op(view, new)
    edits = [rename_tensor(doc, old, new, graph=view.name)] if old in view.tensors else []
    return [*edits, rename_op(doc, old, new, graph=view.name)] if named else edits


def rename_op(doc: Document, old: str | int, new: str, *, graph: str | None = None) -> Edit:
    """Rename an operator, given by name or index. Raises UsageError when `new` is taken in its graph."""
    view, at = find_op(doc, old, graph)
    _check_new_op(view, new)
    before = view.ops[at]["name"]
    view.ops[at].fields["name"] = new
    return Edit("rename", op_path(view, at), f"operator '{before}' is '{new}'")


def rename_tensor(doc: Document, old: str | int, new: str, *, graph: str | None = None) -> Edit:
    """Rename a tensor, given by name or index, everywhere: in its graph, in the outputs, in the descriptions of
    tensors, and in the If and While operators that hand values to its subgraph.

    Raises UsageError when `new` is taken in its graph.
    """
    view = graph_named(doc, graph)
    at = find_tensor(view, old)
    _check_new(new, view.tensors, f"a tensor of {title(view)}")
    before = view.tensors[at]
    if shared := view.tensors.count(before) > 1:
        found = []
    else:
        found = [(call, keep) for call, keep in _calls_of(doc, view, before)]
        _check_updates(found, before)
    view.tensors[at] = new
    for described in view.table.tables("extraTensorDescribe"):
        if described["index"] == at and described.fields.get("name") == before:
            described.fields["name"] = new
    if view.table is doc.net and not shared:
        outputs = doc.net.texts("outputName")
        outputs[:] = [new if name == before else name for name in outputs]
    for call, keep in found:
        _rename_aliases(call, view.name, before, new, keep)
    prefix = f"subgraphs[{quoted(view.name)}]." if view.where.startswith("subgraphs") else ""
    return Edit("rename", f"{prefix}tensors[{at}]", f"tensor '{before}' is '{new}'")


def _graph_with(doc: Document, name: str, graph: str | None) -> GraphView:
    if graph is not None:
        views = [graph_named(doc, graph)]
    else:
        main, *others = doc.graphs()
        views = [main] if _knows(main, name) else [view for view in others if _knows(view, name)]
    found = [view for view in views if _knows(view, name)]
    if len(found) == 1:
        return found[0]
    if found:
        known = ", ".join(f"'{view.name}'" for view in found[:8])
        raise UsageError(f"'{name}' is in {len(found)} subgraphs: {known}", hint="say which with --graph NAME")
    everywhere = [main_graph(doc)] if graph == "" else views or list(doc.graphs())
    names = [name for view in everywhere for name in (*(str(op["name"] or "") for op in view.ops), *view.tensors)]
    raise unknown("operator or tensor", name, names)


def _knows(view: GraphView, name: str) -> bool:
    return name in view.tensors or any(op["name"] == name for op in view.ops)


def _check_new_op(view: GraphView, new: str) -> None:
    _check_new(new, (op["name"] for op in view.ops), f"an operator of {title(view)}")


def _check_new(new: str, taken: Iterable[str | None], what: str) -> None:
    if not new:
        raise UsageError("a new name cannot be empty")
    if new in set(taken):
        raise UsageError(f"'{new}' already is {what}", hint="rename that one first")


def _calls_of(doc: Document, view: GraphView, tensor: str) -> Iterator[tuple[Table, bool]]:
    """The calls of a subgraph, and whether the other graph of each call has a tensor of that name too."""
    tensors = {other.name: other.tensors for other in doc.graphs() if other.table is not view.table}
    for call in calls(doc) if view.table is not doc.net else ():
        names = [str(call[field] or "") for field in _BRANCHES[call.type.name]]
        if view.name in names:
            other = [name for name in names if name != view.name]
            yield call, any(tensor in tensors.get(name, ()) for name in other)


def _check_updates(found: list[tuple[Table, bool]], name: str) -> None:
    """What a loop updates is one name for both of its graphs."""
    for call, keep in found:
        if keep and any(name in vector.texts("data") for vector in _updates(call)):
            raise UsageError(
                f"the condition and the body of a loop both have a tensor '{name}'",
                hint="rename it in the other one first",
            )


def _updates(call: Table) -> list[Table]:
    return call.tables("aliases_updates") if call.type.name == "WhileParam" else []


def _rename_aliases(call: Table, graph: str, old: str, new: str, keep: bool) -> None:
    """Rename a tensor in a call. `keep`: the other branch has a tensor of the old name, which is meant too."""
    news = [old, new] if keep else [new]
    for vector in call.tables("aliases_inputs"):
        names = vector.texts("data")
        names[:] = dict.fromkeys(name for known in names for name in (news if known == old else [known]))
    for vector in _updates(call):
        names = vector.texts("data")
        names[:] = [new if name == old else name for name in names]
    if call.type.name == "IfParam":
        sides = (call["then_graph"], call["else_graph"])
        for pair in call.tables("aliases_outputs"):
            names = pair.texts("data")
            names[:] = [new if (name, side) == (old, graph) else name for name, side in zip(names, sides, strict=False)]
    elif call["body_graph"] == graph:
        outputs = call.texts("aliases_outputs")
        outputs[:] = [new if name == old else name for name in outputs]
