"""A .mnn file in memory: tables of named fields, numpy views of the arrays, nothing interpreted.

What a field holds:

- a number: `int`, `bool` (a `bool` field whose byte is neither 0 nor 1 keeps its `int`), `np.float32` for floats,
  so that every bit of a NaN survives; an enum is its number (`Table.label` gives its name);
- a string: `str`; bytes that are no UTF-8 are kept as lone surrogates (PEP 383);
- a vector of numbers: a one-dimensional little-endian array, read-only when it is a view of the file;
- a vector of strings or tables: a `list`;
- a table, or the member of a union: a `Table`.

A field that the file does not hold is not in `Table.fields`; `table["field"]` then gives the schema's default
(None for vectors, strings and tables). So presence survives every round trip.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import UsageError
from graphkit.mnn.document.schema import Field, Schema, TableType

Array = npt.NDArray[Any]


class Table:
    """One table of a document: values of the fields that are present, in the schema's order when it was read.

    `unknown` are the slots of fields that the file holds and the schema does not know (a newer MNN wrote them).
    """

    __slots__ = ("fields", "schema", "type", "unknown")

    def __init__(self, type_: TableType, schema: Schema, fields: dict[str, Any] | None = None) -> None:
        self.type = type_
        self.schema = schema
        self.fields: dict[str, Any] = {} if fields is None else fields
        self.unknown: tuple[int, ...] = ()

    def __repr__(self) -> str:
        name = self.fields.get("name")
        return f"<{self.type.name}{f' {name!r}' if isinstance(name, str) else ''}: {', '.join(self.fields)}>"

    def __contains__(self, name: str) -> bool:
        return name in self.fields

    def __getitem__(self, name: str) -> Any:
        """The value of a field, its default when absent. Raises UsageError for a name the schema does not have."""
        found = self.fields.get(name)
        return self.field(name).default if found is None else found

    def field(self, name: str) -> Field:
        """The schema's entry of a field. Raises UsageError with the nearest name when there is none."""
        try:
            return self.type.fields[name]
        except KeyError:
            raise _no_field(self.type, name) from None

    def label(self, name: str) -> str:
        """The name of an enum field's value; `'?7'` for a number the schema does not know."""
        number = int(self[name])
        return self.schema.enums[self.field(name).type].names.get(number, f"?{number}")

    def ints(self, name: str) -> tuple[int, ...]:
        """A vector of integers as Python numbers, empty when absent."""
        found = self.fields.get(name)
        return () if found is None else tuple(found.tolist())

    def tables(self, name: str) -> list[Table]:
        """A vector of tables, empty when absent (the empty list is not the document's own then)."""
        return self.fields.get(name) or []

    def texts(self, name: str) -> list[str]:
        """A vector of strings, empty when absent (the empty list is not the document's own then)."""
        return self.fields.get(name) or []

    def walk(self, where: str = "") -> Iterator[tuple[str, Table]]:
        """This table and all below it, parents first, with their paths (`oplists[3].main.common`)."""
        yield where, self
        dot = f"{where}." if where else ""
        for name, value in self.fields.items():
            if isinstance(value, Table):
                yield from value.walk(f"{dot}{name}")
            elif isinstance(value, list):
                for k, item in enumerate(value):
                    if isinstance(item, Table):
                        yield from item.walk(f"{dot}{name}[{k}]")


def first_difference(a: Any, b: Any, where: str = "") -> str | None:
    """The path of the first place where two values of documents differ, None when they are identical.

    Floats and arrays are compared bit by bit (NaNs with their payloads, −0 is not 0), presence of fields counts,
    their order does not.
    """
    if isinstance(a, Table) and isinstance(b, Table):
        return _first_in_tables(a, b, where)
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return where
        pairs = (first_difference(x, y, f"{where}[{k}]") for k, (x, y) in enumerate(zip(a, b, strict=True)))
        return next((found for found in pairs if found is not None), None)
    if isinstance(a, np.ndarray | np.generic) and isinstance(b, np.ndarray | np.generic):
        same = a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        return None if same else where
    return None if type(a) is type(b) and a == b else where


def _first_in_tables(a: Table, b: Table, where: str) -> str | None:
    if a.type.name != b.type.name or a.unknown != b.unknown:
        return where
    dot = f"{where}." if where else ""
    for name in sorted(a.fields.keys() | b.fields.keys()):
        if name not in a.fields or name not in b.fields:
            return f"{dot}{name}"
        found = first_difference(a.fields[name], b.fields[name], f"{dot}{name}")
        if found is not None:
            return found
    return None


def _no_field(table: TableType, name: str) -> UsageError:
    from difflib import get_close_matches

    near = get_close_matches(name, table.fields, n=1)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    return UsageError(
        f"{table.name} has no field '{name}'{meant}", hint=f"fields of {table.name}: {', '.join(table.fields)}"
    )
