"""Quantized layers: are the codes what so many bits can hold, and does MNN compute what its codes say?

The same model converted without quantization has the weights that were quantized (with all that was folded into
them). Codes further from them than plain rounding to as many bits are wrong; and that float file with the weights the
codes stand for tells what each layer must compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.arrays import arrays_of
from graphkit.mnn.document.quantized import Codes
from graphkit.mnn.document.stored import Outside
from graphkit.mnn.document.summary import outside_of
from graphkit.mnn.document.tree import Table

Array = npt.NDArray[Any]
Key = tuple[str, str]  # graph and name of an MNN operator

_WORSE = 2.0  # times the error of plain rounding; GPTQ and clipping reach 1.5
_LEAST = 1e-3  # of the weights' norm: below this no codes are wrong


@dataclass(frozen=True)
class Layer:
    """One quantized operator: `floats` the weights it was made from, `codes` what its codes stand for."""

    name: str
    bits: int
    asymmetric: bool
    area: int
    floats: Array
    codes: Array

    @property
    def error(self) -> float:
        """Relative L2 distance of the codes from the weights."""
        return _distance(self.floats, self.codes)

    @property
    def rounding(self) -> float:
        """What plain rounding to as many bits costs, with as many scales."""
        return _distance(self.floats, self.plain)

    @property
    def plain(self) -> Array:
        """The weights rounded to as many bits, with as many scales."""
        return rounded(self.floats, self.bits, self.area, self.asymmetric)

    @property
    def wrong(self) -> str:
        """Why the codes are wrong, one line; empty when they are as good as rounding."""
        error, rounding = self.error, self.rounding
        if error <= max(_WORSE * rounding, _LEAST):
            return ""
        told = f"its {self.bits}-bit codes are off by {error:.1e} of the weights, where rounding costs {rounding:.1e}"
        rows, made = self.floats.reshape(-1, self.area), self.codes.reshape(-1, self.area)
        lost = np.flatnonzero(np.abs(rows).max(1) > 0)[(np.abs(made).max(1) == 0)[np.abs(rows).max(1) > 0]]
        if lost.size:
            largest = float(np.abs(rows[lost]).max())
            return f"{told}: {lost.size} of {len(rows)} rows have only zeros (their weights are at most {largest:.1e})"
        gains = np.sum(rows * made, 1) / np.maximum(np.sum(rows * rows, 1), 1e-30)
        worst = int(np.argmax(np.abs(gains - 1)))
        return f"{told}; row {worst} of {len(rows)} is {gains[worst]:.3g} times what it should be"


def layers(candidate: Path, floats: Path) -> dict[Key, Layer]:
    """The quantized layers of a file whose weights a file without quantization has under the same names."""
    plain = dict(_weights(read(floats)))
    found = {}
    for key, held in _weights(read(candidate)):
        original = plain.get(key)
        if isinstance(held, Codes) and isinstance(original, np.ndarray) and original.size == held.count:
            values = held.values(0, held.count).astype(np.float64)
            scheme = held.scheme
            found[key] = Layer(
                key[1], scheme.bits, scheme.asymmetric, held.area, original.astype(np.float64).reshape(-1), values
            )
    return found


def count(candidate: Path) -> int:
    """How many operators of a file are quantized."""
    return sum(isinstance(held, Codes) for _, held in _weights(read(candidate)))


def twin(candidate: Path, floats: Path, target: Path, rounding: Collection[Key] = ()) -> int:
    """Write the float file with the weights that the candidate's codes stand for; how many layers got some.

    rounding: layers that get what plain rounding makes of their weights, whatever their codes say.
    """
    document, count = read(floats), 0
    known = layers(candidate, floats) if rounding else {}
    codes = {key: held for key, held in _weights(read(candidate)) if isinstance(held, Codes)}
    for graph in document.graphs():
        for op in graph.ops:
            held = codes.get((graph.name, op["name"] or ""))
            main = op["main"]
            if held is not None and isinstance(main, Table) and "weight" in main and main["weight"].size == held.count:
                key = (graph.name, op["name"] or "")
                layer = known.get(key) if key in rounding else None
                values = held.values(0, held.count) if layer is None else layer.plain
                main.fields["weight"] = np.ascontiguousarray(values, "<f4")
                count += 1
    write(document, target)
    return count


def _weights(document: Document) -> Iterator[tuple[Key, Any]]:
    """The weights of each convolution: an array, or codes."""
    outside: Outside = outside_of(document)
    for graph in document.graphs():
        for op in graph.ops:
            found, _ = arrays_of(op, outside)
            for array in found:
                if array.kind == "weights":
                    yield (graph.name, op["name"] or ""), array.values()
                    break


def rounded(weights: Array, bits: int, area: int, asymmetric: bool) -> Array:
    """Weights rounded to the nearest code, one scale for each `area` of them."""
    rows = weights.reshape(-1, area)
    if asymmetric:
        low, high = rows.min(1, keepdims=True), rows.max(1, keepdims=True)
        step = np.maximum(high - low, 1e-30) / (2**bits - 1)
        return np.asarray((np.rint((rows - low) / step) * step + low).reshape(-1))
    step = np.maximum(np.abs(rows).max(1, keepdims=True), 1e-30) / (2 ** (bits - 1) - 1)
    return np.asarray((np.rint(rows / step) * step).reshape(-1))


def _distance(one: Array, two: Array) -> float:
    norm = float(np.linalg.norm(one))
    return float(np.linalg.norm(one - two)) / norm if norm else float(np.linalg.norm(two) > 0)


def of(found: Mapping[Key, Layer], op: str) -> Layer | None:
    """The layer of an MNN operator by its name, in whichever graph."""
    return next((layer for (_, name), layer in found.items() if name == op), None)
