"""Where a path leads: a field of a table, or one element of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from graphkit.errors import UsageError
from graphkit.mnn.document._edit_graph import find_op, in_range, main_graph, op_path, unknown
from graphkit.mnn.document._path_text import Step, parse_path, quoted
from graphkit.mnn.document.schema import Field
from graphkit.mnn.document.tree import Array, Table

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document

_ALIASES = {"Net": {"ops": "oplists", "outputs": "outputName", "tensors": "tensorName"}}
_ALIASES["SubGraphProto"] = {"ops": "nodes"}
_KINDS = {"Op": "operator", "SubGraphProto": "subgraph"}
_NAMED = {"Attribute": "key"}  # what names an element of a list, where that is not 'name'


@dataclass(frozen=True)
class Place:
    """Where a value is: a field of a table, or one element of it. `member` is the table of a union."""

    table: Table
    field: Field
    index: int | None
    where: str

    @property
    def element(self) -> bool:
        """True for one value, False for a whole list."""
        return self.index is not None or not self.field.vector

    @property
    def single(self) -> Field:
        """The field as that of one element of its list."""
        return replace(self.field, vector=False)

    def get(self) -> Any:
        """The value; the schema's default when the file does not hold it."""
        held = self.table[self.field.name]
        return held if self.index is None else held[self.index]

    def put(self, value: Any) -> None:
        """Store a value of the document's own types."""
        if self.index is None:
            self.table.fields[self.field.name] = value
            return
        held = self.table.fields[self.field.name]
        if isinstance(held, list):
            held[self.index] = value
        else:
            copied = held.copy()  # a view of the file cannot be written
            copied[self.index] = value
            self.table.fields[self.field.name] = copied


def locate(doc: Document, path: str) -> Place:
    """The place that a path means; every table on the way must be there. Raises UsageError."""
    steps = parse_path(path)
    table, rest = doc.net, steps
    if steps[0].field == "inputs":
        table, rest = _input(doc, steps[0]), steps[1:]
        if not rest:
            op = next(op for op in input_ops(doc) if op["main"] is table)
            return Place(op, op.field("main"), None, path)
    for step in rest[:-1]:
        table = _table_at(doc, _place(doc, table, step))
    return _place(doc, table, rest[-1])


def input_ops(doc: Document) -> list[Table]:
    """The operators that are inputs of the net, in order."""
    return [op for op in main_graph(doc).ops if op.label("type") == "Input"]


def _input(doc: Document, step: Step) -> Table:
    ops = input_ops(doc)
    names = [str(op["name"] or "") for op in ops]
    if isinstance(step.key, str):
        if names.count(step.key) != 1:
            raise unknown("input", step.key, names)
        op = ops[names.index(step.key)]
    elif step.key is None:
        listing = ", ".join(f"inputs[{quoted(name)}]" for name in names)
        raise UsageError(f"'{step.text}' are {len(names)} inputs; name one", hint=f"write {listing}" if names else None)
    else:
        op = ops[in_range(step.key, len(ops), "inputs")]
    main = op["main"]
    if not isinstance(main, Table):
        raise UsageError(f"input '{op['name']}' has no parameters in this file", hint="add them with `mnn patch`")
    return main


def _place(doc: Document, table: Table, step: Step) -> Place:
    name = _ALIASES.get(table.type.name, {}).get(step.field, step.field)
    if name not in table.type.fields:
        raise _no_field(table, step)
    field = table.field(name)
    if step.key is None:
        return Place(table, field, None, step.text)
    if not field.vector:
        raise UsageError(f"{table.type.name}.{name} is no list, so '{step.text}' leads nowhere")
    held = table.fields.get(name)
    elements: Sequence[Any] | Array = [] if held is None else held
    if isinstance(step.key, int):
        return Place(table, field, in_range(step.key, len(elements), f"elements of '{_stem(step)}'"), step.text)
    return Place(table, field, _by_name(doc, field, elements, step), step.text)


def _by_name(doc: Document, field: Field, elements: Sequence[Any] | Array, step: Step) -> int:
    key = str(step.key)
    if field.kind not in ("table", "string"):
        raise UsageError(f"elements of '{_stem(step)}' have no names", hint=f"take one by index: {_stem(step)}[0]")
    attribute = _NAMED.get(field.type, "name")
    names = [str(item if isinstance(item, str) else item.fields.get(attribute, "")) for item in elements]
    found = [at for at, name in enumerate(names) if name == key]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} elements of '{_stem(step)}' are named '{key}'",
            hint=f"take one by its index: {', '.join(f'{_stem(step)}[{at}]' for at in found[:8])}",
        )
    error = unknown(_KINDS.get(field.type, "element"), key, names)
    if field.type == "Op" and (elsewhere := _elsewhere(doc, key)):
        error.hint = f"there is {elsewhere}"
    raise error


def _elsewhere(doc: Document, name: str) -> str | None:
    try:
        graph, at = find_op(doc, name)
    except UsageError:
        return None
    return op_path(graph, at)


def _table_at(doc: Document, place: Place) -> Table:
    value = place.get()
    if isinstance(value, Table):
        return value
    if isinstance(value, list):
        raise UsageError(f"'{place.where}' is a list", hint=f"name an element: {place.where}[0] or {place.where}[NAME]")
    if value is None and place.field.kind in ("table", "union"):
        raise UsageError(f"'{place.where}' is not in this file", hint=f"set it as a whole: {place.where}={{…}}")
    raise UsageError(f"'{place.where}' is a value; it has no fields")


def _no_field(table: Table, step: Step) -> UsageError:
    names = [*table.type.fields, *_ALIASES.get(table.type.name, {})]
    if table.type.name == "Net":
        names.append("inputs")
    error = unknown("field", step.field, names)
    error.message = f"{table.type.name} has {error.message.replace('is named ', '', 1)}"
    if table.type.name == "Input" and step.field == "name":
        error.hint = "an input is renamed with `graphkit mnn rename OLD NEW`"
    else:
        error.hint = f"fields of {table.type.name}: {', '.join(names)}"
    return UsageError(error.message, hint=error.hint)


def _stem(step: Step) -> str:
    return step.text[: step.text.rindex("[", 0, len(step.text) - len(str(step.key)))]
