"""Tables to FlatBuffer bytes: one pass over the tables, arrays last.

Tables, strings and short arrays go into one block of memory; long arrays follow it in the file and are never copied
as a whole. Parents lie before their children (offsets only point forward), tables of the same fields share their
vtable, and a field is in the file exactly when it is in the table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import ModelError
from graphkit.mnn.document import _inline
from graphkit.mnn.document._faults import Unwritable, kind_of
from graphkit.mnn.document._reader import MAX_DEPTH
from graphkit.mnn.document.schema import Field, Schema, TableType
from graphkit.mnn.document.tree import Table

Array = npt.NDArray[Any]

MAX_BYTES = 2**31 - 1  # FlatBuffers' own limit; MNN loads no larger file
MAX_TABLES = 1_000_000  # MNN loads no file with more

_INLINE = 1024  # bytes of arrays that are kept among the tables
_ALIGN = 16


@dataclass(frozen=True)
class Image:
    """A file before it is written: its first block, then the arrays with the bytes before each.

    `outside` tells whether some array is kept in another file.
    """

    head: bytearray
    arrays: list[tuple[bytes, Array]]
    size: int
    outside: bool

    def pieces(self) -> Iterator[memoryview]:
        """All bytes in order; an array that is not contiguous is copied when its turn comes."""
        yield memoryview(self.head)
        for before, array in self.arrays:
            yield memoryview(before)
            yield np.ascontiguousarray(array).view(np.uint8).data


def layout(net: Table, schema: Schema, *, drop_unknown: bool = False) -> Image:
    """Lay a document out as a file. Raises ModelError for what cannot be written, with the path to it."""
    writer = _Writer(schema, drop_unknown)
    try:
        return writer.image(net)
    except Unwritable as error:
        raise ModelError(f"cannot be written as .mnn: {error}", hint=error.hint) from None


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to write the tables of one type that have the same fields.

    `inline` are the numbers in the order of `pack`, None where an offset goes; `floats` and `children` are fields
    with their offsets in the table.
    """

    vtable: bytes
    align: int
    pack: Callable[..., bytes]
    inline: tuple[Field | None, ...]
    floats: tuple[tuple[str, int], ...]
    children: tuple[tuple[str, int, _Put], ...]


_Put = Callable[["_Writer", Any, int, int, Table], None]  # (writer, value, where its offset goes, depth, table)


class _Writer:
    def __init__(self, schema: Schema, drop_unknown: bool) -> None:
        self.schema = schema
        self.drop_unknown = drop_unknown
        self.head = bytearray(4)
        self.later: list[tuple[int, Array]] = []
        self.tables = 0
        self.outside = False
        self._vtables: dict[bytes, int] = {}
        self._plans: dict[tuple[str, ...], _Plan] = {}

    def image(self, net: Table) -> Image:
        self.table(net, self.schema.root, 0, 0)
        arrays = []
        size = len(self.head)
        self._check_size(size)
        for slot, array in self.later:
            gap = -(size + 4) % _ALIGN
            self._check_size(size + gap + 4 + array.nbytes)
            self.point(slot, size + gap)
            arrays.append((bytes(gap) + struct.pack("<I", array.size), array))
            size += gap + 4 + array.nbytes
        return Image(self.head, arrays, size, self.outside)

    def _check_size(self, size: int) -> None:
        if size > MAX_BYTES:
            raise Unwritable(
                f"{size:,} bytes and more; a .mnn file holds at most {MAX_BYTES:,}",
                "keep the weights outside: convert with --saveExternalData",
            )

    def point(self, slot: int, target: int) -> None:
        """Let the offset at `slot` point to `target`."""
        struct.pack_into("<I", self.head, slot, target - slot)

    def align(self, step: int) -> int:
        """Pad with zeros; the position to write at."""
        self.head += bytes(-len(self.head) % step)
        return len(self.head)

    def table(self, table: Any, type_: TableType, slot: int, depth: int) -> None:
        """Write a table and all below it; the offset at `slot` will point to it."""
        if not isinstance(table, Table) or table.type.name != type_.name:
            raise Unwritable(f"a table {type_.name} belongs here, not {kind_of(table)}")
        self._count(depth)
        plan = self._plan_of(table)
        vtable = self._vtables.get(plan.vtable)
        if vtable is None:
            vtable = self._vtables[plan.vtable] = self.align(2)
            self.head += plan.vtable
        at = self.align(plan.align)
        self.point(slot, at)
        fields = table.fields
        try:
            self.head += plan.pack(at - vtable, *[0 if f is None else fields[f.name] for f in plan.inline])
        except (struct.error, OverflowError, TypeError, ValueError):
            raise _misfit(table, plan) from None
        for name, offset in plan.floats:
            self._keep_nan(fields[name], at + offset)
        for name, offset, put in plan.children:
            try:
                put(self, fields[name], at + offset, depth, table)
            except Unwritable as error:
                raise error.within(name) from None

    def _count(self, depth: int) -> None:
        self.tables += 1
        if depth > MAX_DEPTH:
            raise Unwritable(f"tables are nested more than {MAX_DEPTH} deep")
        if self.tables > MAX_TABLES:
            raise Unwritable(f"more than {MAX_TABLES:,} tables, which MNN does not load")

    def _plan_of(self, table: Table) -> _Plan:
        names = tuple(table.fields)
        if table.unknown:
            names = self._without_unknown(table, names)
        plan = self._plans.get((table.type.name, *names))
        if plan is None:
            plan = self._plans[(table.type.name, *names)] = _plan(table.type, names, self.schema)
        return plan

    def _without_unknown(self, table: Table, names: tuple[str, ...]) -> tuple[str, ...]:
        if not self.drop_unknown:
            slots = ", ".join(str(slot) for slot in table.unknown)
            raise Unwritable(
                f"{table.type.name} holds fields that the format of MNN {self.schema.version} does not know "
                f"(number {slots})",
                "write with the graphkit that knows the newer MNN, or drop these fields (drop_unknown)",
            )
        lost = {f"{f.name}_type" for f in table.type.by_slot if f.kind == "union" and f.slot in table.unknown}
        return tuple(name for name in names if name not in lost)

    def _keep_nan(self, value: Any, at: int) -> None:
        if value != value and isinstance(value, np.float32):
            self.head[at : at + 4] = value.tobytes()  # a Python float would change a signalling NaN

    def text(self, value: Any, slot: int) -> None:
        """Write a string; the offset at `slot` will point to it."""
        if not isinstance(value, str):
            raise Unwritable(f"text belongs here, not {kind_of(value)}")
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise Unwritable(f"the text {value!r} has no bytes in UTF-8") from None
        self.point(slot, self.align(4))
        self.head += struct.pack("<I", len(raw)) + raw + b"\0"

    def numbers(self, array: Any, field: Field, slot: int) -> None:
        """Write a vector of numbers, now when it is short, else after all tables."""
        dtype = field.dtype
        if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
            raise Unwritable(f"a one-dimensional array of {dtype} belongs here, not {kind_of(array)}")
        if field.name == "external" and array.size:
            self.outside = True
        if array.nbytes > _INLINE:
            self.later.append((slot, array))
            return
        step = max(4, array.itemsize)
        self.head += bytes(-(len(self.head) + 4) % step)
        self.point(slot, len(self.head))
        self.head += struct.pack("<I", array.size) + array.tobytes()

    def slots(self, values: Any, slot: int) -> range:
        """Write a vector of offsets, zeros so far; the positions of its elements."""
        if not isinstance(values, list):
            raise Unwritable(f"a list belongs here, not {kind_of(values)}")
        self.point(slot, self.align(4))
        self.head += struct.pack("<I", len(values))
        at = len(self.head)
        self.head += bytes(4 * len(values))
        return range(at, at + 4 * len(values), 4)


