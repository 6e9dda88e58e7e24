"""What the readers of onnxruntime's attention operators share: refusals, projections, masks, caches.

Source of the meaning: onnxruntime's contrib operator documentation (docs/ContribOperators.md), and where that is
silent what its CPU kernels compute.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Dim, Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import form as forms
from graphkit.passes.attention import mask as masks
from graphkit.passes.attention.form import Attention, Stage
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Outcome, Refusal, Rule

FILL = -10000.0  # onnxruntime's default of mask_filter_value

Outputs = Mapping[str, str]


class NotPlainError(Exception):
    """Why a node cannot be written in plain operators; becomes a refusal."""


def require(condition: object, reason: str) -> None:
    """Raise NotPlainError with a reason unless a condition holds."""
    if not condition:
        raise NotPlainError(reason)


def split_rule(op: str, options: Options, read: Callable[[Emit, Node, Options], Outputs]) -> Rule:
    """A rule for an operator of com.microsoft; `read` emits its outputs or raises NotPlainError."""
    name = "contrib-" + re.sub("(?<=[a-z])(?=[A-Z])", "-", op).lower()

    def match(graph: Graph, node: Node) -> Outcome:
        """MNN has none of onnxruntime's attention operators."""
        build = Emit(graph, node)
        try:
            require(build.opset >= masks.NEEDS_RANGE, "positions are counted by Range, which needs opset 11")
            outputs = read(build, node, options)
        except NotPlainError as problem:
            return Refusal(name, node.label, str(problem))
        return build.rewrite(outputs, forms.described(op, build))

    return Rule(name, (f"com.microsoft::{op}",), match)


def outputs_of(build: Emit, node: Node, *values: str) -> Outputs:
    """The values that stand for the outputs of a node that somebody uses; "" for one that was not emitted."""
    pairs = zip(node.outputs, values, strict=False)
    return {name: value for name, value in pairs if name and value and build.graph.is_used(name)}


def used(build: Emit, node: Node, index: int) -> bool:
    """True when an output is there and somebody uses it."""
    return index < len(node.outputs) and bool(node.outputs[index]) and build.graph.is_used(node.outputs[index])


def dim(build: Emit, x: str, axis: int) -> Dim:
    """A dim of a value as far as it is known; None without a value."""
    shape = build.graph.shape(x) if x else None
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def number(build: Emit, x: str, axis: int, what: str) -> int:
    """A dim of a value that must be a number."""
    found = dim(build, x, axis)
    if not isinstance(found, int):
        raise NotPlainError(f"{what} is not known")
    return found


def float_type(build: Emit, *values: str) -> int:
    """The element type of the first value that has a known one."""
    found = next((kind for x in values if x and (kind := build.graph.dtype(x))), 0)
    require(found in (TensorProto.FLOAT, TensorProto.FLOAT16), "the element type is not known to be float or float16")
    return found


def heads_of(node: Node, name: str = "num_heads") -> int:
    """A number of heads, which the operators require."""
    heads = node.attr(name, 0)
    require(heads > 0, f"{name} is missing")
    return int(heads)


def divided(size: int, heads: int, what: str) -> int:
    """Size of one head."""
    require(size % heads == 0 and size > 0, f"{what} is {size}, which {heads} heads do not divide")
    return size // heads


def scale_of(node: Node, size: int) -> float:
    """The attribute scale, by default (and when it is 0) 1/√(head size)."""
    return float(node.attr("scale", 0.0)) or 1 / math.sqrt(size)


def total_of(*parts: Dim) -> int | None:
    """A sum of sizes, None unless all are numbers."""
    found = [part for part in parts if isinstance(part, int)]
    return sum(found) if len(found) == len(parts) else None


def length(build: Emit, x: str, axis: int = 2) -> str:
    """Size of an axis as an int64 scalar: a constant when it is known."""
    size = dim(build, x, axis)
    return build.const(np.int64(size)) if isinstance(size, int) else build.squeeze(build.dim(x, axis), 0)


def counted(build: Emit, size: str | int) -> str:
    """0, 1, … below a number or an int64 scalar."""
    if isinstance(size, int):
        return build.const(np.arange(size, dtype=np.int64))
    return build.op("Range", build.const(np.int64(0)), size, build.const(np.int64(1)))


def scalar(build: Emit, x: str) -> str:
    """An integer tensor of one element as an int64 scalar."""
    return build.op("Reshape", build.cast(x, TensorProto.INT64), build.const(np.zeros(0, dtype=np.int64)))


def column(build: Emit, x: str) -> str:
    """Integers, one for each batch entry, as int64 [batch, 1, 1, 1]."""
    return build.op("Reshape", build.cast(x, TensorProto.INT64), build.ints(-1, 1, 1, 1))


def not_after(build: Emit, place: str, limit: str) -> str:
    """place ≤ limit, for integers: LessOrEqual is not in all opsets, and MNN gets Less on negative numbers wrong."""
    return build.op("Not", build.op("Greater", place, limit))


def larger(build: Emit, a: str, b: str) -> str:
    """The larger of two integers; Max takes integers from opset 12 on."""
    return build.op("Max", a, b) if build.opset >= 12 else build.op("Where", build.op("Greater", a, b), a, b)


def smaller(build: Emit, a: str, b: str) -> str:
    """The smaller of two integers."""
    return build.op("Min", a, b) if build.opset >= 12 else build.op("Where", build.op("Greater", a, b), b, a)


