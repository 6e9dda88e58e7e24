"""Transfer functions of operators that move elements or whose result's shape depends on elements.

Semantics as in ONNX's docs/Operators.md. A function answers None when ONNX's own inference knows as much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.node import Dim, Node
from graphkit.symbolic import values
from graphkit.symbolic.slices import slice_
from graphkit.symbolic.state import ITEM_TYPES, MAX_ITEMS, Items, State, of_array, scalar, to_array, vector
from graphkit.symbolic.symbols import Size, Symbols
from graphkit.symbolic.values import Transfer, broadcast


def _axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def _axes(node: Node, ins: list[State], index: int = 1) -> list[int] | None:
    """Axes from an attribute (older opsets) or an input."""
    axes = node.attr("axes")
    if axes is not None or len(ins) <= index:
        return axes  # type: ignore[no-any-return]
    return ins[index].ints()


def _sizes(symbols: Symbols, items: Items | None) -> tuple[Dim, ...] | None:
    """Elements as a shape; those that might be negative are unknown."""
    if items is None:
        return None
    return tuple(item if item is not None and symbols.nonnegative(item) else None for item in items)


def shape(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Shape, with `start` and `end`."""
    dims = ins[0].shape
    if dims is None:
        return None
    start, end = node.attr("start", 0), node.attr("end")
    return (vector(dims[slice(start, end)]),)


