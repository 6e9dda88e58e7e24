"""Quantized weights: buffers of an IDSTQuan against the sizes of their convolution.

Types of IDSTQuan that MNN reads: 1, codes of 1 to 8 bits behind a header (number of dims, dims, number of samples,
samples); 2, the same for the weights that are not zero, after the steps from one to the next; 3, float16 weights; 4,
plain int8; 8, float32 in the file of weights. With `index`, alpha holds the few weights that are not zero. MNN reads
as much as the sizes say and does not look where a buffer ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphkit.mnn.document._valid_external import Outside, reads_outside
from graphkit.mnn.document._valid_problem import Problem, error, warning
from graphkit.mnn.document.tree import Table

CODES, STEPS, HALF, PLAIN, FLOAT = 1, 2, 3, 4, 8
_ARGUMENTS = ("NNZElement", "blockNumber", "sparseBlockOC")
_TINY = 1e-6  # MNN takes a quantScale below this as not set


@dataclass(frozen=True)
class Shape:
    """Sizes of a convolution: output channels, weights of one input channel, and how many weights it can have.

    `counts` is empty when the number of input channels is not known.
    """

    outputs: int
    unit: int
    counts: frozenset[int]

    def fits(self, count: int) -> bool:
        """Whether so many weights are possible."""
        return count in self.counts if self.counts else count > 0 and count % self.unit == 0

    def words(self, width: int = 1) -> str:
        """The possible numbers of weights, times `width`."""
        if not self.counts:
            return f"a multiple of {self.unit * width}"
        return " or ".join(str(count * width) for count in sorted(self.counts, reverse=True))


@dataclass(frozen=True)
class Bytes:
    """A buffer of which only the beginnings of its parts are looked at, wherever it is."""

    size: int
    read: Callable[[int, int], bytes]

    def number(self, start: int, width: int) -> int:
        """An unsigned number; 0 behind the end."""
        return int.from_bytes(self.read(start, min(start + width, self.size)), "little")


@dataclass(frozen=True)
class Header:
    """What a buffer of codes says of itself: the dims of the weights, bits of a code, bytes of the whole buffer."""

    dims: tuple[int, ...]
    bits: int
    size: int

    @property
    def count(self) -> int:
        """How many weights there are."""
        return math.prod(self.dims)


def read_header(data: Bytes, wide: bool, sparse: bool) -> Header | None:
    """The header of a buffer of codes; None when there is none. wide: dims take 4 bytes each. sparse: of type 2."""
    rank, width = data.number(0, 1), 4 if wide else 2
    at = 1 + rank * width
    if not 1 <= rank <= 4 or data.size <= at:
        return None
    dims = tuple(data.number(k, width) for k in range(1, at, width))
    coded = math.prod(dims)
    if sparse:
        coded, step_bits = data.number(at, 4), data.number(at + 4, 1)
        at += 5 + -(-coded * step_bits // 8)
        if not 1 <= step_bits <= 8 or at >= data.size:
            return None
    samples = data.number(at, 1) or 256
    bits = max(1, (samples - 1).bit_length())
    return Header(dims, bits, at + 1 + samples + -(-coded * bits // 8))


def check_quantized(where: str, conv: Table, shape: Shape, outside: Outside) -> Iterator[Problem]:
    """Problems of a Convolution2D with quanParameter; `where` is the path of the Convolution2D."""
    quan = conv["quanParameter"]
    place = f"{where}.quanParameter"
    external = reads_outside(conv) and quan["buffer"] is None
    if external:
        yield from outside.sizes(where, conv, _expected(conv, quan, shape))
        if len(conv.ints("external")) < 3 or min(conv.ints("external")) < 0:
            return
    if quan["index"] is not None or (external and sum(conv.ints("external")[4:]) > 0):
        yield from _sparse(where, conv, shape, external)
    elif external:
        yield from _outside(where, conv, shape, outside)
    elif quan["buffer"] is None:
        yield error(f"{place}.buffer", "is missing: MNN crashes", "give it the weights, or remove quanParameter")
    else:
        buffer = quan["buffer"]
        data = Bytes(len(buffer), lambda start, stop: buffer[start:stop].tobytes())
        yield from _body(f"{place}.buffer", place, quan, shape, data)
        yield from _scales(where, conv, shape, external, data)


def _outside(where: str, conv: Table, shape: Shape, outside: Outside) -> Iterator[Problem]:
    """Problems of weights and scales in the file of weights, if that is there."""
    if outside.path is None:
        return
    quan = conv["quanParameter"]
    data = Bytes(conv.ints("external")[1], lambda start, stop: outside.first(conv, start, stop))
    yield from _body(f"{where}.external[1]", f"{where}.quanParameter", quan, shape, data)
    yield from _scales(where, conv, shape, True, data)


def _expected(conv: Table, quan: Table, shape: Shape) -> dict[int, int]:
    sizes = conv.ints("external")
    expected = {}
    if len(sizes) > 3 and sizes[3] > 0:
        expected[3] = 4 * shape.outputs
    if quan["type"] == HALF and len(shape.counts) == 1:
        expected[1] = 2 * min(shape.counts)
    return expected


def _body(where: str, place: str, quan: Table, shape: Shape, data: Bytes) -> Iterator[Problem]:
    """Problems of the weights themselves. place: the path of quanParameter."""
    kind = int(quan["type"])
    if kind in (HALF, PLAIN):
        width = 2 if kind == HALF else 1
        if data.size % width or not shape.fits(data.size // width):
            name = "float16" if kind == HALF else "int8"
            message = f"has {data.size} bytes where common asks for {shape.words(width)} ({name})"
            yield error(where, message, "correct common or the buffer")
    elif kind in (CODES, STEPS):
        yield from _codes(where, place, quan, shape, data)
    elif kind != FLOAT:
        hint = "1 is codes, 2 sparse codes, 3 float16, 4 int8"
        yield error(f"{place}.type", f"MNN reads no weights of type {kind}", hint)


def _codes(where: str, place: str, quan: Table, shape: Shape, data: Bytes) -> Iterator[Problem]:
    header = read_header(data, bool(quan["shapeInt32"]), sparse=quan["type"] == STEPS)
    bits = int(quan["aMaxOrBits"])
    if header is None:
        message = "does not begin with the sizes of weights of this type"
        yield error(where, message, "it is cut off, or type or shapeInt32 is wrong: write it anew")
    elif not shape.fits(header.count):
        message = f"says it holds {' × '.join(map(str, header.dims))} weights where common asks for {shape.words()}"
        yield error(where, message, "correct common, or write the buffer anew")
    elif data.size < header.size:
        message = f"has {data.size} bytes where its codes of {header.bits} bits take {header.size}"
        yield error(where, message, "it is cut off: write it anew")
    elif quan["type"] == CODES and 0 < bits <= 8 and bits != header.bits:
        message = f"says {bits} bits, the codes have {header.bits}"
        yield warning(f"{place}.aMaxOrBits", message, f"set it to {header.bits}")


def asymmetric(quan: Table) -> bool:
    """Whether alpha holds a minimum before each scale."""
    old = quan["type"] == PLAIN and quan["aMin"] == 0 and abs(quan["quantScale"]) < _TINY
    return bool(quan["readType"] != 0 or old)


def _scales(where: str, conv: Table, shape: Shape, external: bool, data: Bytes) -> Iterator[Problem]:
    """Problems of the scales: one a row, rows being output channels times blocks."""
    quan = conv["quanParameter"]
    if quan["type"] in (HALF, FLOAT):
        return
    half = quan.label("scaleStorage") == "FP16"
    field = "alphaFp16" if half else "alpha"
    place = f"{where}.external[2]" if external else f"{where}.quanParameter.{field}"
    stored = quan[field]
    if external:
        count = conv.ints("external")[2] // (2 if half else 4)
    elif stored is None:
        yield error(place, "is missing: MNN crashes", "give it the scales")
        return
    else:
        count = len(stored)
    rows = count // 2 if asymmetric(quan) else count
    header = read_header(data, bool(quan["shapeInt32"]), sparse=False) if quan["type"] == CODES else None
    total = header.count if header is not None else max(shape.counts, default=rows)
    yield from _rows(place, rows, total, shape, header, asymmetric(quan))


def _rows(where: str, rows: int, total: int, shape: Shape, header: Header | None, doubled: bool) -> Iterator[Problem]:
    kind = "pairs of minimum and scale" if doubled else "scales"
    if rows < 1 or total % rows or rows % shape.outputs:
        message = f"holds {rows} {kind}, which do not divide {total} weights of {shape.outputs} output channels"
        yield error(where, message, "there is one for each output channel, or for each block of one")
    elif header is not None and len(header.dims) == 2 and rows != header.dims[0]:
        yield error(where, f"holds {rows} {kind}, the buffer has {header.dims[0]} rows", "check readType and alpha")


def _sparse(where: str, conv: Table, shape: Shape, external: bool) -> Iterator[Problem]:
    """Problems of weights that are given by place and value: index and alpha, both inside the file or both outside."""
    quan, sizes = conv["quanParameter"], conv.ints("external")
    place, index, alpha, count = f"{where}.quanParameter", quan["index"], quan["alpha"], int(quan["weightSize"])
    if not shape.fits(count):
        yield error(f"{place}.weightSize", f"says {count} weights where common asks for {shape.words()}", "correct it")
    places = len(index) if index is not None else sum(sizes[4:]) // 4
    values = len(alpha) if alpha is not None else sizes[2] // 4 if external else 0
    if places != values:
        yield error(f"{place}.index", f"names {places} places for {values} weights of alpha", "make them equally many")
    if index is not None and len(index) and int(index.max()) >= count:
        message = f"names place {int(index.max())} of {count} weights"
        yield error(f"{place}.index", message, "weightSize is too small, or the index is wrong")
    if conv["sparseParameter"] is not None:
        yield from _arguments(f"{where}.sparseParameter.args", conv["sparseParameter"])


def _arguments(where: str, sparse: Table) -> Iterator[Problem]:
    """MNN finds these by bisection, and crashes where it does not find them."""
    keys = [one["key"] or "" for one in sparse.tables("args")]
    for name in _ARGUMENTS:
        if name not in keys:
            yield error(where, f"has no '{name}': MNN crashes", "restore it, or remove sparseParameter")
    if keys != sorted(keys):
        yield error(where, "is not sorted by key: MNN does not find its entries", f"order: {', '.join(sorted(keys))}")
