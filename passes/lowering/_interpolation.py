"""How Resize reads one axis: for every result the elements it takes and their weights.

Computed as ONNX Operators, Resize 19, writes it, in float32 as onnxruntime does (which decides ties of the nearest
modes). All arrays have one row per result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

_TIE = 1e-6  # what float32 loses of a position; a tie must stay one
Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """One axis: its sizes, the scale as it was given, and its part of the region of interest (start, end)."""

    size: int
    result: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Kernel:
    """The attributes of Resize that say how elements are mixed."""

    mode: str
    nearest: str
    cubic_a: float
    antialias: bool
    exclude_outside: bool


@dataclass(frozen=True)
class Taps:
    """Elements taken (`places`, within the axis) and their `weights`, both [results, taps]."""

    places: Ints
    weights: Floats


def positions(axis: Axis, transformation: str) -> Floats:
    """Where each result lies on the axis."""
    x, scale = np.arange(axis.result, dtype=np.float32), np.float32(axis.scale)
    one, half = axis.result == 1, np.float32(0.5)
    if transformation == "asymmetric":
        return x / scale
    if transformation == "align_corners":
        return x * 0 if one else x * np.float32(axis.size - 1) / np.float32(axis.result - 1)
    if transformation == "tf_crop_and_resize":
        return _cropped(axis, x)
    if transformation == "pytorch_half_pixel" and one:
        return x * 0
    offset = np.float32(0)
    if transformation == "half_pixel_symmetric":
        adjustment = np.float32(axis.result) / (scale * np.float32(axis.size))
        offset = np.float32(axis.size / 2) * (np.float32(1) - adjustment)
    return offset + (x + half) / scale - half


def _cropped(axis: Axis, x: Floats) -> Floats:
    start, end, last = np.float32(axis.roi[0]), np.float32(axis.roi[1]), np.float32(axis.size - 1)
    if axis.result == 1:
        return x * 0 + np.float32(0.5) * (start + end) * last
    return start * last + x * (end - start) * last / np.float32(axis.result - 1)


def nearest(axis: Axis, at: Floats, kind: str) -> Ints:
    """The one element that each result takes. `simple` is what Resize did at opset 10."""
    if kind == "simple":
        kind = "ceil" if axis.scale < 1 else "floor"
    exact = at.astype(np.float64)
    rounded = {
        "floor": np.floor(at),
        "ceil": np.ceil(at),
        "round_prefer_floor": np.ceil(exact - 0.5),
        "round_prefer_ceil": np.floor(exact + 0.5 + _TIE),
    }[kind]
    return np.asarray(np.clip(rounded, 0, axis.size - 1), np.int64)


def undecided(at: Floats, kind: str, transformation: str) -> bool:
    """True when onnxruntime's float32 falls on the other side of a whole number than the standard."""
    near = np.abs(at - np.round(at)) < 1e-5 * np.maximum(1, np.abs(at))
    return transformation == "half_pixel_symmetric" and kind == "floor" and bool((near & (at > 0.5)).any())


def taps(axis: Axis, at: Floats, kernel: Kernel) -> Taps:
    """Elements and weights of the linear and cubic modes."""
    base = np.floor(at)
    shrink = min(axis.scale, 1.0) if kernel.antialias else 1.0
    reach = 1 if kernel.mode == "linear" else 2
    first = math.floor(-reach / shrink) + 1
    steps = np.arange(first, 2 - first)
    distance = (steps[None, :] - (at - base)[:, None].astype(np.float64)) * shrink
    weights = _tent(distance) if kernel.mode == "linear" else _cubic(distance, kernel.cubic_a)
    places = base.astype(np.int64)[:, None] + steps[None, :]
    if kernel.exclude_outside:
        weights = np.where((places >= 0) & (places < axis.size), weights, 0)
    if kernel.exclude_outside or kernel.antialias:
        weights = weights / weights.sum(-1, keepdims=True)
    return Taps(np.clip(places, 0, axis.size - 1), weights.astype(np.float32))


def _tent(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(np.clip(1 - np.abs(x), 0, 1))


def _cubic(x: npt.NDArray[Any], a: float) -> npt.NDArray[Any]:
    x = np.abs(x)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))


def matrix(found: Taps, size: int) -> Floats:
    """The taps as a matrix [results, size]."""
    full = np.zeros((len(found.places), size))
    np.add.at(full, (np.arange(len(full))[:, None], found.places), found.weights)
    return full.astype(np.float32)
