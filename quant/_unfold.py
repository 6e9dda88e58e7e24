"""What each output position of a convolution reads, as columns of a matrix (im2col).

Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks for Document Processing (2006). Rows run
over input channels of a group, then the kernel, as columns of `Layer.matrix` do: weights times these columns are the
convolution's output. A transposed convolution is a convolution of its input with zeros put in between.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Node

Array = npt.NDArray[Any]

_PIECE = 1 << 23  # float32 elements unfolded at once: 32 MB


@dataclass(frozen=True)
class Geometry:
    """Attributes of a Conv or ConvTranspose as ONNX defines them; `pads` is empty when `auto_pad` or
    `output_shape` decides."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    auto_pad: str
    groups: int
    transposed: bool
    output_padding: tuple[int, ...]
    output_shape: tuple[int, ...]

    @classmethod
    def of(cls, node: Node, kernel: tuple[int, ...]) -> Geometry:
        """The geometry of a node whose kernel has this shape."""
        ones, zeros = [1] * len(kernel), [0] * len(kernel)
        auto = node.attr("auto_pad", "NOTSET")
        return cls(
            kernel=kernel,
            strides=tuple(node.attr("strides") or ones),
            dilations=tuple(node.attr("dilations") or ones),
            pads=tuple(node.attr("pads") or zeros * 2) if auto == "NOTSET" else (),
            auto_pad=auto,
            groups=int(node.attr("group", 1)),
            transposed=node.op_type == "ConvTranspose",
            output_padding=tuple(node.attr("output_padding") or zeros),
            output_shape=tuple(node.attr("output_shape") or ())[-len(kernel) :],
        )

    @property
    def spans(self) -> list[int]:
        """Input positions that a kernel reaches over, axis by axis."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]


def unfold(x: Array, geometry: Geometry, piece: int = _PIECE) -> Iterator[Array]:
    """Columns for an input x [batch, channels, *sizes]: float32 [groups, channels / groups · kernel, positions].

    All output positions of all rows of the batch come once, in pieces of about `piece` elements.
    """
    axes = len(geometry.kernel)
    if not x.size:
        yield np.zeros((geometry.groups, x.shape[1] // geometry.groups * math.prod(geometry.kernel), 0), np.float32)
        return
    windows = _windows(np.asarray(x, np.float32), geometry)
    batch, channels, *out = windows.shape[: 2 + axes]
    taps = math.prod(geometry.kernel)
    step = max(1, piece // max(1, channels * taps * math.prod(out[1:])))
    order = (0, *range(1 + axes, 1 + 2 * axes), *range(1, 1 + axes))
    for row in range(batch):
        for start in range(0, out[0], step):
            part = windows[row, :, start : start + step].transpose(order)
            yield part.reshape(geometry.groups, channels // geometry.groups * taps, -1)


def _windows(x: Array, geometry: Geometry) -> Array:
    """A view [batch, channels, *output sizes, *kernel] of the padded input."""
    axes = tuple(range(2, x.ndim))
    strides = geometry.strides
    if geometry.transposed:
        borders = _transposed_borders(x.shape[2:], geometry)
        x, strides = _spread(x, strides), (1,) * len(axes)
    else:
        borders = _borders(x.shape[2:], geometry)
    x = _bordered(x, borders)
    view = np.lib.stride_tricks.sliding_window_view(x, tuple(geometry.spans), axis=axes)
    steps = tuple(slice(None, None, stride) for stride in strides)
    taps = tuple(slice(None, None, dilation) for dilation in geometry.dilations)
    view = view[(slice(None), slice(None), *steps, *taps)]
    return np.flip(view, tuple(range(-len(axes), 0))) if geometry.transposed else view


def _borders(sizes: tuple[int, ...], geometry: Geometry) -> list[tuple[int, int]]:
    """Zeros before and after each axis of a convolution's input."""
    count = len(sizes)
    if geometry.pads:
        return list(zip(geometry.pads[:count], geometry.pads[count:], strict=True))
    if geometry.auto_pad == "VALID":
        return [(0, 0)] * count
    totals = [
        max((math.ceil(size / stride) - 1) * stride + span - size, 0)
        for size, stride, span in zip(sizes, geometry.strides, geometry.spans, strict=True)
    ]
    return [_halves(total, geometry.auto_pad == "SAME_UPPER") for total in totals]


def _transposed_borders(sizes: tuple[int, ...], geometry: Geometry) -> list[tuple[int, int]]:
    """The same around the spread input of a transposed convolution; negative where it is cut."""
    pads = []
    for axis, (size, stride, span) in enumerate(zip(sizes, geometry.strides, geometry.spans, strict=True)):
        more = geometry.output_padding[axis]
        full = stride * (size - 1) + more + span
        if geometry.output_shape or geometry.auto_pad.startswith("SAME"):
            wanted = geometry.output_shape[axis] if geometry.output_shape else size * stride
            # onnxruntime, like ONNX's text, puts the odd one after the end for SAME_UPPER and before the start else.
            before, after = _halves(max(full - wanted, 0), geometry.auto_pad == "SAME_UPPER")
        elif geometry.pads:
            before, after = geometry.pads[axis], geometry.pads[axis + len(sizes)]
        else:
            before, after = 0, 0
        pads.append((span - 1 - before, span - 1 - after + more))
    return pads


def _halves(total: int, more_after: bool) -> tuple[int, int]:
    return (total // 2, total - total // 2) if more_after else (total - total // 2, total // 2)


def _spread(x: Array, strides: tuple[int, ...]) -> Array:
    """x with stride − 1 zeros between neighbours."""
    sizes = [max(0, (size - 1) * stride + 1) for size, stride in zip(x.shape[2:], strides, strict=True)]
    spread = np.zeros((*x.shape[:2], *sizes), np.float32)
    spread[(slice(None), slice(None), *(slice(None, None, stride) for stride in strides))] = x
    return spread


def _bordered(x: Array, borders: list[tuple[int, int]]) -> Array:
    """x with zeros around, or cut where a border is negative."""
    cut = tuple(
        slice(max(0, -before), size - max(0, -after))
        for size, (before, after) in zip(x.shape[2:], borders, strict=True)
    )
    x = x[(slice(None), slice(None), *cut)]
    wide = [(max(0, before), max(0, after)) for before, after in borders]
    return np.pad(x, [(0, 0), (0, 0), *wide]) if any(b or a for b, a in wide) else x
