"""Make up the values of a model's inputs from their types, names and uses (see hints)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx

from graphkit.errors import GraphkitError, UsageError
from graphkit.graph import Graph
from graphkit.sampling.hints import Hints, hints_for
from graphkit.sampling.shapes import Profile, plan_shapes

Array = npt.NDArray[Any]

# What `make(palette=…)` draws from, values that random ones do not hit: ties, halves, zeros, borders of ranges;
# whole numbers; saturation; only positive numbers; large ones. `levels` are spacing and largest value.
PALETTES: Mapping[str, tuple[float, float]] = {
    "coarse": (0.5, 1.0),
    "whole": (1.0, 9.0),
    "ternary": (1.0, 1.0),
    "halves": (0.5, 3.5),
    "positive": (0.0, 4.0),
    "large": (0.0, 40.0),
}
_TIED = ("coarse", "whole", "ternary", "halves")
_SMALL = 8  # integers of unknown use stay below this
LARGEST = 1 << 30  # bytes of one made-up input
_STEPS = 0.02, 0.1  # of quantizations: a byte reaches 2.5 to 12.7, which covers normal values
_ROUND = 4  # tries with one constant before the next is used


class InputMaker:
    """Makes samples for a graph; `plan` is how its dimensions hang together.

    Raises UsageError for unknown bindings and inputs without rank, GraphkitError for types that cannot be
    made up.
    """

    def __init__(self, graph: Graph, seed: int, bind: Mapping[str, int]) -> None:
        # Old models list initializers among their inputs; those need no value.
        names = [name for name in graph.inputs if name not in graph.initializers]
        self.seed = seed
        self.dtypes = {name: _numpy_dtype(graph, name) for name in names}
        self.hints = {name: hints_for(graph, name) for name in names}
        floats = frozenset(name for name, dtype in self.dtypes.items() if _is_float(dtype))
        fixed = {name: dict(hints.sizes) for name, hints in self.hints.items()}
        self.plan = plan_shapes(graph, names, bind, fixed, floats)
        # Which of equal scores is picked first is nobody's promise but the standard's; values without ties then.
        choosing = ("TopK", "NonMaxSuppression")
        ties = not any(inner.by_op(op) for inner in graph.walk() for op in choosing)
        self.palettes = tuple(name for name in PALETTES if ties or name not in _TIED)

    def make(self, profile: Profile, variant: int, *, attempt: int = 0, palette: str = "") -> dict[str, Array]:
        """One sample. `variant` counts accepted samples: odd ones mask a tail, even ones nothing.

        `attempt` moves on to other constants where the model compares an input with several. `palette` is one of
        PALETTES: unlikely values instead of normally distributed ones.
        """
        # Where sizes and bounds are drawn from a few numbers, each attempt must draw others.
        rng = np.random.default_rng([self.seed, variant, attempt] if profile.below else [self.seed, variant])
        sizes = self.plan.sizes(profile)
        shapes = self.plan.shapes(sizes)
        self._check_size(shapes)
        sample = {}
        for name, dtype in self.dtypes.items():
            hints = self.hints[name]
            draw = _Draw(rng, name.lower(), shapes[name], dtype, hints, sizes, profile, variant, attempt, palette)
            sample[name] = draw.value()
        return sample

    def _check_size(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse samples that would take all memory before the model has its turn."""
        for name, dtype in self.dtypes.items():
            size = math.prod(shapes[name]) * dtype.itemsize
            if size > LARGEST:
                text = "x".join(map(str, shapes[name]))
                raise UsageError(
                    f"a random input '{name}' of {text} would take {size / 1e9:.1f} GB",
                    hint="bind smaller sizes, pass --inputs, or --verify none",
                )


