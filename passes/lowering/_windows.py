"""Sliding windows: what the attributes of a pool say about each axis, and folding windows out of slices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._tools import pad_amounts


def lowest(dtype: int) -> float:
    """What a padded place holds for a maximum: the least number of the element type (float32 in MNN, else float16)."""
    return float(np.finfo(np.float16 if dtype == TensorProto.FLOAT16 else np.float32).min)


@dataclass(frozen=True)
class Window:
    """The window along one axis. `length` and `results` are None when the axis has no known size."""

    size: int
    stride: int
    dilation: int
    begin: int
    end: int
    ceil: bool
    length: int | None
    results: int | None

    @property
    def reach(self) -> int:
        """Elements from the first tap to the last, both included."""
        return (self.size - 1) * self.dilation + 1

    @property
    def late(self) -> bool:
        """True when rounding up gives a last window that starts behind the elements, which does not count."""
        if not self.ceil or self.length is None or self.results is None:
            return False
        padded = self.length + self.begin + self.end - self.reach
        return -(-padded // self.stride) + 1 > self.results


def geometry(graph: Graph, node: Node) -> list[Window] | str:
    """The windows of a pool's spatial axes, or what is not known."""
    shape, sizes = graph.shape(node.inputs[0]), node.attr("kernel_shape")
    if shape is None or sizes is None:
        return "the rank of its input is not known"
    count = len(sizes)
    strides, dilations = node.attr("strides", [1] * count), node.attr("dilations", [1] * count)
    pads, mode = node.attr("pads", [0] * (2 * count)), node.attr("auto_pad", "NOTSET")
    ceil, windows = bool(node.attr("ceil_mode", 0)), []
    given = ((strides, count), (dilations, count), (pads, 2 * count))
    if len(shape) != count + 2 or any(len(numbers) != wanted for numbers, wanted in given) or min(strides) < 1:
        return f"kernel_shape {list(sizes)}, strides {list(strides)} and pads do not fit {len(shape)} axes"
    for axis, size in enumerate(sizes):
        length = shape[axis + 2]
        known = length if isinstance(length, int) else None
        begin, end = (0, 0) if mode == "VALID" else (pads[axis], pads[axis + count])
        if mode.startswith("SAME"):
            if known is None:
                return "auto_pad needs sizes that are not known"
            begin, end = _same(known, (size - 1) * dilations[axis] + 1, strides[axis], mode == "SAME_UPPER")
        if ceil and known is None:
            return "ceil_mode needs sizes that are not known"
        base = (size, strides[axis], dilations[axis], begin, end, ceil and not mode.startswith("SAME"), known)
        windows.append(Window(*base, None if known is None else _results(Window(*base, None))))
    return windows


def _same(length: int, reach: int, stride: int, upper: bool) -> tuple[int, int]:
    total = max((-(-length // stride) - 1) * stride + reach - length, 0)
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)


def _results(window: Window) -> int:
    """Number of windows; one that starts in the padding at the end does not count."""
    length = window.length or 0
    room = length + window.begin + window.end - window.reach
    count = (-(-room // window.stride) if window.ceil else room // window.stride) + 1
    if window.ceil and (count - 1) * window.stride >= length + window.begin:
        count -= 1
    return count


def fold(build: Emit, x: str, windows: list[Window], joiner: str, fill: float) -> str:
    """Join the elements of each window by Max or Add, axis after axis; what is outside is `fill`."""
    begins, ends = [0, 0], [0, 0]
    for window in windows:
        begins.append(window.begin)
        ends.append(max(_behind(window), 0))
    name = build.number(fill, build.graph.dtype(x) or TensorProto.FLOAT) if fill and build.opset >= 11 else ""
    value = pad_amounts(build, x, begins, ends, name, fill)
    for axis, window in enumerate(windows, 2):
        taps = [_tap(build, value, axis, window, tap) for tap in range(window.size)]
        value = taps[0]
        for tap in taps[1:]:
            value = build.op(joiner, value, tap)
    return value


def _behind(window: Window) -> int:
    """Elements that the last window needs behind the axis."""
    if window.results is None or window.length is None:
        return window.end
    return (window.results - 1) * window.stride + window.reach - window.length - window.begin


def _tap(build: Emit, x: str, axis: int, window: Window, tap: int) -> str:
    """The elements at one place of all windows."""
    start = tap * window.dilation
    if window.results is not None:
        end: int | None = start + (window.results - 1) * window.stride + 1
    else:
        end = start - window.reach + 1 or None
    return build.slice(x, axis, start, end, window.stride)


def counts(windows: list[Window], padding: bool) -> npt.NDArray[np.float32] | None:
    """Elements that each average is over; None when they depend on sizes that are not known."""
    total = np.ones([1] * len(windows), np.float32)
    for axis, window in enumerate(windows):
        if window.length is None or window.results is None:
            if window.begin or window.end:
                return None
            per = np.array([window.size])
        else:
            low, high = (-window.begin, window.length + window.end) if padding else (0, window.length)
            at = np.arange(window.results)[:, None] * window.stride - window.begin
            at = at + np.arange(window.size) * window.dilation
            per = ((at >= low) & (at < high)).sum(-1)
        total = total * per.reshape([-1 if i == axis else 1 for i in range(len(windows))]).astype(np.float32)
    return total
