"""Single values of a document as JSON values and back: tables as objects, enums by name, floats exact.

`to_plain` and `from_plain` take one value of one field. The JSON forms of whole documents subclass `Encoder` and
`Decoder` to put long arrays elsewhere and to write tensors by name.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import ModelError
from graphkit.mnn.document import _json_numbers as numbers
from graphkit.mnn.document._json_text import Repeated
from graphkit.mnn.document.schema import Field, Schema, TableType
from graphkit.mnn.document.tree import Table

MAX_DEPTH = 64  # tables inside tables, as in the reader of files
_FIRST = ("name", "key", "type", "main_type", "inputIndexes", "outputIndexes")  # what a person looks for
_LAST = ("main",)

Array = npt.NDArray[Any]


def to_plain(value: Any, field: Field, schema: Schema) -> Any:
    """One value of a field as what `json.dumps` takes: tables as dicts, vectors as lists, enums as names.

    Floats that are no JSON number are text (see `_json_numbers`). Strings keep lone surrogates (bytes that are no
    UTF-8). The members of a union are dicts of their fields: `main_type` beside it says which.
    """
    return Encoder(schema).value(value, field, "")


def from_plain(raw: Any, field: Field, schema: Schema, where: str, *, member: str | None = None) -> Any:
    """The value of a field that a JSON value stands for, checked: kinds, ranges, names, fields of tables.

    `member` names the table when the field is a union. Raises ModelError naming `where`, which is the path of the
    field for people (`ops[conv1].main.common.strideX`).
    """
    return Decoder(schema).value(raw, field, where, member)


def table_from_plain(raw: Any, type_: TableType, schema: Schema, where: str) -> Table:
    """The table that a JSON object stands for, checked. Raises ModelError naming the field."""
    return Decoder(schema).table(raw, type_, where)


@functools.cache
def _ordered(names: tuple[str, ...]) -> tuple[str, ...]:
    head = [name for name in _FIRST if name in names]
    tail = [name for name in _LAST if name in names]
    return (*head, *(name for name in names if name not in head and name not in tail), *tail)


def _check_names(raw: Mapping[str, Any], type_: TableType, where: str) -> None:
    """Raise ModelError for a field that the table does not have, or that stands twice."""
    if isinstance(raw, Repeated):
        raise ModelError(f"{where}: holds {numbers.show(raw.key)} twice", hint="keep one of them")
    unknown = next((name for name in raw if name not in type_.fields), None)
    if unknown is not None:
        raise ModelError(
            f"{where}: {type_.name} has no field {numbers.show(unknown)}{numbers.meant(unknown, type_.fields)}",
            hint=f"fields of {type_.name}: {', '.join(type_.fields)}",
        )


class Encoder:
    """Values as JSON values. `path` names the place, for those who override `array` and `indexes`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def table(self, table: Table, path: str) -> dict[str, Any]:
        """A table as an object: name and type first, parameters last, else in the schema's order."""
        dot = f"{path}." if path else ""
        fields = table.type.fields
        return {name: self.value(table.fields[name], fields[name], f"{dot}{name}") for name in self.order(table)}

    def order(self, table: Table) -> list[str]:
        """The fields that a table holds, in the order in which they are written."""
        return [name for name in _ordered(tuple(table.type.fields)) if name in table.fields]

    def value(self, value: Any, field: Field, path: str) -> Any:
        """One value of a field."""
        if isinstance(value, Table):
            return self.table(value, path)
        if isinstance(value, list):
            return self.items(value, field, path)
        if isinstance(value, np.ndarray):
            return self.array(value, field, path)
        if isinstance(value, str):
            return value
        if field.type == "float":
            return numbers.plain_float(value)
        return numbers.plain_integer(value, field, self.schema)

    def items(self, items: list[Any], field: Field, path: str) -> list[Any]:
        """A vector of strings or tables."""
        return [self.table(item, f"{path}[{k}]") if isinstance(item, Table) else item for k, item in enumerate(items)]

    def array(self, array: Array, field: Field, path: str) -> Any:
        """A vector of numbers."""
        return numbers.plain_array(array, field, self.schema)


