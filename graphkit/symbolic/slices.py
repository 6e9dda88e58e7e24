"""Transfer function of Slice: elements where bounds are numbers, sizes where they are symbolic."""

from __future__ import annotations

from graphkit.node import Dim, Node
from graphkit.symbolic.state import Element, State, numbers, of_array, to_array
from graphkit.symbolic.symbols import Size, Symbols

_FAR = 2**31 - 1  # exporters write "to the end" as this or a larger number


def slice_(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Slice, with bounds from attributes (before opset 10) or inputs."""
    source = ins[0]
    bounds = _bounds(node, ins)
    if source.shape is None or bounds is None:
        return (State(source.dtype, (None,) * len(source.shape) if source.shape is not None else None),)
    dims: list[Dim] = list(source.shape)
    array = to_array(source)
    for start, end, axis, step in bounds:
        if not isinstance(axis, int):
            return (State(source.dtype, (None,) * len(dims)),)
        picked = _picked(source.shape[axis], start, end, step)
        dims[axis] = _length(symbols, source.shape[axis], start, end, step) if picked is None else len(picked)
        array = array.take(list(picked), axis=axis) if array is not None and picked is not None else None
    if array is not None:
        return (of_array(source.dtype, array),)
    return (State(source.dtype, tuple(dims)),)


def _bounds(node: Node, ins: list[State]) -> list[tuple[Element, Element, Element, Element]] | None:
    """(start, end, axis, step) of each sliced axis, None when not even their number is known."""
    if node.attr("starts") is not None:
        starts, ends, axes = (node.attr(name) for name in ("starts", "ends", "axes"))
        steps = None
    else:
        starts, ends = ins[1].items, ins[2].items
        axes, steps = (ins[i].items if len(ins) > i and node.inputs[i] else () for i in (3, 4))
        if axes is None or steps is None:
            return None
    if starts is None or ends is None:
        return None
    axes = axes or range(len(starts))
    return list(zip(starts, ends, axes, steps or [1] * len(starts), strict=True))


def _picked(dim: Dim, start: Element, end: Element, step: Element) -> range | None:
    """The indices that a Slice takes, None when not all is numbers or the step is 0.

    Bounds are clamped as the operator's text says, which is not quite what Python does for negative steps.
    """
    found = numbers((dim, start, end, step))
    if found is None or found[3] == 0:
        return None
    dim, start, end, step = found
    start, end = (bound + dim if bound < 0 else bound for bound in (start, end))
    if step > 0:
        return range(min(max(start, 0), dim), min(max(end, 0), dim), step)
    return range(min(max(start, 0), dim - 1), min(max(end, -1), dim - 1), step) if dim else range(0)


def _length(symbols: Symbols, dim: Dim, start: Element, end: Element, step: Element) -> Dim:
    if not isinstance(step, int) or step == 0 or start is None or end is None or dim is None:
        return None
    if step == -1 and start == -1 and isinstance(end, int) and end <= -_FAR:
        return dim
    last = _position(symbols, dim, end)
    # A start at or behind the end gives 0 elements, so it need not be clamped to the axis.
    first = start if symbols.nonnegative(start) else _position(symbols, dim, start)
    if step != 1 or first is None or last is None:
        return None
    return symbols.maximum(symbols.sub(last, first), 0)


def _position(symbols: Symbols, dim: Size, bound: Size) -> Size | None:
    """A bound of a forward slice counted from the start and clamped to the axis."""
    if isinstance(bound, int):
        if bound >= _FAR:
            return dim
        if bound <= -_FAR:
            return 0
        return symbols.minimum(bound, dim) if bound >= 0 else symbols.maximum(symbols.add(dim, bound), 0)
    return symbols.minimum(bound, dim) if symbols.nonnegative(bound) else None
