"""What lies inside a table of a FlatBuffer: its numbers and offsets, found through its vtable."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from graphkit.mnn.document.schema import Field, TableType

_CODES = {"u1": "B", "i1": "b", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "f4": "f"}
_START = 4  # the offset to the vtable comes first


class Misplaced(Exception):
    """A field lies outside its table or on another field."""


def is_number(field: Field) -> bool:
    """Whether the field's value itself lies in the table, and no offset to it."""
    return field.dtype is not None and not field.vector


def code(field: Field) -> str:
    """The format of `struct` for what lies in the table."""
    return _CODES[field.dtype.str[1:]] if field.dtype is not None and not field.vector else "I"


def format_of(fields: Sequence[tuple[Field, int]], size: int) -> str:
    """The format that unpacks a table of `size` bytes, from its fields and their offsets in order of the offsets.

    Raises Misplaced, with the field's name.
    """
    text, end = [f"<{_START}x"], _START
    for field, offset in fields:
        if offset < end or offset + field.inline_size > size:
            raise Misplaced(field.name)
        text.append(f"{offset - end}x{code(field)}")
        end = offset + field.inline_size
    return "".join(text)


@dataclass(frozen=True, slots=True)
class Layout:
    """How tables with certain fields are laid out when they are written.

    `fields` are in the order of `format`, which packs the offset to the vtable first; `offsets` are theirs.
    """

    vtable: bytes
    align: int
    format: str
    fields: tuple[Field, ...]
    offsets: tuple[int, ...]


def layout(type_: TableType, names: Sequence[str]) -> Layout:
    """The layout of a table that has the fields `names`: large ones first, so that none needs a gap before it."""
    fields = sorted((type_.fields[name] for name in names), key=lambda field: (-field.inline_size, field.slot))
    slots = [0] * max((field.slot + 1 for field in fields), default=0)
    text, end, offsets = ["<i"], _START, []
    for field in fields:
        gap = -end % field.inline_size
        slots[field.slot] = end + gap
        offsets.append(end + gap)
        text.append(f"{gap}x{code(field)}")
        end += gap + field.inline_size
    vtable = struct.pack(f"<HH{len(slots)}H", 4 + 2 * len(slots), end, *slots)
    align = max((4, *(field.inline_size for field in fields)))
    return Layout(vtable, align, "".join(text), tuple(fields), tuple(offsets))
