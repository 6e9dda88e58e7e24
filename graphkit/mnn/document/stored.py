"""What is known of an array in a model before it is read, and the file beside a .mnn model that may hold it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from graphkit.errors import ModelError
from graphkit.mnn.document.quantized import Scheme
from graphkit.mnn.document.tree import Array


class Pieces(Protocol):
    """Quantized weights that can be read a piece at a time; `start` is a multiple of 8."""

    @property
    def count(self) -> int:
        """How many weights there are."""

    def codes(self, start: int, stop: int) -> Array:
        """What the codes of a piece stand for before scaling, as integers."""

    def values(self, start: int, stop: int) -> Array:
        """The weights of a piece as floats."""


@dataclass(frozen=True, eq=False)
class StoredArray:
    """One array of an operator.

    field: its path below the operator, `main.weight`. kind: what it is for: weights, biases, constants, or arrays
    for all else. dtype: numpy's name of the element type, for quantized weights `4-bit codes`. nbytes: what it takes
    in the file, scales included; `scale_bytes` of them are scales. parts: reads the stored bytes, one array for
    each run of them. values: reads the elements, None when only the bytes can be compared. scheme: of quantized
    weights.
    """

    field: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    parts: Callable[[], list[Array]]
    values: Callable[[], Array | Pieces | None]
    external: bool = False
    scheme: Scheme | None = None
    scale_bytes: int = 0


@dataclass(eq=False)
class Outside:
    """The file beside a model that holds its weights, mapped when first read.

    model: the .mnn file, for messages. path: None when there is none. mapped: what has been mapped.
    """

    model: str
    path: Path | None
    mapped: list[mmap.mmap] = field(default_factory=list)

    @cached_property
    def view(self) -> Array:
        """All its bytes. Raises ModelError when it is missing or cannot be read."""
        if self.path is None:
            raise ModelError(
                "keeps its weights in a second file, which is missing",
                file=self.model,
                hint=f"put the file of weights beside it as '{Path(self.model).name}.weight'",
            )
        try:
            with self.path.open("rb") as file:
                if not self.path.stat().st_size:
                    return np.zeros(0, np.uint8)  # an empty file cannot be mapped
                self.mapped.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
                return np.frombuffer(self.mapped[0], np.uint8)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read weights: {error}", file=self.path) from error

    def read(self, offset: int, size: int, dtype: str) -> Array:
        """`size` bytes at `offset` as an array. Raises ModelError when the file does not have them."""
        view = self.view
        if offset < 0 or size < 0 or offset + size > view.size:
            raise ModelError(
                f"ends before its weights do: bytes {offset} to {offset + size} of {view.size}",
                file=self.path,
                hint="copy the file again; it belongs to one .mnn file and to no other",
            )
        whole = size - size % np.dtype(dtype).itemsize
        return view[offset : offset + whole].view(dtype)