class Decoder:
    """JSON values as values of a document; every method raises ModelError naming `where`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self._depth = 0

    def table(self, raw: Any, type_: TableType, where: str) -> Table:
        """The table that an object stands for."""
        if not isinstance(raw, dict):
            raise numbers.wrong(where or type_.name, f"an object with fields of {type_.name}", raw)
        _check_names(raw, type_, where or "net")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ModelError(f"{where[:200]}…: tables are nested more than {MAX_DEPTH} deep")
        fields = self.fields(raw, type_, where)
        self._depth -= 1
        return Table(type_, self.schema, fields)

    def fields(self, raw: Mapping[str, Any], type_: TableType, where: str) -> dict[str, Any]:
        """The values of an object's fields, in the schema's order."""
        dot = f"{where}." if where else ""
        found: dict[str, Any] = {}
        for name, field in type_.fields.items():
            if name in raw:
                member = self._member(raw, name, found, where) if field.kind == "union" else None
                found[name] = self.value(raw[name], field, f"{dot}{name}", member)
        return found

    def _member(self, raw: Mapping[str, Any], name: str, found: Mapping[str, Any], where: str) -> str:
        """The table of a union, by the field `<name>_type` before it."""
        number = found.get(f"{name}_type")
        if number is None:
            raise ModelError(f"{where}: has '{name}' and no '{name}_type' to say which table it is")
        if not 0 < number < len(self.schema.members):
            raise ModelError(
                f"{where}.{name}: {name}_type {numbers.show(raw[f'{name}_type'])} has no table",
                hint=f"leave '{name}' out, or give {name}_type the name of a table",
            )
        return self.schema.members[int(number)]

    def value(self, raw: Any, field: Field, where: str, member: str | None = None) -> Any:
        """One value of a field; `member` is the table of a union."""
        if field.vector:
            return self.vector(raw, field, where)
        if field.kind in ("table", "union"):
            return self.table(raw, self._type(field, where, member), where)
        if field.kind == "string":
            return self.text(raw, where)
        if field.type == "float":
            return numbers.float_from(raw, where)
        return numbers.integer_from(raw, field, self.schema, where)

    def _type(self, field: Field, where: str, member: str | None) -> TableType:
        name = field.type if field.kind == "table" else member
        if name is None or name not in self.schema.tables:
            raise ModelError(f"{where}: which table this is must be said by {field.name}_type")
        return self.schema.tables[name]

    def vector(self, raw: Any, field: Field, where: str) -> Any:
        """A vector: of numbers as an array, else as a list."""
        if field.dtype is not None:
            return self.array(raw, field, where)
        if not isinstance(raw, list):
            raise numbers.wrong(where, "a list", raw)
        if field.kind == "string":
            return [self.text(item, f"{where}[{k}]") for k, item in enumerate(raw)]
        return self.items(raw, self._type(field, where, None), where)

    def items(self, raw: list[Any], type_: TableType, where: str) -> list[Table]:
        """A vector of tables."""
        return [self.table(item, type_, f"{where}[{k}]") for k, item in enumerate(raw)]

    def array(self, raw: Any, field: Field, where: str) -> Array:
        """A vector of numbers."""
        if not isinstance(raw, list):
            raise numbers.wrong(where, "a list of numbers", raw)
        return numbers.array_from(raw, field, self.schema, where)

    def text(self, raw: Any, where: str) -> str:
        """A string whose characters UTF-8 can hold; a lone surrogate U+DC80 … U+DCFF stands for a raw byte."""
        if not isinstance(raw, str):
            raise numbers.wrong(where, "text", raw)
        if raw.isascii():
            return str(raw)
        try:
            found: str = raw.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise ModelError(f"{where}: U+{ord(raw[error.start]):04X} is no character (half of a pair)") from None
        return found
