"""What an attention may not see: causal frontiers, windows, masks and biases as one value to add to the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.passes._emit import Emit

if TYPE_CHECKING:
    from graphkit.passes.attention.form import Attention

_DEPTH = 8  # how many nodes back a proof may go
_KEEPS = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Transpose", "Slice", "Identity", "Gather", "Flatten"})
_NOT_FLOAT = frozenset({TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64})
NEEDS_RANGE = 11  # the opset of Range, which counts positions of unknown number


@dataclass(frozen=True)
class Hidden:
    """`value` is added to the scores ("": nothing is masked); `seen` (bool) is True for queries that see any key.

    Both broadcast to [batch, heads, sq, sk]; `seen` is "" when there is no such query or nobody asks.
    """

    value: str = ""
    seen: str = ""


LOWEST: dict[int, float] = {
    TensorProto.FLOAT: -3.4028234663852886e38,
    TensorProto.DOUBLE: -1.7976931348623157e308,
    TensorProto.FLOAT16: -65504.0,
    TensorProto.BFLOAT16: -3.3895313892515355e38,
}  # the lowest finite number of each element type


def additive(build: Emit, form: Attention) -> Hidden:
    """All that is masked in one value, and which queries see anything."""
    grid = _grid(form)
    keeps = [] if grid is None else ([] if grid.all() else [grid])
    dynamic = [form.keep] if form.keep else []
    if grid is None and is_positional(form):
        dynamic += _positions(build, form)
    if not keeps and not dynamic and not form.bias:
        return Hidden()
    masked = _masked(form)
    if not dynamic and not form.bias:
        return _constant(build, form, keeps[0], masked)
    dynamic += [build.const(grid, "visible") for grid in keeps]
    value = form.bias
    if dynamic:
        keep = dynamic[0]
        for other in dynamic[1:]:
            keep = build.op("And", keep, other)
        zero = form.bias or build.number(0, form.dtype)
        value = build.op("Where", keep, zero, build.number(masked, form.dtype))
    return Hidden(value, "" if _is_sure(build, form) else _seen(build, form, value, masked))


def _is_sure(build: Emit, form: Attention) -> bool:
    """True when nobody asks which queries see no key, or when each sees the first one."""
    first = known_offset(form)
    by_position = form.causal and form.window[0] < 0 and first is not None and first >= 0
    if form.empty == "computed" or (by_position and not form.keep and not form.bias):
        return True
    return _see_something(build, form)


def _see_something(build: Emit, form: Attention) -> bool:
    """True when masks and positions are constants that leave each query a key."""
    parts: list[npt.NDArray[np.bool_] | None] = [_grid(form)] if is_positional(form) else []
    for value in filter(None, (form.keep, form.bias)):
        array = build.constants[value] if value in build.constants else build.graph.constant(value)
        parts.append(None if array is None else array if array.dtype == np.bool_ else ~np.isneginf(array))
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return False
    try:
        seen = np.logical_and.reduce(np.broadcast_arrays(*known))
    except ValueError:  # a broken model; whoever runs it will say so
        return False
    return bool(seen.any(axis=-1).all())


def _masked(form: Attention) -> float:
    """What is added for a key that may not be seen; only −inf is told from what a bias may hold."""
    if form.masked is not None:
        return form.masked
    return -np.inf if form.bias and form.empty == "zeros" else LOWEST[form.dtype]


def _seen(build: Emit, form: Attention, value: str, masked: float) -> str:
    """Which queries see any key: the highest value of their row is more than what masks."""
    top = build.reduce("ReduceMax", value, [-1])
    if form.bias:
        return build.op("Not", build.op("Greater", build.number(LOWEST[form.dtype], form.dtype), top))
    return build.op("Greater", top, build.number(masked, form.dtype))


def _constant(build: Emit, form: Attention, grid: npt.NDArray[np.bool_], masked: float) -> Hidden:
    """A mask known now: [sq, sk]."""
    kind = onnx.helper.tensor_dtype_to_np_dtype(form.dtype)
    value = build.const(np.where(grid, 0.0, masked).astype(kind), "mask")
    rows = grid.any(axis=1, keepdims=True)
    sure = form.empty == "computed" or rows.all()
    return Hidden(value, "" if sure else build.const(rows, "seen"))


def is_positional(form: Attention) -> bool:
    """True when what a query sees depends on where it stands."""
    return form.causal or form.window != (-1, -1)


def bounds(form: Attention) -> tuple[int, int]:
    """How many keys to the left and right of its own position a query sees; −1: all."""
    left, right = form.window
    return left, (0 if form.causal else right)


def _grid(form: Attention) -> npt.NDArray[np.bool_] | None:
    """What positions allow, [sq, sk], when it is known now; None: not known, or no position matters."""
    offset = known_offset(form)
    if not is_positional(form) or offset is None or form.sq is None or form.sk is None:
        return None
    return visible(form.sq, form.sk, offset, bounds(form))


def known_offset(form: Attention) -> int | None:
    """The position of the first query among the keys, when it is a number."""
    if form.align == "bottom-right":
        return form.sk - form.sq if form.sk is not None and form.sq is not None else None
    return form.offset if isinstance(form.offset, int) else None


def offset(build: Emit, form: Attention) -> str:
    """The position of the first query among the keys, an int64 value."""
    if form.align == "bottom-right":
        return build.op("Sub", length(build, form.key, form.sk), length(build, form.query, form.sq))
    return build.const(np.int64(form.offset)) if isinstance(form.offset, int) else form.offset


def visible(sq: int, sk: int, first: int, reach: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """True where query i sees key j: i + first − left ≤ j ≤ i + first + right; a bound of −1 is none."""
    ahead = np.arange(sk)[None, :] - np.arange(sq)[:, None] - first
    left, right = reach
    seen = np.ones((sq, sk), dtype=np.bool_)
    if right >= 0:
        seen &= ahead <= right
    if left >= 0:
        seen &= ahead >= -left
    return seen


def _positions(build: Emit, form: Attention) -> list[str]:
    """What positions allow, computed when the model runs: bool values [.., sq, sk]."""
    query = build.unsqueeze(_count(build, length(build, form.query, form.sq)), 1)
    if known_offset(form) != 0:
        query = build.op("Add", query, offset(build, form))
    key = keys(build, form)
    left, right = bounds(form)
    found = []
    if right >= 0:
        limit = build.op("Add", query, build.const(np.int64(right))) if right else query
        found.append(build.op("Not", build.op("Greater", key, limit)))
    if left >= 0:
        limit = build.op("Sub", query, build.const(np.int64(left))) if left else query
        found.append(build.op("Not", build.op("Greater", limit, key)))
    return found


def length(build: Emit, x: str, size: int | None) -> str:
    """The length of a sequence, axis 2, as an int64 scalar; `size` where it is known."""
    return build.const(np.int64(size)) if size is not None else build.squeeze(build.dim(x, 2), 0)


def keys(build: Emit, form: Attention) -> str:
    """The positions of the keys, int64 [sk]; needs opset 11 when sk is not known."""
    if form.sk is not None:
        return build.const(np.arange(form.sk, dtype=np.int64), "keys")
    return _count(build, length(build, form.key, None))


def _count(build: Emit, size: str) -> str:
    known = build.constants.get(size)
    if known is not None:
        return build.const(np.arange(int(known), dtype=np.int64), "positions")
    return build.op("Range", build.const(np.int64(0)), size, build.const(np.int64(1)))


def fill(build: Emit, value: str, rank: int, form: Attention, *, boolean: bool) -> str:
    """A mask (bool or float) that speaks of the first keys only, for all of them: the rest may not be seen."""
    missing = build.op("Sub", build.unsqueeze(length(build, form.key, form.sk), 0), build.dim(value, rank - 1))
    pads = build.op("Concat", build.ints(*[0] * (2 * rank - 1)), missing, axis=0)
    if not boolean:
        return build.op("Pad", value, pads, build.number(-np.inf, form.dtype))
    # MNN pads numbers, not booleans.
    padded = build.op("Pad", build.cast(value, TensorProto.FLOAT), pads, build.number(0))
    return build.op("Greater", padded, build.number(0))


def never_hides(graph: Graph, value: str, depth: int = _DEPTH) -> bool:
    """True when no element of a float value can be −∞ or NaN, as far as its nodes show within a few steps."""
    array = graph.constant(value)
    if array is not None:
        return bool(np.isfinite(array.astype(np.float64)).all())
    node = graph.producer(value)
    if node is None or depth == 0:
        return False
    if node.op == "Cast":
        return graph.dtype(node.inputs[0]) in _NOT_FLOAT
    if node.op == "Where":
        return all(never_hides(graph, source, depth - 1) for source in node.inputs[1:3])
    return node.op in _KEEPS and never_hides(graph, node.inputs[0], depth - 1)
