"""The protobuf wire format, as far as lazy weights need it.

A model is split into a *skeleton* (a valid, small `ModelProto`) and the bytes of its large tensors, which
stay where they are. In the skeleton such a tensor carries, instead of its data, an external-data entry whose
location is `MARK` plus the number of the buffer that holds the bytes. `strip` makes the skeleton from the
wire bytes, `expand` turns a serialized skeleton back into pieces to be written one after another.

Source: Protocol Buffers encoding guide (tags, varints, length-delimited fields); field numbers: onnx.proto.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

MARK = "graphkit:buffer:"
THRESHOLD = 4096  # bytes; smaller tensors stay inside, so that shape inference can read shape constants
MAX_DEPTH = 90  # below protobuf's own limit of 100 nested messages
MAX_MESSAGE = 2**31 - 1  # protobuf's limit on one serialized message, in bytes


class Kind(Enum):
    """Messages that may hold tensors; the value maps a field number to the kind of message inside."""

    TENSOR = "tensor"
    ATTRIBUTE = "attribute"
    NODE = "node"
    GRAPH = "graph"
    FUNCTION = "function"
    MODEL = "model"


_CHILDREN: dict[Kind, dict[int, Kind]] = {
    Kind.TENSOR: {},
    Kind.ATTRIBUTE: {5: Kind.TENSOR, 6: Kind.GRAPH, 10: Kind.TENSOR, 11: Kind.GRAPH},
    Kind.NODE: {5: Kind.ATTRIBUTE},
    Kind.GRAPH: {1: Kind.NODE, 5: Kind.TENSOR},
    Kind.FUNCTION: {7: Kind.NODE},
    Kind.MODEL: {7: Kind.GRAPH, 25: Kind.FUNCTION},
}
_DATA_TYPE, _FLOAT_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _RAW_DATA = 2, 4, 13, 14, 9
_FLOAT = 1  # TensorProto.FLOAT


class WireError(ValueError):
    """The bytes are not a well-formed protobuf message."""


class Ref(NamedTuple):
    """Where the bytes of a tensor are: `length` bytes at `offset` of buffer number `buffer`."""

    buffer: int
    offset: int
    length: int


@dataclass(frozen=True)
class Pieces:
    """Parts of a message in order: bytes to copy, or references to tensor data; `size` is their sum."""

    parts: list[bytes | memoryview | Ref]
    size: int


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a protobuf varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(buf: memoryview, pos: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while pos < end and shift < 70:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    raise WireError("a number runs past the end")


def fields(buf: memoryview, pos: int, end: int, least: int = 0) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (field number, wire type, start of tag, start of payload, end of payload) of each field.

    Fields with a payload below `least` bytes are checked, but not yielded. Raises WireError on truncated or
    unknown encodings.
    """
    while pos < end:
        start = pos
        tag = buf[pos]
        pos += 1
        if tag >= 0x80:
            tag, pos = _read_varint(buf, start, end)
        wire = tag & 7
        if wire == 2:
            if pos >= end:
                raise WireError("a field is cut short")
            length = buf[pos]
            pos += 1
            if length >= 0x80:
                length, pos = _read_varint(buf, pos - 1, end)
            stop = pos + length
        elif wire == 0:
            _, stop = _read_varint(buf, pos, end)
        elif wire in (1, 5):
            stop = pos + (8 if wire == 1 else 4)
        else:
            raise WireError(f"unknown wire type {wire}")
        if stop > end:
            raise WireError("a field is cut short")
        if stop - pos >= least:
            yield tag >> 3, wire, start, pos, stop
        pos = stop


def _entry(key: str, value: str) -> bytes:
    pair = b"\x0a" + varint(len(key)) + key.encode() + b"\x12" + varint(len(value)) + value.encode()
    return b"\x6a" + varint(len(pair)) + pair


def external_entries(location: str, offset: int, length: int) -> bytes:
    """Wire bytes of the TensorProto fields that say: the data is in `location`."""
    return _entry("location", location) + _entry("offset", str(offset)) + _entry("length", str(length)) + b"\x70\x01"


def strip(buf: memoryview, buffer: int) -> bytes:
    """Return the skeleton of the serialized ModelProto in `buf`; its large data stay in buffer `buffer`.

    Raises WireError when `buf` is not a well-formed message.
    """
    out: list[bytes | memoryview] = []
    _strip(buf, 0, len(buf), Kind.MODEL, buffer, out, 0)
    return b"".join(out)


