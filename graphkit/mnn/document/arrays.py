"""The arrays of an operator as its kernels see them, wherever the file keeps them.

A float16 constant is a float16 array though the file holds bytes; the weights of a convolution are one array whether
they stand in `weight`, quantized in `quanParameter`, or in `MODEL.mnn.weight`. How MNN lays out what it keeps
outside is read in its 3.6.1 converter (common/RemoveParams.cpp) and loader (core/OpCommonUtils.cpp): `external` is
an offset and the bytes of each array, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from graphkit.errors import ModelError
from graphkit.mnn.document import quantized
from graphkit.mnn.document.quantized import Scheme
from graphkit.mnn.document.stored import Outside, Pieces, StoredArray
from graphkit.mnn.document.tree import Array, Table

_STORED = {
    "DT_FLOAT": ("float32s", "<f4"),
    "DT_INT32": ("int32s", "<i4"),
    "DT_INT64": ("int64s", "<i8"),
    "DT_INT8": ("int8s", "i1"),
    "DT_UINT8": ("uint8s", "u1"),
    "DT_QUINT8": ("uint8s", "u1"),
    "DT_HALF": ("uint8s", "<f2"),
    "DT_BFLOAT16": ("uint8s", "bfloat16"),
}
_MOST = 1 << 28  # sparse weights that are counted out; more are compared by their bytes
_PAIRS = {"Scale": ("scaleData", "biasData"), "LayerNorm": ("gamma", "beta"), "GroupNorm": ("gamma", "beta")}
_WEIGHTS = frozenset({"weight", "scaleData", "gamma", "slope", "slopeData"})
_BIASES = frozenset({"bias", "biasData", "beta"})


@dataclass(frozen=True, eq=False)
class Spread:
    """Sparse weights, read a piece at a time: zero except at `index`, which ascends."""

    count: int
    index: Array
    numbers: Array

    def codes(self, start: int, stop: int) -> Array:
        """Where in a piece there is a number at all."""
        found: Array = (self.values(start, stop) != 0).astype(np.int32)
        return found

    def values(self, start: int, stop: int) -> Array:
        """The weights of a piece as float32."""
        low, high = np.searchsorted(self.index, (start, stop))
        dense = np.zeros(stop - start, np.float32)
        dense[self.index[low:high] - start] = self.numbers[low:high]
        return dense


def arrays_of(op: Table, outside: Outside) -> tuple[list[StoredArray], set[str]]:
    """All arrays of numbers of an operator, and the paths of the fields that make them up.

    Vectors of integers that are attributes (pads, axes: those outside of constants) are no arrays here. Nothing is
    read before an array is asked for its values.
    """
    reader = _Reader(outside, "externalPath" in op)
    main = op["main"]
    if isinstance(main, Table):
        for where, table in main.walk("main"):
            reader.table(where, table)
    return reader.found, reader.covered


class _Reader:
    """Collects the arrays of one operator; `elsewhere` tells that the operator names a file of its own."""

    def __init__(self, outside: Outside, elsewhere: bool) -> None:
        self.outside = outside
        self.elsewhere = elsewhere
        self.found: list[StoredArray] = []
        self.covered: set[str] = set()

    def table(self, where: str, table: Table) -> None:
        """Take the arrays of one table, those of the tables below it aside."""
        name = table.type.name
        if name == "Blob":
            self._blob(where, table)
        elif name in ("Convolution2D", "Convolution3D"):
            self._convolution(where, table)
        elif name in _PAIRS:
            self._pair(where, table, _PAIRS[name])
        self._vectors(where, table)

    def _blob(self, where: str, table: Table) -> None:
        field, dtype = _STORED.get(table.label("dataType"), ("", ""))
        shape = table.ints("dims")
        outside = table.ints("external")
        if not field or (field not in table and len(outside) < 2):
            return
        self.covered |= {f"{where}.{field}", f"{where}.external"}
        plain = "<u2" if dtype == "bfloat16" else dtype
        if field in table:
            stored: Array = table[field]
            self._add(where, "constants", dtype, shape, stored.nbytes, lambda: _as(stored, plain))
        else:
            self._add(
                where, "constants", dtype, shape, max(0, outside[1]), self._outer(outside, 1, plain), external=True
            )

    def _convolution(self, where: str, table: Table) -> None:
        quan, outside = table.fields.get("quanParameter"), table.ints("external")
        if isinstance(quan, Table):
            self._quantized(where, table, quan, outside)
            self._float(where, table, "bias", outside, 3)
            return
        self._float(where, table, "weight", outside, 1)
        self._float(where, table, "bias", outside, 2)

    def _pair(self, where: str, table: Table, names: tuple[str, str]) -> None:
        outside = table.ints("external")
        for number, name in enumerate(names, start=1):
            self._float(where, table, name, outside, number)

    def _float(self, where: str, table: Table, name: str, outside: tuple[int, ...], number: int) -> None:
        """A vector of floats that may be kept outside as array `number` of `external`."""
        kind = "weights" if name in _WEIGHTS else "biases"
        field = f"{where}.{name}"
        if len(outside) > 1:
            self.covered.add(f"{where}.external")
        if name in table:
            stored: Array = table[name]
            self.covered.add(field)
            self._add(field, kind, "<f4", (stored.size,), stored.nbytes, lambda: stored)
        elif len(outside) > number and outside[number] > 0:
            size = outside[number]
            self._add(field, kind, "<f4", (size // 4,), size, self._outer(outside, number, "<f4"), external=True)

    def _quantized(self, where: str, table: Table, quan: Table, outside: tuple[int, ...]) -> None:
        """Weights in an IDSTQuan: codes, float16, or a few floats and where they stand."""
        half = quan.label("scaleStorage") == "FP16"
        alpha_name, alpha_type = ("alphaFp16", "<f2") if half else ("alpha", "<f4")
        runs = [
            self._run(quan, "buffer", "u1", outside, 1),
            self._run(quan, alpha_name, alpha_type, outside, 2),
            self._run(quan, "index", "<u4", outside, 4),
        ]
        inner = f"{where}.quanParameter"
        self.covered |= {f"{inner}.{name}" for name in ("buffer", "alpha", "alphaFp16", "index")} | {
            f"{where}.external"
        }
        sizes = [size for size, _ in runs]
        if not any(sizes):
            return
        common = table.fields.get("common")
        outputs, channels = (common["outputCount"], common["inputCount"]) if isinstance(common, Table) else (0, 0)
        alphas = sizes[1] // np.dtype(alpha_type).itemsize
        scheme = quantized.scheme_of(quan, alphas, outputs, channels) if not sizes[2] else None
        self._add_quantized(f"{where}.weight", quan, scheme, runs, external="buffer" not in quan and len(outside) > 1)

    def _add_quantized(
        self,
        field: str,
        quan: Table,
        scheme: Scheme | None,
        runs: list[tuple[int, Callable[[], Array]]],
        external: bool,
    ) -> None:
        sizes = [size for size, _ in runs]
        buffer, alpha, index = (read for _, read in runs)
        values: Callable[[], Array | Pieces | None] = _nothing
        dtype, count = "bytes", int(quan["weightSize"])
        if sizes[2]:
            dtype, values = "float32", lambda: _spread(count, index(), alpha())
        elif quan["type"] == quantized.HALF:
            dtype, count, values = "float16", sizes[0] // 2, lambda: _as(buffer(), "<f2")
        elif scheme is not None:
            dtype = f"{scheme.bits}-bit codes"
            count = sizes[0] * 8 // scheme.bits  # header and tail included; `values` tells it exactly
            values = partial(_decoded, quan, scheme, buffer, alpha)
        parts = [run for run in runs if run[0]]
        array = StoredArray(
            field,
            "weights",
            dtype,
            (count,),
            sum(sizes),
            lambda: [read() for _, read in parts],
            values,
            external,
            scheme,
            sizes[1] if scheme is not None else 0,
        )
        self.found.append(array)

    def _run(
        self, quan: Table, name: str, dtype: str, outside: tuple[int, ...], number: int
    ) -> tuple[int, Callable[[], Array]]:
        """Bytes of one array of an IDSTQuan, and how it is read."""
        if name in quan:
            stored: Array = quan[name]
            return stored.nbytes, lambda: stored.view(dtype)
        if len(outside) > number:
            return max(0, outside[number]), self._outer(outside, number, dtype)
        return 0, lambda: np.zeros(0, dtype)

    def _vectors(self, where: str, table: Table) -> None:
        """Vectors that no kernel of this module's reads in a way of its own."""
        for name, value in table.fields.items():
            path = f"{where}.{name}"
            if not isinstance(value, np.ndarray) or path in self.covered or not _is_data(table, name, value):
                continue
            self.covered.add(path)
            kind = "weights" if name in _WEIGHTS else "biases" if name in _BIASES else "arrays"
            self._add(path, kind, value.dtype.str, (value.size,), value.nbytes, partial(_same, value))

    def _outer(self, outside: tuple[int, ...], number: int, dtype: str) -> Callable[[], Array]:
        offset = outside[0] + sum(outside[1:number])
        return lambda: self._file().read(offset, outside[number], dtype)

    def _file(self) -> Outside:
        if self.elsewhere:
            raise ModelError(
                "has operators that name weight files of their own (externalPath); only MODEL.mnn.weight is read",
                file=self.outside.model,
            )
        return self.outside

    def _add(
        self,
        field: str,
        kind: str,
        dtype: str,
        shape: tuple[int, ...],
        nbytes: int,
        read: Callable[[], Array],
        *,
        external: bool = False,
    ) -> None:
        name = dtype if dtype == "bfloat16" else np.dtype(dtype).name
        widen = _bfloat16 if dtype == "bfloat16" else _same
        self.found.append(
            StoredArray(field, kind, name, shape, nbytes, lambda: [read()], lambda: widen(read()), external)
        )