@dataclass(frozen=True)
class _Draw:
    """Draws the values of one input."""

    rng: np.random.Generator
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    hints: Hints
    sizes: Mapping[str, int]
    profile: Profile
    variant: int
    attempt: int
    palette: str

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape))

    def value(self) -> Array:
        """The array, of the input's dtype and shape."""
        if "mask" in self.name and self.shape:
            return self._mask().astype(self.dtype)
        if self.dtype == np.bool_:
            return self._bool()
        if _is_float(self.dtype):
            return self._float().astype(self.dtype)
        return self._integer().astype(self.dtype).reshape(self.shape)

    def _mask(self) -> Array:
        """Ones; in odd variants a tail of zeros that grows from row to row and spares the first half."""
        mask = np.ones(self.shape, np.int64)
        width = self.shape[-1]
        if self.variant % 2 == 0 or width < 2:
            return mask
        rows = mask.reshape(-1, width)
        for number, row in enumerate(rows):
            row[width - 1 - number % max(1, width // 2) :] = 0
        return mask

    def _bool(self) -> Array:
        if self.palette:
            return self.rng.integers(0, 2, self.shape).astype(np.bool_)
        if not self.shape or self.count == 1:
            return np.full(self.shape, self.attempt % 2 == 0)
        return self._mask().astype(np.bool_)

    def _float(self) -> Array:
        if self.hints.step:
            return self.rng.uniform(*_STEPS, self.shape)
        if self.hints.share:
            return self.rng.uniform(0, 0.5 if self.count == 1 else 1, self.shape)
        if self.hints.scales:
            return np.asarray(self.rng.integers(2, 7, self.shape) / 2)
        if self.palette:
            values = self._from_palette()
            return np.asarray(np.where(values == 0, 1.0, values)) if self.hints.divisor and self.count == 1 else values
        if self.count == 1 and len(self.shape) < 2:
            return self.rng.uniform(0.5, 1.5, self.shape)
        return self.rng.standard_normal(self.shape)

    def _from_palette(self) -> Array:
        """Multiples of the palette's step up to its largest value; without a step, any number."""
        step, largest = PALETTES[self.palette]
        if step:
            count = round(largest / step)
            return self.rng.integers(-count, count + 1, self.shape) * step
        low = 0.0 if self.palette == "positive" else -largest
        return self.rng.uniform(low, largest, self.shape)

    def _integer(self) -> Array:
        values = self._any_integer()
        return np.asarray(np.where(values == 0, 1, values)) if self.hints.divisor else values

    def _any_integer(self) -> Array:
        limits = np.iinfo(self.dtype)
        if self.hints.bounds:
            return self._indices()
        if self.count == 1 and self.hints.constants:
            constants = self.hints.constants
            return np.full(self.shape, int(constants[self.attempt // _ROUND % len(constants)]))
        if "position" in self.name:
            return self._positions(None)
        if self.hints.flipped and self.shape:
            return self._mask()
        if limits.bits == 8:
            return self.rng.integers(limits.min, limits.max + 1, self.shape)
        if self.palette and self.hints.computed and limits.min < 0:
            return np.asarray(np.rint(self._from_palette() * (25 if self.palette == "large" else 2)))
        if self.profile.integers is not None:
            return np.full(self.shape, self.profile.integers)
        if self.profile.below is not None:
            return self.rng.integers(0, self.profile.below, self.shape)
        if "len" in self.name or "size" in self.name:
            return np.full(self.shape, self._length())
        return np.ones(self.shape, np.int64) if self.count == 1 else self.rng.integers(0, _SMALL, self.shape)

    def _indices(self) -> Array:
        """Values inside the smallest table they index, counting what is added to them before."""
        sizes = [
            (size if isinstance(size, int) else self.sizes.get(size, 1), offset)
            for size, offset in self.hints.bounds
            if size is not None
        ]
        high = max(1, min(size - offset for size, offset in sizes))
        low = max(0, *(-offset for _, offset in sizes))
        if "position" in self.name:
            return self._positions(high)
        if self.hints.distinct and self.count <= high:
            return self.rng.choice(high, self.count, replace=False)
        if self.palette and self.hints.wraps and np.iinfo(self.dtype).min < 0:
            return self.rng.integers(-high, high, self.shape)
        return self.rng.integers(min(low, high - 1), high, self.shape)

    def _positions(self, high: int | None) -> Array:
        """0, 1, 2, … along the last axis, wrapped at `high`."""
        width = self.shape[-1] if self.shape else 1
        row = np.arange(width) % high if high else np.arange(width)
        return np.broadcast_to(row, self.shape or (1,)).copy()

    def _length(self) -> int:
        """A length that no sequence of the sample is shorter than."""
        return min((size for key, size in self.sizes.items() if "batch" not in key), default=_SMALL)


def _numpy_dtype(graph: Graph, name: str) -> np.dtype[Any]:
    code = graph.dtype(name)
    if code == onnx.TensorProto.BFLOAT16:
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    kind: np.dtype[Any] | None = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code)) if code else None
    if kind is None or kind.kind not in "iufb":
        text = "no tensor" if code == 0 else onnx.TensorProto.DataType.Name(code).lower()
        raise GraphkitError(
            f"random values cannot be made for input '{name}' ({text})", hint="pass real inputs with --inputs"
        )
    return kind


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or "float" in dtype.name