def _plan(type_: TableType, names: tuple[str, ...], schema: Schema) -> _Plan:
    for name in names:
        if name not in type_.fields:
            raise Unwritable(f"{type_.name} has no field '{name}'")
    laid = _inline.layout(type_, names)
    places = sorted(zip(laid.fields, laid.offsets, strict=True), key=lambda entry: entry[0].slot)
    return _Plan(
        laid.vtable,
        laid.align,
        struct.Struct(laid.format).pack,
        tuple(field if _inline.is_number(field) else None for field in laid.fields),
        tuple((field.name, offset) for field, offset in places if field.type == "float" and not field.vector),
        tuple((field.name, offset, _put(field, schema)) for field, offset in places if not _inline.is_number(field)),
    )


def _put(field: Field, schema: Schema) -> _Put:
    if field.vector and field.dtype is not None:
        return lambda writer, value, slot, depth, table: writer.numbers(value, field, slot)
    if field.kind == "string":
        if field.vector:
            return _put_texts
        return lambda writer, value, slot, depth, table: writer.text(value, slot)
    if field.kind == "union":
        return _put_union(field)
    type_ = schema.tables[field.type]
    if field.vector:
        return _put_tables(type_)
    return lambda writer, value, slot, depth, table: writer.table(value, type_, slot, depth + 1)


def _put_texts(writer: _Writer, values: Any, slot: int, depth: int, table: Table) -> None:
    slots = writer.slots(values, slot)
    for k, at in enumerate(slots):
        try:
            writer.text(values[k], at)
        except Unwritable as error:
            raise error.within(f"[{k}]") from None


def _put_tables(type_: TableType) -> _Put:
    def put(writer: _Writer, values: Any, slot: int, depth: int, table: Table) -> None:
        slots = writer.slots(values, slot)
        for k, at in enumerate(slots):
            try:
                writer.table(values[k], type_, at, depth + 1)
            except Unwritable as error:
                raise error.within(f"[{k}]") from None

    return put


def _put_union(field: Field) -> _Put:
    kind = f"{field.name}_type"

    def put(writer: _Writer, value: Any, slot: int, depth: int, table: Table) -> None:
        members = writer.schema.members
        number = table.fields.get(kind, 0)
        if not isinstance(value, Table) or not 0 < number < len(members) or members[number] != value.type.name:
            said = members[number] if 0 <= number < len(members) else f"number {number}"
            raise Unwritable(f"{kind} says {said}, but {kind_of(value)} is here", f"make {kind} and {field.name} agree")
        writer.table(value, value.type, slot, depth + 1)

    return put


def _misfit(table: Table, plan: _Plan) -> Unwritable:
    """The error for the number that its field cannot hold."""
    for field in plan.inline:
        if field is None:
            continue
        value = table.fields[field.name]
        try:
            struct.pack(f"<{_inline.code(field)}", value)
        except (struct.error, OverflowError, TypeError, ValueError):
            return Unwritable(f"a number of type {field.type} belongs here, not {kind_of(value)}").within(field.name)
    return Unwritable(f"{table.type.name} holds a number that does not fit")
