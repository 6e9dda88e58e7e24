"""Transfer function of Slice: elements where bounds are numbers, sizes where they are symbolic."""

from __future__ import annotations

from graphkit._state import Element, State, of_array, to_array
from graphkit._symbols import Size, Symbols
from graphkit.node import Dim, Node

_FAR = 2**31 - 1  # exporters write "to the end" as this or a larger number


def slice_(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Slice, with bounds from attributes (before opset 10) or inputs."""
    source = ins[0]
    bounds = _bounds(node, ins)
    if source.shape is None or bounds is None:
        return (State(source.dtype, (None,) * len(source.shape) if source.shape is not None else None),)
    dims: list[Dim] = list(source.shape)
    slices: list[slice | None] = [slice(None)] * len(dims)
    for start, end, axis, step in bounds:
        if not isinstance(axis, int):
            return (State(source.dtype, (None,) * len(dims)),)
        dims[axis] = _length(symbols, source.shape[axis], start, end, step)
        slices[axis] = _python_slice(start, end, step)
    array = to_array(source)
    if array is not None and None not in slices:
        return (of_array(source.dtype, array[tuple(s for s in slices if s is not None)]),)
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


def _python_slice(start: Element, end: Element, step: Element) -> slice | None:
    """The Python slice with the same meaning, None when not all are numbers.

    A far negative end of a backward slice means 'through 0'.
    """
    if not (isinstance(start, int) and isinstance(end, int) and isinstance(step, int)):
        return None
    return slice(start, None if step < 0 and end <= -_FAR else end, step)


def _length(symbols: Symbols, dim: Dim, start: Element, end: Element, step: Element) -> Dim:
    if not isinstance(step, int) or step == 0 or start is None or end is None or dim is None:
        return None
    python = _python_slice(start, end, step)
    if isinstance(dim, int) and python is not None:
        return len(range(*python.indices(dim)))
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