def negative(build: Emit, keep: str, fill: float, dtype: int) -> str:
    """0 where `keep` is True, else `fill`."""
    return build.op("Where", keep, build.number(0, dtype), build.number(fill, dtype))


def with_bias(build: Emit, x: str, bias: str) -> str:
    """A sum, or the value alone when there is no bias."""
    return build.op("Add", x, bias) if bias else x


@dataclass(frozen=True)
class Padding:
    """What hides padded keys: a mask of onnxruntime's many forms, the batch and the keys that it is about.

    `starts`: whether the form [2·batch] is known to the operator; `total`: the number of keys where it is known.
    """

    mask: str
    batch: Dim
    key: str
    query: str
    total: int | None
    fill: float = FILL
    starts: bool = False


def add_padding(build: Emit, attention: Attention, padding: Padding) -> Attention:
    """Add a padding mask to the bias: mask_filter_value is added where a key is hidden, as onnxruntime does."""
    keep, rows = _kept(build, padding)
    if not keep:
        return attention
    hidden = negative(build, keep, padding.fill, attention.dtype)
    if not attention.bias:
        return replace(attention, bias=hidden, bias_rows=rows)
    joined = None if None in (rows, attention.bias_rows) else bool(rows or attention.bias_rows)
    return replace(attention, bias=build.op("Add", attention.bias, hidden), bias_rows=joined)


def _kept(build: Emit, padding: Padding) -> tuple[str, bool | None]:
    """Where a mask lets keys be seen, broadcasting to the scores, and whether it has rows; "": everywhere."""
    shape = build.graph.shape(padding.mask)
    if shape is None:
        raise NotPlainError("the rank of the mask is not known, which tells what it means")
    if len(shape) == 1:
        return _between(build, padding, shape[0]), False
    require(len(shape) <= 4, f"a mask of rank {len(shape)}")
    if len(shape) == 2 and shape[1] == 1:
        return "", False  # the same for all keys: softmax does not see it
    raw = padding.mask
    if len(shape) == 4:
        raw = _corner(build, padding)
    keep = build.op("Greater", raw, build.const(np.int32(0)))
    axes = {2: (1, 2), 3: (1,), 4: ()}[len(shape)]
    return (build.unsqueeze(keep, *axes) if axes else keep), len(shape) > 2


def _between(build: Emit, padding: Padding, size: Dim) -> str:
    """Keys from a start (0 when none is given) up to a length, for masks [batch], [2·batch] and [3·batch + 2]."""
    batch, mask = padding.batch, padding.mask
    places = counted(build, padding.total if padding.total is not None else length(build, padding.key))
    if size is not None and size == batch:
        return build.op("Greater", column(build, mask), places)
    require(batch is not None, "the batch is not known yet, which tells what a mask of rank 1 means")
    whole = _is(size, batch, 3, 2)
    known = isinstance(size, int) and isinstance(batch, int)
    fits = whole or (padding.starts and _is(size, batch, 2, 0))
    require(fits or not known, f"a mask of length {size} for a batch of {batch}")
    count = build.dim(padding.query, 0)
    ends = column(build, build.op("Slice", mask, build.ints(0), count, build.ints(0)))
    before_end = build.op("Greater", ends, places)
    if whole or not padding.starts:
        return before_end
    return build.op("And", before_end, not_after(build, _starts(build, mask, count), places))


def _starts(build: Emit, mask: str, count: str) -> str:
    """The second half of a mask [2·batch], [batch, 1, 1, 1]; 0 when it turns out to be of another length."""
    size = build.op("Shape", mask)
    second = build.op("Add", counted(build, build.squeeze(count, 0)), count)
    inside = smaller(build, second, build.op("Sub", size, build.ints(1)))
    has_starts = build.op("Equal", size, build.op("Add", count, count))
    starts = build.cast(build.op("Gather", mask, inside, axis=0), TensorProto.INT64)
    return column(build, build.op("Where", has_starts, starts, build.const(np.int64(0))))


def _is(size: Dim, batch: Dim, factor: int, more: int) -> bool:
    if isinstance(batch, int):
        return size == factor * batch + more
    return size is not None and size == f"{factor}*{batch}" + (f" + {more}" if more else "")


def _corner(build: Emit, padding: Padding) -> str:
    """The rows of the last queries and the columns of the keys from a mask [batch, 1, longest, longest]."""
    total = build.dim(padding.key, 2)
    first = build.op("Sub", total, build.dim(padding.query, 2))
    starts = build.op("Concat", first, build.ints(0), axis=0)
    ends = build.op("Concat", total, total, axis=0)
    return build.op("Slice", padding.mask, starts, ends, build.ints(2, 3))


def finish(build: Emit, attention: Attention, options: Options, stage: Stage = "") -> forms.Written:
    """Emit an attention; the output has its heads merged: [batch, sq, heads·dv]."""
    written = forms.write(build, attention, options.chunk, stage)
    return replace(written, output=forms.merge_heads(build, written.output))


def put(build: Emit, past: str, new: str, start: str) -> str:
    """A buffer [batch, heads, longest, d] with the rows from `start` (an int64 scalar) on replaced by `new`."""
    longest = length(build, past)
    places = counted(build, forms.known(dim(build, past, 2)) or longest)
    end = build.op("Add", start, length(build, new))
    moved = build.op("Add", places, build.op("Sub", longest, start))
    inside = build.op("And", not_after(build, start, places), build.op("Greater", end, places))
    order = build.op("Where", inside, moved, places)
    return build.op("Gather", build.op("Concat", past, new, axis=2), order, axis=2)
