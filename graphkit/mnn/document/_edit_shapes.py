"""Do given arrays fit: shapes that an operator's weights may come in, and types that hold all their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.errors import UsageError
from graphkit.mnn.document.tree import Array, Table


def convolution_shape(op: Table, name: str, where: str) -> list[tuple[int, ...]]:
    """Shapes of a convolution's weights or bias, the full one first."""
    common = op["main"]["common"]
    if not isinstance(common, Table):
        raise UsageError(f"{where} has no main.common to say which shape its weights have")
    outputs, inputs = int(common["outputCount"]), int(common["inputCount"])
    group, kernel = max(1, int(common["group"])), (int(common["kernelY"]), int(common["kernelX"]))
    if name == "bias":
        return [(outputs,)]
    held = op["main"].fields.get("weight")
    area = kernel[0] * kernel[1]
    if not inputs and held is not None and outputs and area:
        inputs = held.size * group // (outputs * area)
    if not inputs:
        raise UsageError(
            f"{where} does not say how many channels it reads", hint=f"set {where}.main.common.inputCount first"
        )
    full = (outputs, inputs // group, *kernel)
    if op.label("type") == "Deconvolution":
        full = (inputs, outputs // group, *kernel)
    return _shorter(full)


def _shorter(full: tuple[int, ...]) -> list[tuple[int, ...]]:
    """A shape, and what it is without kernel dims of 1 (Conv1D, fully connected layers)."""
    *channels, high, wide = full
    found = [full]
    found += [(*channels, high)] if wide == 1 else []
    found += [(*channels, wide)] if high == 1 else []
    found += [tuple(channels)] if high == wide == 1 else []
    return found


def check_shape(place: str, array: Array, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise UsageError unless an array has one of these shapes, or all their numbers in one dim."""
    count = int(np.prod(shapes[0], dtype=np.int64))
    if array.shape in shapes or array.shape == (count,):
        return
    given = _text(array.shape)
    hint = "a flat array of that many numbers will do too"
    if array.ndim > 1 and (*array.shape[1::-1], *array.shape[2:]) in shapes:
        hint = "its first two dims are swapped: transpose it"
    raise UsageError(f"{place} has the shape {_text(shapes[0])} ({count:,} numbers), the array {given}", hint=hint)


def _text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def floats(array: Array, place: str) -> Array:
    """An array of real numbers. Raises UsageError for another kind."""
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{place} takes numbers, and the array is of type {array.dtype}")
    return array


def narrowed(array: Array, dtype: str, place: str) -> Array:
    """The numbers in one dim and another type, little-endian. Raises UsageError when some do not fit.

    Floats are rounded to the nearest that the type has; integers must be exact.
    """
    if array.dtype.kind not in "fiub":
        raise UsageError(f"{place} takes numbers, and the array is of type {array.dtype}")
    target = np.dtype(dtype)
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(flat.astype(target))
    if flat.size and (lost := _lost(flat, result)) is not None:
        raise UsageError(f"{place} is stored as {target.name}, which cannot hold {lost}")
    return result


def _lost(flat: Array, result: Array) -> object:
    """The first number that another type does not hold, None when it holds all."""
    if result.dtype.kind == "f":
        lost = np.isinf(result) & ~np.isinf(flat)
        return flat[int(np.argmax(lost))] if lost.any() else None
    limits = np.iinfo(result.dtype)
    if flat.dtype.kind == "f":
        lost = ~((flat == np.trunc(flat)) & (flat >= float(limits.min)) & (flat < float(limits.max) + 1))
        return flat[int(np.argmax(lost))] if lost.any() else None
    extremes = (int(flat.min()), int(flat.max()))
    return next((number for number in extremes if not limits.min <= number <= limits.max), None)
