"""FlatBuffer bytes to tables, by the schema; every offset is checked, all work is bounded.

A hostile file can point at one table from many places, so that a small graph of tables makes a tree without end.
The reader therefore pays for what it makes out of a budget that grows with the file; a file that shares little
never comes near it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.mnn.document._faults import Damaged
from graphkit.mnn.document._inline import Misplaced, format_of
from graphkit.mnn.document.schema import Field, Schema, TableType
from graphkit.mnn.document.tree import Table

Buffer = bytes | bytearray | memoryview | mmap.mmap

MAX_DEPTH = 64  # tables within tables; MNN's own check of a file stops there too

_MAX_UNITS = 5_000_000  # what the reader may spend; a unit buys about 100 bytes of memory
_TABLE_UNITS = 2
_ARRAY_UNITS = 4
_PLAN_UNITS = 10
_TEXT_UNIT = 32  # bytes of text that cost as much as one number
_ARRAY_SHARING = 64  # a file may name each of its bytes in so many arrays

_u32 = struct.Struct("<I").unpack_from
_u32_each = struct.Struct("<I").iter_unpack
_i32 = struct.Struct("<i").unpack_from
_u16_pair = struct.Struct("<HH").unpack_from

_Make = Callable[["Reader", Any, int, int, Table], Any]  # (reader, stored number, its position, depth, table)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How to read the tables of one type that share one vtable.

    `unpack` gives all numbers stored in the table; a step is a field's name, the place of its number among them, its
    offset in the table, and what makes the value of the number (None: the number is the value).
    """

    size: int
    cost: int
    unpack: Callable[[Buffer, int], tuple[Any, ...]]
    steps: tuple[tuple[str, int, int, _Make | None], ...]
    unknown: tuple[int, ...]


