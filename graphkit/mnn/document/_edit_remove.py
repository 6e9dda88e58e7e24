"""Take operators out of a graph; what read their results reads their data input instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.mnn.document._edit_graph import (
    CONSTANTS,
    Edit,
    find_op,
    op_path,
    readers,
    replace_index,
    result_tensors,
    tensor_name,
    writers,
)

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document, GraphView
    from graphkit.mnn.document.tree import Table

_LISTED = 5


def remove_op(doc: Document, op: str | int, *, graph: str | None = None) -> Edit:
    """Remove an operator, given by name or index, from the main graph or from a subgraph.

    Who read its result reads its data input from then on: its only input, or the only one that is no constant. A
    result that is an output keeps its name and its place: the operator before writes it. Constants that nothing
    else reads go too. An operator whose results nobody uses just goes. Tensors keep their indexes.

    Raises UsageError, and changes nothing, when there is no such operator, when it has several data inputs, none,
    or several results in use, and when an output would be an input of the model itself.
    """
    view, at = find_op(doc, op, graph)
    table = view.ops[at]
    where = op_path(view, at)
    label = f"'{table['name'] or at}' ({table.label('type')})"
    used = _used_results(view, table)
    detail = f"removed {label}"
    if used:
        source = _data_input(view, table, label, used)
        detail += _rewire(view, at, used[0], source, label)
    view.ops.remove(table)
    gone = _drop_constants(view, table)
    _forget(view, table)
    if gone:
        detail += f"; constants that only it read went too: {', '.join(gone)}"
    return Edit("remove", where, detail)


def _used_results(view: GraphView, op: Table) -> list[int]:
    handed_out = result_tensors(view)
    return [tensor for tensor in op.ints("outputIndexes") if tensor in handed_out or readers(view, tensor)]


def _data_input(view: GraphView, op: Table, label: str, used: list[int]) -> int:
    """The tensor that takes the place of the operator's result."""
    users = ", ".join(_user(view, tensor) for tensor in used[:_LISTED])
    if len(used) > 1:
        raise UsageError(
            f"{label} has {len(used)} results in use ({users}); one input cannot take the place of all",
            hint="first remove the operators that read them",
        )
    inputs = list(dict.fromkeys(op.ints("inputIndexes")))
    data = [tensor for tensor in inputs if not _is_constant(view, tensor)]
    if len(data) == 1:
        return data[0]
    if not inputs:
        what = "is an input of the model" if op.label("type") == "Input" else "reads nothing"
        raise UsageError(f"{label} {what}, and its result is in use ({users})", hint="first remove what reads it")
    names = ", ".join(f"'{tensor_name(view, tensor)}'" for tensor in (data or inputs)[:_LISTED])
    kind = "data inputs" if data else "inputs, all constant"
    raise UsageError(
        f"{label} has {len(data) or len(inputs)} {kind} ({names}); which of them should take its place is not clear",
        hint="only operators with one data input are removed; rewire others by their inputIndexes with `mnn set`",
    )


def _is_constant(view: GraphView, tensor: int) -> bool:
    sources = writers(view, tensor)
    return bool(sources) and all(view.ops[at].label("type") in CONSTANTS for at in sources)


def _user(view: GraphView, tensor: int) -> str:
    found = readers(view, tensor)
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return (
        f"'{tensor_name(view, tensor)}' by {view.ops[found[0]]['name']!r}{more}"
        if found
        else repr(tensor_name(view, tensor))
    )


def _rewire(view: GraphView, at: int, result: int, source: int, label: str) -> str:
    """Let the result's users have the source; what was done, in words."""
    if result in result_tensors(view):
        return _keep_result(view, at, result, source, label)
    users = readers(view, result)
    for user in users:
        replace_index(view.ops[user], "inputIndexes", result, source)
    who = repr(view.ops[users[0]]["name"]) if len(users) == 1 else f"{len(users)} operators"
    return f"; {who} now read{'s' if len(users) == 1 else ''} '{tensor_name(view, source)}'"


def _keep_result(view: GraphView, at: int, result: int, source: int, label: str) -> str:
    """The result is handed out: who writes the source writes the result, and all who read the source read it."""
    name = tensor_name(view, result)
    sources = writers(view, source)
    if source in result_tensors(view):
        raise UsageError(
            f"without {label} the outputs '{tensor_name(view, source)}' and '{name}' would be one",
            hint=f"first remove one of them: graphkit mnn outputs remove M.mnn '{name}'",
        )
    if len(sources) != 1 or view.ops[sources[0]].label("type") == "Input":
        raise UsageError(
            f"without {label} the output '{name}' would be the input '{tensor_name(view, source)}' itself",
            hint="name another tensor as output first, with `graphkit mnn outputs`",
        )
    replace_index(view.ops[sources[0]], "outputIndexes", source, result)
    for user in readers(view, source):
        if user != at:
            replace_index(view.ops[user], "inputIndexes", source, result)
    return f"; {view.ops[sources[0]]['name']!r} now writes '{name}'"


def _drop_constants(view: GraphView, removed: Table) -> list[str]:
    """Remove constants that only the removed operator read; their names."""
    handed_out = result_tensors(view)
    gone = []
    for tensor in dict.fromkeys(removed.ints("inputIndexes")):
        if tensor in handed_out or readers(view, tensor) or not _is_constant(view, tensor):
            continue
        for at in reversed(writers(view, tensor)):
            constant = view.ops.pop(at)
            gone.append(f"'{constant['name']}'")
            _forget(view, constant)
    return gone


def _forget(view: GraphView, removed: Table) -> None:
    """Drop descriptions of tensors that nobody writes any more."""
    described = view.table.fields.get("extraTensorDescribe")
    if not described:
        return
    dead = {tensor for tensor in removed.ints("outputIndexes") if not writers(view, tensor)}
    described[:] = [entry for entry in described if entry["index"] not in dead]
