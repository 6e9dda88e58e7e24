"""Where new codes wait to be written: a file of their own, so that they need no memory.

Weights that MNN keeps outside a model (above 2 GB) stay outside: their codes, and what else the file of weights holds,
go into a new file of weights without the floats that nothing reads any more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from graphkit.errors import ModelError, OutputError
from graphkit.mnn.carry.sites import Site
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.stored import Outside
from graphkit.mnn.document.tree import Array, Table

_CHUNK = 1 << 22


class Spool:
    """Two files in a temporary folder inside `folder`: codes for the model, codes for its file of weights."""

    def __init__(self, folder: Path) -> None:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix=".graphkit-carry-", dir=folder)
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", file=folder) from error
        self._inside: BinaryIO = (Path(self._folder.name) / "codes").open("w+b")
        self._weights = Path(self._folder.name) / "weights"
        self._outside: BinaryIO = self._weights.open("w+b")
        self._moved: set[int] = set()

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.close()
        self._outside.close()
        self._folder.cleanup()

    def put(self, site: Site, table: Table, source: Outside) -> None:
        """Give a layer its table in place of its floats; its bias stays as it is stored. source: where floats are."""
        conv = site.conv
        if site.outside:
            self._put_outside(site, table, source)
        else:
            table.fields["buffer"] = self._kept(table.fields["buffer"])
        conv.fields.pop("weight", None)
        conv.fields["quanParameter"] = table

    def _kept(self, array: Array) -> Array:
        """The same array, read from the file when it is needed."""
        start = self._inside.seek(0, 2)
        self._inside.write(array.data)
        self._inside.flush()
        return np.memmap(self._inside, array.dtype, "r", start, array.shape) if array.size else array

    def _put_outside(self, site: Site, table: Table, source: Outside) -> None:
        """Codes, scales and bias one after another, as MNN's converter lays them."""
        start, *sizes = site.conv.ints("external")
        at = 2 if site.halved else 1  # of float16 weights the scales, which they have none of, come first
        bias = source.read(start + sum(sizes[:at]), sizes[at], "<f4") if len(sizes) > at else np.zeros(0, "<f4")
        scales = table.fields.pop("alphaFp16" if "alphaFp16" in table else "alpha")
        parts = [table.fields.pop("buffer"), scales, bias]
        place = self._outside.seek(0, 2)
        for array in parts:
            self._outside.write(np.ascontiguousarray(array).data)
        site.conv.fields["external"] = np.array([place, *(array.nbytes for array in parts), 0], "<i8")
        self._moved.add(id(site.conv))

    def settle(self, document: Document) -> None:
        """Make the new file of weights the document's, with what other tables keep outside."""
        if not self._moved:
            return
        if document.weights is None:
            raise ModelError("keeps its weights in a second file, which is missing", file=document.source)
        with document.weights.open("rb") as source:
            for table in _external(document):
                if id(table) not in self._moved:
                    start, *sizes = table.ints("external")
                    at = self._outside.seek(0, 2)
                    _copy(source, self._outside, start, sum(size for size in sizes if size > 0))
                    table.fields["external"] = np.array([at, *sizes], "<i8")
        self._outside.flush()
        document.weights = self._weights


def _external(document: Document) -> Iterator[Table]:
    """All tables that keep arrays outside."""
    for _, table in document.net.walk():
        if "external" in table.type.fields and len(table.ints("external")) > 1:
            yield table


def _copy(source: BinaryIO, target: BinaryIO, start: int, size: int) -> None:
    source.seek(start)
    while size > 0:
        data = source.read(min(size, _CHUNK))
        if not data:
            raise ModelError("the file of weights ends before its weights do")
        target.write(data)
        size -= len(data)