class Reader:
    """Reads one buffer. `outside` tells afterwards whether some array is kept in another file."""

    def __init__(self, data: Buffer, schema: Schema) -> None:
        self.data = data
        self.size = len(data)
        self.schema = schema
        self.outside = False
        self._units = min(2 * self.size + 1000, _MAX_UNITS)
        self._array_bytes = self.size * _ARRAY_SHARING
        self._plans: dict[tuple[int, str], _Plan] = {}
        self._makers: dict[str, tuple[_Make | None, ...]] = {}

    def root(self) -> Table:
        """The root table with all below it. Raises Damaged."""
        if self.size < 8:
            raise Damaged("too short")
        return self.table(self.target(0, _u32(self.data, 0)[0]), self.schema.root, 0)

    def target(self, at: int, offset: int) -> int:
        """Where an offset stored at `at` points; there is room for a number there."""
        if not offset or at + offset > self.size - 4:
            raise Damaged("an offset points outside the file" if offset else "an offset is 0")
        return at + offset

    def spend(self, units: int) -> None:
        """Pay for what is about to be made."""
        self._units -= units
        if self._units < 0:
            raise Damaged("too many parts; it uses parts of itself again and again")

    def table(self, at: int, type_: TableType, depth: int) -> Table:
        """The table at a position that is inside the file."""
        vtable = at - _i32(self.data, at)[0]
        plan = self._plans.get((vtable, type_.name))
        if plan is None:
            plan = self._plans[vtable, type_.name] = self._plan(vtable, type_)
        if depth > MAX_DEPTH:
            raise Damaged(f"tables are nested more than {MAX_DEPTH} deep")
        if at + plan.size > self.size:
            raise Damaged("a table reaches past the end of the file")
        self.spend(plan.cost)
        numbers = plan.unpack(self.data, at)
        table = Table(type_, self.schema)
        table.unknown = plan.unknown
        fields = table.fields
        name = ""
        try:
            for name, index, offset, make in plan.steps:
                value = numbers[index]
                if make is not None:
                    value = make(self, value, at + offset, depth, table)
                if value is not None:
                    fields[name] = value
        except Damaged as error:
            raise error.within(name) from None
        return table

    def _plan(self, vtable: int, type_: TableType) -> _Plan:
        if not 0 <= vtable <= self.size - 4:
            raise Damaged("a table's list of fields lies outside the file")
        length, size = _u16_pair(self.data, vtable)
        if length < 4 or length % 2 or vtable + length > self.size or size < 4:
            raise Damaged("a table's list of fields is damaged")
        slots = (length - 4) // 2
        self.spend(_PLAN_UNITS + slots)
        offsets = struct.unpack_from(f"<{slots}H", self.data, vtable + 4)
        known = [(field, offset) for field, offset in zip(type_.by_slot, offsets, strict=False) if offset]
        unknown = tuple(slot for slot in range(len(type_.by_slot), slots) if offsets[slot])
        placed = sorted(known, key=lambda entry: entry[1])
        try:
            unpack = struct.Struct(format_of(placed, size)).unpack_from
        except Misplaced as error:
            raise Damaged(f"field '{error}' lies outside its table or on another field") from None
        index = {field.name: k for k, (field, _) in enumerate(placed)}
        makers = self._makers_of(type_)
        steps = tuple((field.name, index[field.name], offset, makers[field.slot]) for field, offset in known)
        return _Plan(size, _TABLE_UNITS + len(steps) + len(unknown), unpack, steps, unknown)

    def _makers_of(self, type_: TableType) -> tuple[_Make | None, ...]:
        found = self._makers.get(type_.name)
        if found is None:
            found = self._makers[type_.name] = tuple(_maker(field, self.schema) for field in type_.by_slot)
        return found

    def length(self, at: int, offset: int, width: int) -> tuple[int, int]:
        """Position of the first element and number of elements of a vector, all inside the file."""
        start = self.target(at, offset)
        count = _u32(self.data, start)[0]
        if count * width > self.size - start - 4:
            raise Damaged(f"{count} elements reach past the end of the file")
        return start + 4, count

    def offsets(self, at: int, offset: int) -> Iterator[tuple[int, int]]:
        """The elements of a vector of offsets with their positions."""
        start, count = self.length(at, offset, 4)
        self.spend(count)
        stored = self.data[start : start + 4 * count]
        return zip(range(start, start + 4 * count, 4), (number for (number,) in _u32_each(stored)), strict=True)

    def text(self, at: int, offset: int) -> str:
        """The string that the offset at `at` points to."""
        start, count = self.length(at, offset, 1)
        self.spend(1 + count // _TEXT_UNIT)
        if start + count == self.size or self.data[start + count]:
            raise Damaged("a text does not end where it should")
        return str(self.data[start : start + count], "utf-8", "surrogateescape")

    def numbers(self, at: int, offset: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """The vector of numbers that the offset at `at` points to, a view of the file."""
        start, count = self.length(at, offset, dtype.itemsize)
        self.spend(_ARRAY_UNITS)
        self._array_bytes -= count * dtype.itemsize
        if self._array_bytes < 0:
            raise Damaged("arrays share their bytes more often than any model does")
        array = np.frombuffer(self.data, dtype, count, start) if count else np.empty(0, dtype)
        array.flags.writeable = False
        return array


def _maker(field: Field, schema: Schema) -> _Make | None:
    """What makes the value of a field of the number stored in the table; None when the number is the value."""
    if field.vector:
        return _vector(field, schema)
    if field.kind == "string":
        return lambda reader, offset, at, depth, table: reader.text(at, offset)
    if field.kind == "table":
        type_ = schema.tables[field.type]
        return lambda reader, offset, at, depth, table: reader.table(reader.target(at, offset), type_, depth + 1)
    if field.kind == "union":
        return _union(field)
    return {"float": _float, "bool": _bool}.get(field.type)


def _bool(reader: Reader, number: int, at: int, depth: int, table: Table) -> bool | int:
    return number if number > 1 else bool(number)


def _float(reader: Reader, number: float, at: int, depth: int, table: Table) -> np.float32:
    if number == number:
        return np.float32(number)
    found: np.float32 = np.frombuffer(reader.data, "<f4", 1, at)[0]  # a Python float would change a signalling NaN
    return found


def _vector(field: Field, schema: Schema) -> _Make:
    dtype = field.dtype
    if dtype is None:
        return _texts if field.kind == "string" else _tables(schema.tables[field.type])
    if field.name == "external":
        return _external
    return lambda reader, offset, at, depth, table: reader.numbers(at, offset, dtype)


def _external(reader: Reader, offset: int, at: int, depth: int, table: Table) -> npt.NDArray[Any]:
    found = reader.numbers(at, offset, np.dtype("<i8"))
    reader.outside |= found.size > 0
    return found


def _texts(reader: Reader, offset: int, at: int, depth: int, table: Table) -> list[str]:
    found: list[str] = []
    offsets = reader.offsets(at, offset)
    try:
        for place, target in offsets:
            found.append(reader.text(place, target))
    except Damaged as error:
        raise error.within(f"[{len(found)}]") from None
    return found


def _tables(type_: TableType) -> _Make:
    def make(reader: Reader, offset: int, at: int, depth: int, table: Table) -> list[Table]:
        found: list[Table] = []
        offsets = reader.offsets(at, offset)
        try:
            for place, target in offsets:
                found.append(reader.table(reader.target(place, target), type_, depth + 1))
        except Damaged as error:
            raise error.within(f"[{len(found)}]") from None
        return found

    return make


def _union(field: Field) -> _Make:
    """The member that the number in the field before names; members that the schema does not know stay unread."""
    kind = f"{field.name}_type"

    def make(reader: Reader, offset: int, at: int, depth: int, table: Table) -> Table | None:
        number = table.fields.get(kind, 0)
        if not 0 < number < len(reader.schema.members):
            reader.spend(len(table.unknown))
            table.unknown = (*table.unknown, field.slot)
            return None
        type_ = reader.schema.tables[reader.schema.members[number]]
        return reader.table(reader.target(at, offset), type_, depth + 1)

    return make
