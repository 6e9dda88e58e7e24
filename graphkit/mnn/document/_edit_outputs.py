"""What the net hands out: tensors of the main graph, by the names in `outputName`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.mnn.document._edit_graph import Edit, find_tensor, main_graph, readers, unknown, writers

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document, GraphView


def add_outputs(doc: Document, tensors: Sequence[str | int]) -> list[Edit]:
    """Make tensors of the main graph outputs, after those that are there.

    A tensor is given by name or index. MNN finds outputs by name, so that one whose name another tensor has too, or
    that has none, gets a name of its own (`relu_12` for index 12). Raises UsageError for tensors that do not exist,
    that no operator writes, or that are outputs already.
    """
    graph = main_graph(doc)
    found = [_output(graph, key) for key in tensors]
    names = [graph.tensors[at] for at in found]
    outputs = doc.net.texts("outputName")
    for name in names:
        if name in outputs and (count := graph.tensors.count(name)) > 1:
            raise UsageError(
                f"'{name}' is an output already, and {count} tensors have that name",
                hint="give the one that is meant a name of its own: tensors[INDEX]=NAME with `mnn set`",
            )
    _check_once(outputs, graph, found)
    edits = []
    for at in found:
        edits += _own_name(graph, at)
        name = graph.tensors[at]
        doc.net.fields["outputName"] = [*doc.net.texts("outputName"), name]
        edits.append(Edit("add output", f"outputs[{len(doc.net.texts('outputName')) - 1}]", f"'{name}' is an output"))
    return edits


def remove_outputs(doc: Document, names: Sequence[str | int]) -> list[Edit]:
    """Hand some outputs out no more, given by name or by their place among the outputs; operators stay.

    Raises UsageError for what is no output, and when none would be left.
    """
    outputs = list(doc.net.texts("outputName"))
    gone = {_output_name(outputs, name) for name in names}
    left = [name for name in outputs if name not in gone]
    if not left:
        raise UsageError("a model without outputs computes nothing", hint="add another output first")
    doc.net.fields["outputName"] = left
    return [Edit("remove output", "outputs", f"'{name}' is no output any more") for name in outputs if name in gone]


def set_outputs(doc: Document, names: Sequence[str | int]) -> Edit:
    """Hand out these tensors and no others, in this order. Raises UsageError as `add_outputs`."""
    if not names:
        raise UsageError("a model without outputs computes nothing", hint="name at least one tensor")
    graph = main_graph(doc)
    found = [_output(graph, name) for name in names]
    _check_once([], graph, found)
    for at in found:
        _own_name(graph, at)
    outputs = [graph.tensors[at] for at in found]
    doc.net.fields["outputName"] = outputs
    return Edit("set outputs", "outputs", f"the outputs are {', '.join(repr(name) for name in outputs)}")


def _output(graph: GraphView, key: str | int) -> int:
    """The index of a tensor that can be an output."""
    at = find_tensor(graph, key)
    if not writers(graph, at):
        used = "though operators read it" if readers(graph, at) else "and none reads it"
        raise UsageError(f"no operator writes tensor '{graph.tensors[at]}', {used}: it has no value to hand out")
    return at


def _own_name(graph: GraphView, at: int) -> list[Edit]:
    """Give a tensor a name that no other has; nothing when it has one."""
    name = graph.tensors[at]
    if name and graph.tensors.count(name) == 1:
        return []
    taken = set(graph.tensors)
    fresh = f"{name or 'tensor'}_{at}"
    while fresh in taken:
        fresh += "_"
    graph.tensors[at] = fresh
    why = f"another has the name '{name}' too" if name else "it had no name"
    return [Edit("rename", f"tensors[{at}]", f"tensor {at} is '{fresh}': {why}")]


def _check_once(outputs: list[str], graph: GraphView, found: list[int]) -> None:
    for at in found:
        if found.count(at) > 1 or graph.tensors[at] in outputs:
            raise UsageError(f"'{graph.tensors[at]}' would be an output twice")


def _output_name(outputs: list[str], key: str | int) -> str:
    if isinstance(key, str) and key in outputs:
        return key
    if isinstance(key, int) or key.isdecimal():
        at = int(key)
        if -len(outputs) <= at < len(outputs):
            return outputs[at]
        raise UsageError(f"there is no output {at}; there are {len(outputs)}")
    raise unknown("output", key, outputs)