def size(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Size: the product of all dimensions."""
    dims = ins[0].shape
    return (scalar(None if dims is None else _product(symbols, dims)),)


def constant_of_shape(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """ConstantOfShape."""
    value = node.attr("value")
    dtype = value.data_type if value is not None else TensorProto.FLOAT
    dims = _sizes(symbols, ins[0].items)
    if dims is None:
        rank = ins[0].shape[0] if ins[0].shape else None
        return (State(dtype, (None,) * rank if isinstance(rank, int) else None),)
    state = State(dtype, dims)
    sizes = state.sizes()
    count = MAX_ITEMS + 1 if sizes is None else math.prod(sizes)
    if dtype not in ITEM_TYPES or count > MAX_ITEMS:
        return (state,)
    item = int(onnx.numpy_helper.to_array(value).reshape(-1)[0])
    return (state._replace(items=(item,) * count),)


def reshape(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Reshape with a target that is known in part."""
    source, target = ins[0], ins[1]
    if target.items is None:
        rank = target.shape[0] if target.shape else None
        return (State(source.dtype, (None,) * rank if isinstance(rank, int) else None),)
    dims: list[Dim] = []
    for index, item in enumerate(target.items):
        if item == 0 and not node.attr("allowzero", 0):
            item = source.shape[index] if source.shape is not None and index < len(source.shape) else None
        dims.append(item if item == -1 or (item is not None and symbols.nonnegative(item)) else None)
    _fill_rest(dims, source.shape, symbols)
    return (_same_items(source, tuple(dims)),)


def _fill_rest(dims: list[Dim], source: Sequence[Dim] | None, symbols: Symbols) -> None:
    """Replace a −1 by total / product of the others; so too a sole unknown size, if the others are not 0."""
    gaps = [index for index, dim in enumerate(dims) if dim is None or dim == -1]
    if not gaps:
        return
    filled: Dim = None
    total = _product(symbols, source) if source is not None else None
    if len(gaps) == 1 and total is not None:
        rest = symbols.product([dim for index, dim in enumerate(dims) if index != gaps[0] and dim is not None])
        if dims[gaps[0]] == -1 or symbols.positive(rest):
            filled = symbols.div(total, rest)
    for index in gaps:
        dims[index] = filled


def _same_items(source: State, dims: tuple[Dim, ...]) -> State:
    """The same elements under another shape."""
    state = State(source.dtype, dims)
    sizes = state.sizes()
    if source.items is None or sizes is None or math.prod(sizes) != len(source.items):
        return state
    return state._replace(items=source.items)


def flatten(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Flatten."""
    dims = ins[0].shape
    if dims is None:
        return None
    axis = _axis(node.attr("axis", 1), len(dims))
    return (_same_items(ins[0], (_product(symbols, dims[:axis]), _product(symbols, dims[axis:]))),)


def _product(symbols: Symbols, dims: Sequence[Dim]) -> Dim:
    known = [dim for dim in dims if dim is not None]
    return symbols.product(known) if len(known) == len(dims) else None


def expand(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Expand: two-way broadcasting."""
    source, target = ins[0], ins[1]
    if target.items is None:
        return None
    dims = broadcast(symbols, source.shape, _sizes(symbols, target.items))
    state = State(source.dtype, dims)
    array, sizes = to_array(source), state.sizes()
    if array is None or sizes is None or math.prod(sizes) > MAX_ITEMS:
        return (state,)
    return (of_array(source.dtype, np.broadcast_to(array, sizes)),)


def range_(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Range of integers."""
    dtype = ins[0].dtype
    bounds = [state.items[0] if state.items and len(state.items) == 1 else None for state in ins]
    start, limit, delta = bounds
    if start is None or limit is None or not isinstance(delta, int) or delta == 0:
        return (State(dtype, (None,)),)
    if isinstance(start, int) and isinstance(limit, int):
        values = range(start, limit, delta)
        return (vector(values, dtype) if len(values) <= MAX_ITEMS else State(dtype, (len(values),)),)
    if abs(delta) != 1:
        return (State(dtype, (None,)),)
    length = symbols.sub(limit, start) if delta == 1 else symbols.sub(start, limit)
    return (State(dtype, (symbols.maximum(length, 0),)),)


def tile(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Tile."""
    dims, repeats = ins[0].shape, ins[1].items
    if dims is None or repeats is None or len(dims) != len(repeats):
        return None
    out: list[Dim] = []
    for dim, times in zip(dims, repeats, strict=True):
        out.append(None if dim is None or times is None else symbols.mul(dim, times))
    state = State(ins[0].dtype, tuple(out))
    array, counts, sizes = to_array(ins[0]), ins[1].ints(), state.sizes()
    if array is None or counts is None or sizes is None or math.prod(sizes) > MAX_ITEMS:
        return (state,)
    return (of_array(ins[0].dtype, np.tile(array, counts)),)


def concat(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Concat: sizes along the axis add up, the other axes agree."""
    dtype = next((state.dtype for state in ins if state.dtype), 0)
    shapes = [state.shape for state in ins if state.shape is not None]
    if not shapes:
        return (State(dtype, None),)
    rank = len(shapes[0])
    axis = node.attr("axis")
    if axis is None or any(len(dims) != rank for dims in shapes) or not -rank <= axis < rank:
        return None
    axis = _axis(axis, rank)
    out = [_agreed([dims[index] for dims in shapes]) for index in range(rank)]
    along = [state.shape[axis] if state.shape is not None else None for state in ins]
    out[axis] = None if None in along else _sum(symbols, [dim for dim in along if dim is not None])
    arrays = [to_array(state) for state in ins]
    if dtype in ITEM_TYPES and all(array is not None for array in arrays):
        return (of_array(dtype, np.concatenate([a for a in arrays if a is not None], axis=axis)),)
    return (State(dtype, tuple(out)),)


def _agreed(dims: list[Dim]) -> Dim:
    """One size for axes that must be equal: a number if any knows it."""
    numbers = [dim for dim in dims if isinstance(dim, int)]
    return numbers[0] if numbers else next((dim for dim in dims if dim is not None), None)


def _sum(symbols: Symbols, dims: Sequence[Size]) -> Size:
    total: Size = 0
    for dim in dims:
        total = symbols.add(total, dim)
    return total


def gather(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Gather."""
    data, indices = ins[0], ins[1]
    if data.shape is None or indices.shape is None:
        return (State(data.dtype, None),)
    axis = _axis(node.attr("axis", 0), len(data.shape))
    state = State(data.dtype, data.shape[:axis] + indices.shape + data.shape[axis + 1 :])
    array, where, picked = to_array(data), indices.ints(), indices.sizes()
    if array is None or where is None or picked is None:
        return (state,)
    if any(not -array.shape[axis] <= index < array.shape[axis] for index in where):
        return (state,)
    taken = np.take(array, np.array(where, dtype=np.int64).reshape(-1), axis=axis)
    return (of_array(data.dtype, taken.reshape((*array.shape[:axis], *picked, *array.shape[axis + 1 :]))),)


def unsqueeze(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Unsqueeze."""
    dims, axes = ins[0].shape, _axes(node, ins)
    if dims is None or axes is None:
        return None
    rank = len(dims) + len(axes)
    ones = {_axis(axis, rank) for axis in axes}
    if len(ones) < len(axes) or not all(0 <= axis < rank for axis in ones):
        return None  # an invalid node
    rest = iter(dims)
    return (_same_items(ins[0], tuple(1 if i in ones else next(rest) for i in range(rank))),)


def squeeze(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Squeeze; without axes only where all sizes are numbers."""
    dims, axes = ins[0].shape, _axes(node, ins)
    if dims is None:
        return None
    if axes is None:
        if ins[0].sizes() is None or node.input(1):
            return (State(ins[0].dtype, None),)
        axes = [index for index, dim in enumerate(dims) if dim == 1]
    gone = {_axis(axis, len(dims)) for axis in axes}
    return (_same_items(ins[0], tuple(dim for i, dim in enumerate(dims) if i not in gone)),)


def transpose(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Transpose."""
    dims = ins[0].shape
    if dims is None:
        return None
    perm = node.attr("perm") or list(reversed(range(len(dims))))
    if sorted(perm) != list(range(len(dims))):
        return None
    array = to_array(ins[0])
    if array is not None:
        return (of_array(ins[0].dtype, array.transpose(perm)),)
    return (State(ins[0].dtype, tuple(dims[axis] for axis in perm)),)


def _table() -> dict[str, Transfer]:
    functions: dict[str, Transfer] = dict.fromkeys(values.SAME_AS_INPUT, values.same_as_input)
    functions |= dict.fromkeys(values.ARITHMETIC, values.arithmetic)
    functions |= dict.fromkeys(values.COMPARISON, values.comparison)
    functions |= dict.fromkeys(("Neg", "Not", "Identity", "Abs"), values.unary)
    functions |= dict.fromkeys(("ReduceProd", "ReduceSum", "ReduceMin", "ReduceMax"), values.reduction)
    moving: dict[str, Callable[..., tuple[State, ...] | None]] = {
        "Where": values.where, "Cast": values.cast, "CastLike": values.cast, "Shape": shape, "Size": size,
        "ConstantOfShape": constant_of_shape, "Reshape": reshape, "Flatten": flatten, "Expand": expand,
        "Range": range_, "Tile": tile, "Concat": concat, "Gather": gather, "Slice": slice_,
        "Unsqueeze": unsqueeze, "Squeeze": squeeze, "Transpose": transpose,
    }  # fmt: skip
    return functions | moving


TRANSFER = _table()