def _strip(
    buf: memoryview, pos: int, end: int, kind: Kind, buffer: int, out: list[bytes | memoryview], depth: int
) -> None:
    if depth > MAX_DEPTH:
        raise WireError("messages are nested too deeply")
    if kind is Kind.TENSOR:
        _strip_tensor(buf, pos, end, buffer, out)
        return
    children = _CHILDREN[kind]
    run = pos  # what was not copied yet starts here; runs of small fields are copied as one slice
    for number, wire, start, payload, stop in fields(buf, pos, end, THRESHOLD):
        if wire != 2 or number not in children:
            continue
        out.append(buf[run:start])
        inner: list[bytes | memoryview] = []
        _strip(buf, payload, stop, children[number], buffer, inner, depth + 1)
        out.append(varint(number << 3 | 2) + varint(sum(map(len, inner))))
        out.extend(inner)
        run = stop
    out.append(buf[run:end])


def _strip_tensor(buf: memoryview, pos: int, end: int, buffer: int, out: list[bytes | memoryview]) -> None:
    found = list(fields(buf, pos, end))
    data = [f for f in found if f[0] == _RAW_DATA and f[1] == 2]
    if not data and any(f[0] == _DATA_TYPE and buf[f[3]] == _FLOAT for f in found):
        # packed float_data is the same little-endian bytes as raw_data
        data = [f for f in found if f[0] == _FLOAT_DATA and f[1] == 2]
    if len(data) != 1 or data[0][4] - data[0][3] < THRESHOLD:
        out.append(buf[pos:end])
        return
    skip = data[0]
    out.extend(buf[f[2] : f[4]] for f in found if f is not skip)
    out.append(external_entries(f"{MARK}{buffer}", skip[3], skip[4] - skip[3]))


def parse_ref(entries: dict[str, str]) -> Ref | None:
    """Read the external-data entries of a tensor; None if they do not point into one of our buffers.

    Raises ValueError or KeyError for entries that only look like ours.
    """
    location = entries.get("location", "")
    if not location.startswith(MARK):
        return None
    return Ref(int(location[len(MARK) :]), int(entries["offset"]), int(entries["length"]))


def expand(skeleton: bytes, place: Callable[[Ref], list[bytes | Ref]]) -> Pieces:
    """Turn a serialized skeleton into the pieces of a complete model.

    `place` says what stands in each tensor in place of its reference: wire bytes of TensorProto fields
    (see `raw_data` and `external_entries`) and references to the data itself.
    """
    marks: list[int] = []
    needle, pos = MARK.encode(), skeleton.find(MARK.encode())
    while pos >= 0:
        marks.append(pos)
        pos = skeleton.find(needle, pos + 1)
    parts: list[bytes | memoryview | Ref] = []
    size = _expand(memoryview(skeleton), 0, len(skeleton), Kind.MODEL, marks, place, parts)
    return Pieces(parts, size)


def raw_data(ref: Ref) -> list[bytes | Ref]:
    """Place the data inside the tensor, as its raw_data field."""
    return [b"\x4a" + varint(ref.length), ref]


def _length(part: bytes | memoryview | Ref) -> int:
    return part.length if isinstance(part, Ref) else len(part)


def _expand(
    buf: memoryview,
    pos: int,
    end: int,
    kind: Kind,
    marks: list[int],
    place: Callable[[Ref], list[bytes | Ref]],
    out: list[bytes | memoryview | Ref],
) -> int:
    if kind is Kind.TENSOR:
        return _expand_tensor(buf, pos, end, place, out)
    at = bisect_left(marks, pos)
    if at == len(marks) or marks[at] >= end:
        out.append(buf[pos:end])
        return end - pos
    children = _CHILDREN[kind]
    run, size = pos, 0
    for number, wire, start, payload, stop in fields(buf, pos, end):
        while at < len(marks) and marks[at] < start:
            at += 1
        if at == len(marks):
            break
        if marks[at] >= stop or wire != 2 or number not in children:
            continue
        out.append(buf[run:start])
        inner: list[bytes | memoryview | Ref] = []
        length = _expand(buf, payload, stop, children[number], marks, place, inner)
        head = varint(number << 3 | 2) + varint(length)
        out.append(head)
        out.extend(inner)
        size += start - run + len(head) + length
        run = stop
    out.append(buf[run:end])
    return size + end - run


def _expand_tensor(
    buf: memoryview,
    pos: int,
    end: int,
    place: Callable[[Ref], list[bytes | Ref]],
    out: list[bytes | memoryview | Ref],
) -> int:
    kept: list[bytes | memoryview | Ref] = []
    entries: dict[str, str] = {}
    for number, _, start, payload, stop in fields(buf, pos, end):
        if number == _EXTERNAL_DATA:
            pair = {f[0]: bytes(buf[f[3] : f[4]]).decode() for f in fields(buf, payload, stop)}
            entries[pair.get(1, "")] = pair.get(2, "")
        elif number != _DATA_LOCATION:
            kept.append(buf[start:stop])
    ref = parse_ref(entries)
    if ref is None:
        out.append(buf[pos:end])
        return end - pos
    kept.extend(place(ref))
    out.extend(kept)
    return sum(map(_length, kept))
