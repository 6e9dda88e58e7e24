"""Arrays that are kept in the file beside the model: `external` holds their place and sizes.

`external` is `[offset, bytes, …]`, the arrays one after the other: a Blob's data; weight and bias of a convolution,
or with quanParameter its buffer, alpha, bias and index; scaleData and biasData; gamma and beta. MNN reads
`<model>.weight` and does not look whether that worked: what it cannot read is left as the memory was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkit.mnn.document._valid_problem import Problem, error
from graphkit.mnn.document.tree import Table

_NAMES: Mapping[str, tuple[str, ...]] = {
    "Blob": ("data",),
    "Convolution2D": ("weight", "bias"),
    "Scale": ("scaleData", "biasData"),
    "LayerNorm": ("gamma", "beta"),
    "GroupNorm": ("gamma", "beta"),
}
_QUANTIZED = ("quanParameter.buffer", "quanParameter.alpha", "bias", "quanParameter.index")
_NEEDED: Mapping[str, int] = {"Blob": 2, "Scale": 2}  # 3 in the other tables


def reads_outside(table: Table) -> bool:
    """Whether MNN takes the table's arrays from the other file."""
    return len(table.ints("external")) > 1


def names_outside(table: Table) -> tuple[str, ...]:
    """The fields that the sizes in `external` stand for, in order."""
    if table.type.name == "Convolution2D" and table["quanParameter"] is not None:
        return _QUANTIZED
    return _NAMES.get(table.type.name, ())


@dataclass(frozen=True)
class Outside:
    """The file of weights beside a model, as far as the checks need it. `size`: its bytes, 0 when it is missing."""

    model: str
    path: Path | None
    size: int

    @classmethod
    def of(cls, source: Path | None, path: Path | None) -> Outside:
        """Of a document's source and its file of weights."""
        try:
            size = path.stat().st_size if path is not None else 0
        except OSError:
            path, size = None, 0
        return cls(source.name if source is not None else "model.mnn", path, size)

    def missing(self, where: str) -> Problem:
        """The error that the file is not there; `where` is the path of the first `external` that needs it."""
        name = f"{self.model}.weight"
        message = f"arrays are kept in '{name}', which is missing: MNN would compute with zeros"
        return error(where, message, f"put the file of weights beside the model as '{name}'")

    def first(self, table: Table, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of the first array of an `external`, as far as the file has them."""
        at = table.ints("external")[0] + start
        if self.path is None or at < 0 or stop <= start:
            return b""
        try:
            with self.path.open("rb") as file:
                file.seek(at)
                return file.read(stop - start)
        except OSError:
            return b""

    def sizes(self, where: str, table: Table, expected: Mapping[int, int]) -> Iterator[Problem]:
        """Problems of one `external`. expected: bytes that an array must have, by its place from 1."""
        found = table.ints("external")
        names = names_outside(table)
        fewest = _NEEDED.get(table.type.name, 3)
        if len(found) < fewest:
            meant = ", ".join(("offset", *names))
            yield error(
                f"{where}.external", f"has {len(found)} numbers where MNN reads {fewest}", f"it holds [{meant}]"
            )
            return
        for place, size in enumerate(found):
            wanted = expected.get(place)
            if size < 0:
                yield error(f"{where}.external[{place}]", f"{size} is no {'offset' if not place else 'size'}")
            elif wanted is not None and size != wanted:
                name = names[place - 1] if place <= len(names) else "the array"
                message = f"says {size} bytes where {name} has {wanted}"
                yield error(f"{where}.external[{place}]", message, f"set it to {wanted}")
        yield from self._fits(where, found)

    def _fits(self, where: str, found: tuple[int, ...]) -> Iterator[Problem]:
        end = found[0] + sum(found[1:])
        if self.path is not None and min(found) >= 0 and end > self.size:
            yield error(
                f"{where}.external",
                f"reads up to byte {end} of '{self.path.name}', which has {self.size}",
                "the file of weights is cut off or belongs to another model",
            )
