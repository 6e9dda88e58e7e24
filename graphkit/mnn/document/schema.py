"""The format of .mnn files as data: one table of the FlatBuffer schema per MNN version.

`schema-VERSION.json` holds the tables of MNN's own schema with their fields in order (the position of a field is
its slot in a FlatBuffer vtable), the enums with their numbers, and the members of the union OpParameter. Each
field is `[name, kind, type, is a vector, default]`; kind is scalar, enum, string, table, utype (the number of a
union's member) or union.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

import numpy as np

from graphkit.errors import ModelError

Kind = Literal["scalar", "enum", "string", "table", "utype", "union"]

_DTYPES: Mapping[str, str] = {
    "bool": "u1",
    "byte": "i1",
    "int8": "i1",
    "ubyte": "u1",
    "ushort": "<u2",
    "int": "<i4",
    "int32": "<i4",
    "uint32": "<u4",
    "long": "<i8",
    "int64": "<i8",
    "float": "<f4",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a table.

    `type` names a scalar type, an enum, a table or a union. `dtype` is that of the stored number or of a vector's
    elements, None for strings and tables. `default` is what the field means when the file does not hold it.
    """

    name: str
    kind: Kind
    type: str
    vector: bool
    slot: int
    dtype: np.dtype[Any] | None
    default: Any

    @property
    def inline_size(self) -> int:
        """Bytes inside the table: of the number itself, else of an offset to what the field holds."""
        return 4 if self.vector or self.dtype is None else self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TableType:
    """A table of the schema: its fields by name, in slot order."""

    name: str
    fields: Mapping[str, Field]
    by_slot: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum of the schema: numbers by name and names by number."""

    name: str
    numbers: Mapping[str, int]
    names: Mapping[int, str]


@dataclass(frozen=True)
class Schema:
    """The format of one MNN version.

    `members` are the tables of the union OpParameter by number; member 0 is NONE.
    """

    version: str
    root: TableType
    tables: Mapping[str, TableType]
    enums: Mapping[str, EnumType]
    members: tuple[str, ...]

    def member_number(self, table: str) -> int:
        """The union's number of a table. Raises KeyError for a table that is no parameter of an operator."""
        try:
            return self.members.index(table)
        except ValueError:
            raise KeyError(table) from None


def known_versions() -> tuple[str, ...]:
    """MNN versions whose format graphkit has a table of, oldest first."""
    names = (entry.name for entry in resources.files(__package__).iterdir())
    found = [match[1] for name in names if (match := re.fullmatch(r"schema-([\d.]+)\.json", name))]
    return tuple(sorted(found, key=_numbers))


def schema_for(version: str) -> Schema:
    """The schema of a file that says it is of `version`: of that version, else of the nearest that we know.

    The newest known version not above `version` is taken, the oldest when all are above; a file that names no
    version (`""`) gets the newest. FlatBuffers only ever append fields, so that what both versions know is read
    right either way. Whether the version is known exactly is `schema_for(v).version == v`.
    """
    versions = known_versions()
    if not re.match(r"\d", version):
        return _load(versions[-1])
    older = [known for known in versions if _numbers(known) <= _numbers(version)]
    return _load(older[-1] if older else versions[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])


@functools.cache
def _load(version: str) -> Schema:
    text = resources.files(__package__).joinpath(f"schema-{version}.json").read_text(encoding="utf-8")
    data = json.loads(text)
    enums = {name: _enum(name, entry["members"]) for name, entry in data["enums"].items()}
    bases = {name: entry["base"] for name, entry in data["enums"].items()}
    tables = {name: _table(name, rows, enums, bases) for name, rows in data["tables"].items()}
    (members,) = data["unions"].values()
    return Schema(data["version"], tables[data["root"]], tables, enums, tuple(members))


def _enum(name: str, numbers: Mapping[str, int]) -> EnumType:
    return EnumType(name, numbers, {number: member for member, number in numbers.items()})


def _table(name: str, rows: list[list[Any]], enums: Mapping[str, EnumType], bases: Mapping[str, str]) -> TableType:
    fields = tuple(_field(slot, row, enums, bases) for slot, row in enumerate(rows))
    return TableType(name, {field.name: field for field in fields}, fields)


def _field(slot: int, row: list[Any], enums: Mapping[str, EnumType], bases: Mapping[str, str]) -> Field:
    name, kind, type_, vector, default = row
    base = {"enum": bases.get(type_, ""), "utype": "ubyte", "scalar": type_}.get(kind)
    dtype = np.dtype(_DTYPES[base]) if base is not None else None
    return Field(name, kind, type_, bool(vector), slot, dtype, _default(kind, type_, vector, default, enums))


def _default(kind: str, type_: str, vector: int, text: str | None, enums: Mapping[str, EnumType]) -> Any:
    if vector or kind in ("string", "table", "union"):
        return None
    if kind == "enum":
        return enums[type_].numbers[text] if text else 0
    if type_ == "float":
        return np.float32(text or 0)
    if type_ == "bool":
        return text == "true"
    return int(text or 0)


def unknown_table(name: str, schema: Schema) -> ModelError:
    """The error for a table that the schema does not have."""
    return ModelError(f"MNN {schema.version} has no table '{name}'")
