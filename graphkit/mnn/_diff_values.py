"""Compare two arrays a piece at a time: norms, counts and hashes in the memory of one piece."""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphkit.mnn._diff_types import ArrayChange, ArrayFacts
from graphkit.mnn.document.stored import Pieces, StoredArray
from graphkit.mnn.document.tree import Array

_PIECE = 1 << 16  # elements at a time, a multiple of 8: the codes of a piece begin with a byte
_FEW = 8  # arrays of up to so many elements are shown with their values


def compare_arrays(field: str, a: StoredArray, b: StoredArray) -> ArrayChange | None:
    """How `b` differs from `a`, None when both hold the same bytes as the same type and shape.

    Raises ModelError when weights kept in another file cannot be read.
    """
    parts_a, parts_b = a.parts(), b.parts()
    alike = a.dtype == b.dtype and a.shape == b.shape and a.scheme == b.scheme
    if alike and len(parts_a) == len(parts_b) and all(map(_same_bytes, parts_a, parts_b)):
        return None
    values_a, values_b = a.values(), b.values()
    change = ArrayChange(field, _facts(a, parts_a, values_a), _facts(b, parts_b, values_b))
    if values_a is None or values_b is None or _count(values_a) != _count(values_b):
        return change
    return _measured(change, values_a, values_b)


def release(mapped: Iterable[Any]) -> None:
    """Let the system take back the memory of mapped files; what is read again comes from the files again."""
    for file in mapped:
        if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            file.madvise(mmap.MADV_DONTNEED)


def facts_of(array: StoredArray) -> ArrayFacts:
    """One array by itself. Raises ModelError as `compare_arrays` does."""
    return _facts(array, array.parts(), array.values())


def _facts(array: StoredArray, parts: list[Array], values: Array | Pieces | None) -> ArrayFacts:
    few = isinstance(values, np.ndarray) and values.size <= _FEW
    return ArrayFacts(
        array.dtype,
        array.shape if isinstance(values, np.ndarray) or values is None else (values.count,),
        array.nbytes,
        _hash(parts),
        str(array.scheme or ""),
        tuple(_plain(values)) if few and isinstance(values, np.ndarray) else None,
    )


def _plain(values: Array) -> list[Any]:
    flat = values.reshape(-1)
    if flat.dtype.kind == "f" and flat.dtype.itemsize < 8:
        return [float(str(x)) for x in flat]  # the shortest text of a float32, not the longest of a float64
    if flat.dtype.kind == "V":  # ml_dtypes
        return [float(x) for x in flat]
    return [x.decode("utf-8", "backslashreplace") if isinstance(x, bytes) else x for x in flat.tolist()]


def _hash(parts: list[Array]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(_bytes(part))
    return digest.hexdigest()[:16]


def _bytes(array: Array) -> memoryview:
    if array.dtype.kind in "OUS":
        return memoryview(repr(array.reshape(-1).tolist()).encode("utf-8", "surrogatepass"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _same_bytes(a: Array, b: Array) -> bool:
    if a.size != b.size or a.dtype != b.dtype:
        return False
    left, right = _bytes(a), _bytes(b)
    step = 32 * _PIECE
    return len(left) == len(right) and all(
        bytes(left[at : at + step]) == bytes(right[at : at + step]) for at in range(0, len(left), step)
    )


def _count(values: Array | Pieces) -> int:
    return int(values.size) if isinstance(values, np.ndarray) else values.count


@dataclass
class _Sums:
    """What is known after some pieces: norms of the difference and of `a`, the largest difference, counts."""

    difference: float = 0.0
    norm: float = 0.0
    largest: float = 0.0
    changed: int = 0
    nans: int = 0

    def add(self, a: Array, b: Array) -> None:
        """Take in one piece of both, as numbers of the arrays' own types."""
        old, new = a.astype(np.float64), b.astype(np.float64)
        missing = np.isnan(old) | np.isnan(new)
        exact = a.dtype.kind in "iub" and b.dtype.kind in "iub"  # int64 has values that float64 has not
        apart = (a != b) if exact else (old != new) & ~(np.isnan(old) & np.isnan(new))
        self.changed += int(np.count_nonzero(apart))
        self.nans += int(np.count_nonzero(missing & apart))
        # Equal places count as 0, infinities too; where a side is NaN there is no difference to measure.
        delta = np.zeros_like(old)
        np.subtract(old, new, out=delta, where=apart & ~missing)
        self.difference = math.hypot(self.difference, norm(delta))
        finite = np.isfinite(old)
        self.norm = math.hypot(self.norm, norm(old if finite.all() else old[finite]))
        self.largest = max(self.largest, float(np.max(np.abs(delta), initial=0.0)))


def _measured(change: ArrayChange, a: Array | Pieces, b: Array | Pieces) -> ArrayChange:
    a, b, count = _real(a), _real(b), _count(a)
    if _is_text(a) or _is_text(b):
        changed = sum(x != y for x, y in zip(_flat(a), _flat(b), strict=True))
        return replace(change, changed=changed, count=count)
    sums, codes = _Sums(), 0
    coded = _coded(a, b) if change.old.dtype == change.new.dtype else None
    for start in range(0, _count(a), _PIECE):
        stop = min(_count(a), start + _PIECE)
        with np.errstate(all="ignore"):
            sums.add(_piece(a, start, stop), _piece(b, start, stop))
        if coded is not None:
            codes += int(np.count_nonzero(coded[0].codes(start, stop) != coded[1].codes(start, stop)))
    return replace(
        change,
        relative=_ratio(sums.difference, sums.norm),
        largest=sums.largest,
        changed=sums.changed,
        count=count,
        nans=sums.nans,
        codes=codes if coded is not None else None,
    )


def _real(values: Array | Pieces) -> Array | Pieces:
    """Complex numbers as pairs of real ones."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "c":
        flat = np.ascontiguousarray(values).reshape(-1)
        pairs: Array = flat.view(flat.real.dtype)
        return pairs
    return values


def _coded(a: Array | Pieces, b: Array | Pieces) -> tuple[Pieces, Pieces] | None:
    return None if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else (a, b)


def _is_text(values: Array | Pieces) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "OUS"


def _flat(values: Array | Pieces) -> list[Any]:
    return values.reshape(-1).tolist() if isinstance(values, np.ndarray) else []


def _piece(values: Array | Pieces, start: int, stop: int) -> Array:
    if not isinstance(values, np.ndarray):
        return values.values(start, stop)
    found: Array = values.reshape(-1)[start:stop]
    return found


def _ratio(difference: float, norm: float) -> float:
    if difference == 0:
        return 0.0
    return difference / norm if norm else math.inf


def norm(values: Array) -> float:
    """The Euclidean norm of float64 values, exact for very large and very small ones too."""
    total = _squares(values)
    if 1e-290 < total < math.inf:
        return math.sqrt(total)
    largest = float(np.max(np.abs(values), initial=0.0))
    if largest == 0 or not math.isfinite(largest):
        return largest
    scaled = values / largest
    return largest * math.sqrt(_squares(scaled))


def _squares(values: Array) -> float:
    # np.dot would start as many threads as there are cores, for pieces that are not worth it.
    return float(np.einsum("i,i->", values, values))
