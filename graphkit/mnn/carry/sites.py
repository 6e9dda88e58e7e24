"""The layers of a .mnn file whose float weights can give way to codes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from graphkit.mnn.carry.encode import idst_table
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.quantized import HALF
from graphkit.mnn.document.stored import Outside
from graphkit.mnn.document.tree import Array, Table
from graphkit.quant.codes import Codes

_DECONVOLUTION = "Deconvolution"
# MNN turns the codes of these into floats when it loads them, however their scales lie (measured, 3.6.1).
_FREE = (_DECONVOLUTION, "ConvolutionDepthwise", "DeconvolutionDepthwise")
_KINDS = ("Convolution", *_FREE)
_BLOCK = 16  # MNN's blocks are multiples of so many input channels


@dataclass(frozen=True, eq=False)
class Site:
    """A layer with float weights: its operator, the table Convolution2D, and the sizes of its matrix.

    outputs: rows. kernel: elements. count: of weights. halved: they are stored as float16. outside: they are kept in
    the file of weights, at `at`.
    """

    op: Table
    conv: Table
    kind: str
    outputs: int
    kernel: int
    count: int
    halved: bool
    outside: bool

    @property
    def name(self) -> str:
        """MNN's name of the operator."""
        return self.op["name"] or ""

    @property
    def columns(self) -> int:
        """Weights of one output channel."""
        return self.count // self.outputs

    def matrix(self, source: Outside) -> Array:
        """Its weights as float32 [outputs, columns]. Raises ModelError when the file of weights lacks them."""
        flat = self._flat(source)
        if self.kind == _DECONVOLUTION:
            flat = flat.reshape(-1, self.outputs, self.kernel).swapaxes(0, 1)
        return np.ascontiguousarray(flat.reshape(self.outputs, -1), np.float32)

    def _flat(self, source: Outside) -> Array:
        if self.outside:
            start, size = self.conv.ints("external")[:2]
            return source.read(start, size, "<f2" if self.halved else "<f4")
        if self.halved:
            held: Array = self.conv["quanParameter"]["buffer"]
            return held.view("<f2")
        weight: Array = self.conv["weight"]
        return weight

    def table(self, codes: Codes, *, half_scales: bool) -> Table | str:
        """Its codes [outputs, columns] as MNN's table, or the reason why MNN cannot have them so."""
        stored = self._in_order(codes) if self.kind in _FREE else codes
        if self.kind not in _FREE and codes.blocks > 1:
            if codes.block_columns % self.kernel:
                return "its scales change within one input channel, and MNN's only from one to another"
            if self.block(codes) % _BLOCK:
                return f"its scales change every {_channels(self.block(codes))}; MNN's blocks are multiples of {_BLOCK}"
        made = idst_table(stored, self.op.schema, half_scales=half_scales)
        held = 2 if self.halved else 4
        if table_bytes(made) >= held * self.count:
            return f"with {stored.scales.size:,} scales its codes would take more bytes than its floats"
        return made

    def block(self, codes: Codes) -> int:
        """Input channels that share a scale, 0 for one scale a channel."""
        return codes.block_columns // self.kernel if codes.blocks > 1 else 0

    def _in_order(self, codes: Codes) -> Codes:
        """The codes as they lie in the file, with runs of equal length under one scale."""
        spread = [
            codes.codes,
            _spread(codes.scales, codes),
            None if codes.zeros is None else _spread(codes.zeros, codes),
        ]
        lie = [None if array is None else self._lie(array) for array in spread]
        flat, scales, zeros = lie
        assert flat is not None
        assert scales is not None
        changes = scales[1:] != scales[:-1]
        if zeros is not None:
            changes |= zeros[1:] != zeros[:-1]
        # as many rows as channels, or a multiple: MNN's own files have no others
        run = math.gcd(self.columns, *(np.flatnonzero(changes) + 1).tolist())
        points = None if zeros is None else np.ascontiguousarray(zeros[None, ::run])
        return Codes(flat[None], np.ascontiguousarray(scales[None, ::run]), points, codes.bits)

    def _lie(self, array: Array) -> Array:
        """A matrix [outputs, columns] in the order of the file, flat."""
        if self.kind == _DECONVOLUTION:
            array = array.reshape(self.outputs, -1, self.kernel).swapaxes(0, 1)
        return array.reshape(-1)


def _spread(array: Array, codes: Codes) -> Array:
    return np.repeat(array, codes.block_columns, axis=1)


def _channels(count: int) -> str:
    return "input channel" if count == 1 else f"{count} input channels"


def table_bytes(table: Table) -> int:
    """Bytes of codes and scales of a table IDSTQuan."""
    return sum(value.nbytes for value in table.fields.values() if isinstance(value, np.ndarray))


def any_quantized(document: Document) -> bool:
    """True when MNN's converter has quantized weights itself."""
    mains = (op["main"] for graph in document.graphs() for op in graph.ops)
    tables = (main["quanParameter"] for main in mains if isinstance(main, Table) and main.type.name == "Convolution2D")
    return any(table is not None and table["type"] != HALF for table in tables)


def sites(document: Document) -> Iterator[Site]:
    """All layers of a document, subgraphs too, whose weights are floats."""
    for graph in document.graphs():
        for op in graph.ops:
            found = _site(op)
            if found is not None:
                yield found


def _site(op: Table) -> Site | None:
    kind, conv = op.label("type"), op["main"]
    if kind not in _KINDS or not isinstance(conv, Table) or conv.type.name != "Convolution2D":
        return None
    common, quan = conv["common"], conv["quanParameter"]
    if not isinstance(common, Table) or any(conv[field] is not None for field in ("symmetricQuan", "sparseParameter")):
        return None
    halved = quan is not None and quan["type"] == HALF
    if quan is not None and not halved:
        return None
    size, outside = _stored(conv, halved)
    outputs, kernel = int(common["outputCount"]), int(common["kernelX"]) * int(common["kernelY"])
    grouped = kind == _DECONVOLUTION and common["group"] > 1
    if outputs < 1 or kernel < 1 or not size or size % (outputs * kernel) or grouped:
        return None
    return Site(op, conv, kind, outputs, kernel, size, halved, outside)


def _stored(conv: Table, halved: bool) -> tuple[int, bool]:
    """How many weights a layer has, and whether they are in the file of weights."""
    inside = (conv["quanParameter"]["buffer"] if halved else conv["weight"]) if conv is not None else None
    if inside is not None:
        return inside.nbytes // (2 if halved else 4), False
    outside = conv.ints("external")
    return (outside[1] // (2 if halved else 4), True) if len(outside) > 1 else (0, False)