def _is_data(table: Table, name: str, value: Array) -> bool:
    """True for vectors of numbers that are learned or constant, not attributes."""
    if name == "external":
        return False
    return value.dtype.kind == "f" or value.dtype.itemsize == 1 or (table.type.name == "Blob" and name != "dims")


def _as(stored: Array, dtype: str) -> Array:
    """An array's bytes as another type; the tail that makes no element is left out."""
    data = stored.view(np.uint8)
    return data[: data.size - data.size % np.dtype(dtype).itemsize].view(dtype)


def _same(values: Array) -> Array:
    return values


def _bfloat16(values: Array) -> Array:
    return (values.astype(np.uint32) << 16).view(np.float32)


def _nothing() -> None:
    return None


def _decoded(quan: Table, scheme: Scheme, buffer: Callable[[], Array], alpha: Callable[[], Array]) -> Pieces | None:
    return quantized.decode(quan, scheme, buffer(), alpha())


def _spread(count: int, index: Array, values: Array) -> Spread | None:
    """Weights that are zero except at `index`; None when the arrays do not fit together."""
    if index.size != values.size or count > _MOST or (index.size and int(index.max()) >= count):
        return None
    order = np.argsort(index, kind="stable")
    return Spread(count, index[order].astype(np.int64), values[order])
