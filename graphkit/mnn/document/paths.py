"""Values of a document by the path of their place, to read and to set.

A path is fields with dots between them and elements in brackets, by index (from the end when negative) or by name:
`ops[conv1].main.common.strideX`, `subgraphs[body].ops[0].name`, `tensorName[2]`. A name may hold anything; one with
brackets in it, or that looks like a number, is quoted as JSON: `ops["12"]`. Besides MNN's own fields there are

- `ops`: the operators, `oplists` of the net and `nodes` of a subgraph;
- `inputs[data]`: the parameters (dims, dtype, dformat) of an operator that is an input of the net;
- `outputs`: the net's `outputName`, where only names of tensors go in;
- `tensors`: names of tensors; to set one renames it everywhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from graphkit.errors import ModelError, UsageError
from graphkit.mnn.document._edit_graph import Edit
from graphkit.mnn.document._edit_names import rename_tensor
from graphkit.mnn.document._edit_outputs import set_outputs
from graphkit.mnn.document._path_place import Place, input_ops, locate
from graphkit.mnn.document._path_text import Step, parse_path, quoted, split_assignment
from graphkit.mnn.document.schema import Field, Schema
from graphkit.mnn.document.tree import Array, Table
from graphkit.mnn.document.values import Encoder, from_plain, to_plain

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document

__all__ = ["get", "get_plain", "input_ops", "locate", "quoted", "set_text", "set_value", "split_assignment"]


def get(doc: Document, path: str) -> Any:
    """The value at a path: a table, a list, an array, a number, a text; enums as names.

    `get(doc, "inputs")` gives the parameters of all inputs by name. None for a table, list or text that the file
    does not hold. Raises UsageError for a path that leads nowhere.
    """
    if path.strip() == "inputs":
        return {str(op["name"]): op["main"] for op in input_ops(doc)}
    place = locate(doc, path)
    value = place.get()
    if place.field.kind in ("enum", "utype") and place.element:
        return to_plain(value, place.single, place.table.schema)
    return value


def get_plain(doc: Document, path: str, *, longest: int | None = None) -> Any:
    """The value at a path in JSON's types, exact. Raises UsageError.

    longest: inside of tables, longer arrays are told as text, such as `float32[864]`.
    """
    encoder = _Encoder(doc.schema, longest)
    if path.strip() == "inputs":
        return {name: table and encoder.table(table, "") for name, table in get(doc, path).items()}
    place = locate(doc, path)
    value = place.get()
    if isinstance(value, np.ndarray):
        return to_plain(value, place.field, doc.schema)
    return None if value is None else encoder.value(value, place.field if place.index is None else place.single, "")


class _Encoder(Encoder):
    """Values in JSON's types, with long arrays as text."""

    def __init__(self, schema: Schema, longest: int | None) -> None:
        super().__init__(schema)
        self._longest = longest

    def array(self, array: Array, field: Field, path: str) -> Any:
        """A vector of numbers."""
        if self._longest is not None and array.size > self._longest:
            return f"{array.dtype.name}[{array.size}]"
        return super().array(array, field, path)


def set_value(doc: Document, path: str, value: Any) -> Edit:
    """Set the value at a path; `value` is in JSON's types (as `json.loads` gives), None takes the field away.

    Checked: that the place exists, types, ranges, enum names, fields of tables. Whether the document is still a
    model that MNN runs is for `edits.save` to find. Raises UsageError and leaves the document as it was.
    """
    steps = parse_path(path)
    place = locate(doc, path)
    if steps[-1].field == "tensors" or (len(steps) == 1 and steps[0].field == "outputs"):
        return _set_checked(doc, place, steps[-1], value)
    before = _brief(place)
    try:
        _store(place, value)
    except ModelError as error:
        raise UsageError(error.message, hint=error.hint) from error
    return Edit("set", path, f"{path}: {before} → {_brief(place)}")


def set_text(doc: Document, path: str, text: str) -> Edit:
    """As `set_value`, of a text as the command line takes it: JSON, or bare text for names and enums."""
    place = locate(doc, path)
    return set_value(doc, path, _value_of(text, place))


def _set_checked(doc: Document, place: Place, step: Step, value: Any) -> Edit:
    """Set `outputs`, `outputs[K]` or `tensors[K]`, by the edit that keeps all else in step."""
    if place.index is None and step.field == "tensors":
        raise UsageError("names of tensors are set one by one: tensors[3]=NAME")
    names = value if place.index is None else [value]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        what = "a list of names" if place.index is None else "a name"
        raise UsageError(f"{step.text}: expected {what}, got {json.dumps(value)[:60]}")
    if place.index is None:
        return set_outputs(doc, names)
    if step.field == "tensors":
        graph = place.table["name"] if place.table is not doc.net else None
        return rename_tensor(doc, place.index, value, graph=graph)
    outputs = list(doc.net.texts("outputName"))
    outputs[place.index] = value
    return set_outputs(doc, outputs)


def _store(place: Place, value: Any) -> None:
    field, table = place.field, place.table
    if field.kind == "utype" and isinstance(table["main"], Table):
        raise UsageError(
            f"{place.where}: {table['main'].type.name} are the parameters that the operator has",
            hint="set main to null first, or change both with `graphkit mnn patch`",
        )
    if value is None and place.index is None:
        table.fields.pop(field.name, None)
        return
    member = _member(place) if field.kind == "union" else None
    place.put(
        from_plain(value, field if place.index is None else place.single, table.schema, place.where, member=member)
    )


def _member(place: Place) -> str:
    held = place.table["main"]
    if isinstance(held, Table):
        return held.type.name
    number = int(place.table["main_type"])
    members = place.table.schema.members
    if not 0 < number < len(members):
        raise UsageError(f"{place.where}: main_type does not say which table it is", hint="set main_type first")
    return members[number]


def _value_of(text: str, place: Place) -> Any:
    try:
        value = json.loads(text, parse_constant=lambda word: word)
    except (ValueError, RecursionError):
        value = text
    texts = place.field.kind == "string" and place.element
    return text if texts and not isinstance(value, str) and value is not None else value


def _brief(place: Place) -> str:
    """A value in few characters."""
    value = place.get()
    if isinstance(value, Table):
        return value.type.name
    if value is None:
        return "nothing"
    if place.index is None and place.field.vector and len(value) > 16:
        return f"{len(value)} elements"
    field = place.field if place.index is None else place.single
    if place.field.kind == "table":
        return f"{len(value)} tables"
    plain = to_plain(value, field, place.table.schema)
    return plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
