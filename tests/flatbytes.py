"""FlatBuffers by hand: damaged files are made, and good ones checked, without the code under test.

`Raw` builds a file from labelled parts that may point anywhere; `places` walks a good file and lists where its
offsets, lengths and lists of fields lie, checking on the way what MNN's own check of a file wants.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from graphkit.mnn.document.schema import Field, TableType, schema_for

SCHEMA = schema_for("")
NET = SCHEMA.root


class Raw:
    """A file built part by part; an offset to a label may stand before or after what it points to."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.labels: dict[str, int] = {}
        self._wanted: list[tuple[int, str]] = []
        self.offset("root")

    def offset(self, label: str) -> None:
        """An offset to a label."""
        self._wanted.append((len(self.data), label))
        self.data += bytes(4)

    def table(self, label: str, type_: str, extra: dict[int, int] | None = None, **slots: tuple[str, Any]) -> None:
        """A table with its own vtable before it.

        A field is ("->", label) or (format, number); `extra` are offsets in the table by slot, for anything else.
        """
        fields = SCHEMA.tables[type_].fields
        at, entries, body = 4, {}, []
        for name, (kind, value) in sorted(slots.items(), key=lambda entry: -fields[entry[0]].inline_size):
            size = 4 if kind == "->" else struct.calcsize(kind)
            entries[fields[name].slot] = at
            body.append((kind, value))
            at += size
        entries |= extra or {}
        count = max(entries, default=-1) + 1
        vtable = len(self.data)
        self.data += struct.pack(f"<HH{count}H", 4 + 2 * count, at, *(entries.get(k, 0) for k in range(count)))
        self.data += bytes(-len(self.data) % 4)
        self.labels[label] = len(self.data)
        self.data += struct.pack("<i", len(self.data) - vtable)
        for kind, value in body:
            if kind == "->":
                self.offset(value)
            else:
                self.data += struct.pack(f"<{kind}", value)
        self.data += bytes(-len(self.data) % 4)

    def offsets(self, label: str, targets: list[str]) -> None:
        """A vector of offsets."""
        self.labels[label] = len(self.data)
        self.data += struct.pack("<I", len(targets))
        for target in targets:
            self.offset(target)

    def block(self, label: str, data: bytes) -> None:
        """Any bytes."""
        self.labels[label] = len(self.data)
        self.data += data + bytes(-len(data) % 4)

    def text(self, label: str, text: bytes) -> None:
        """A string."""
        self.block(label, struct.pack("<I", len(text)) + text + b"\0")

    def done(self) -> bytes:
        """The file; offsets that point back are what a damaged file has, large numbers."""
        for at, label in self._wanted:
            struct.pack_into("<I", self.data, at, (self.labels[label] - at) % 2**32)
        return bytes(self.data)


Place = tuple[str, int]  # (what lies there, position)


def places(data: bytes) -> list[Place]:
    """Where a good file keeps its "offset", "vtable offset", "vtable length", "table size", "slot", "vector length",
    "element offset" and "text length"; asserts that all is aligned and inside, as MNN's own check of a file does."""
    root = _u32(data, 0)
    return [("offset", 0), *_table(data, root, NET)]


def _u32(data: bytes, at: int) -> int:
    assert at % 4 == 0
    return int(struct.unpack_from("<I", data, at)[0])


def _table(data: bytes, at: int, type_: TableType) -> Iterator[Place]:
    assert at % 4 == 0
    vtable = at - struct.unpack_from("<i", data, at)[0]
    assert vtable % 2 == 0
    length, size = struct.unpack_from("<HH", data, vtable)
    assert at + size <= len(data)
    yield from (("vtable offset", at), ("vtable length", vtable), ("table size", vtable + 2))
    slots = struct.unpack_from(f"<{(length - 4) // 2}H", data, vtable + 4)
    for field, slot in zip(type_.by_slot, slots, strict=False):
        if slot:
            assert slot % field.inline_size == 0
            assert 4 <= slot <= size - field.inline_size
            yield "slot", vtable + 4 + 2 * field.slot
            yield from _value(data, at + slot, field, _member(data, at, field, slots))


def _member(data: bytes, table: int, field: Field, slots: tuple[int, ...]) -> str:
    if field.kind != "union":
        return field.type
    return SCHEMA.members[data[table + slots[field.slot - 1]]]


def _value(data: bytes, at: int, field: Field, type_: str) -> Iterator[Place]:
    if not field.vector and field.dtype is not None:
        return
    yield "offset", at
    target = at + _u32(data, at)
    if not field.vector:
        yield from _target(data, target, field, type_)
        return
    yield "vector length", target
    count = _u32(data, target)
    if field.dtype is not None:
        assert (target + 4) % field.dtype.itemsize == 0
        assert target + 4 + count * field.dtype.itemsize <= len(data)
        return
    for k in range(count):
        slot = target + 4 + 4 * k
        yield "element offset", slot
        yield from _target(data, slot + _u32(data, slot), field, type_)


def _target(data: bytes, at: int, field: Field, type_: str) -> Iterator[Place]:
    if field.kind == "string":
        yield "text length", at
        assert data[at + 4 + _u32(data, at)] == 0
    else:
        yield from _table(data, at, SCHEMA.tables[type_])
