"""The cache of onnxruntime's GroupQueryAttention: where new keys go, and which keys a query sees.

Entry b of the batch holds T[b] = seqlens_k[b] + 1 keys after the node; before[b] = max(T[b] − seq, 0) of them came
from the past, which is what onnxruntime's CPU kernel takes, prompt or not. The present one has
max(total_sequence_length, past) rows: past + seq (it grows) or as many as the past (a buffer of one size).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.node import Dim, Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_common import require


@dataclass(frozen=True)
class Sizes:
    """Numbers of heads, size of one, element type; length of the sequence where known."""

    heads: int
    kv_heads: int
    size: int
    dtype: int
    sq: Dim


@dataclass(frozen=True)
class Cache:
    """Values are int64: rows [seq] counts the new tokens; ends and before are scalars or [batch, 1, 1, 1].

    past: length of the past (0: none); length and limit: scalars, rows of the present cache and
    total_sequence_length; total: the former where it is known. is_even: ends and before are scalars; is_plain: all
    rows are filled, for all entries of the batch; is_full: total_sequence_length is the number of rows.
    """

    rows: str
    sequence: str
    ends: str
    before: str
    past: Dim
    length: str
    limit: str
    total: int | None
    is_even: bool
    is_plain: bool
    is_full: bool


def read(build: Emit, node: Node, query: str, sq: Dim) -> Cache:
    """Read the cache of a node; `query` is [batch, heads, seq, d]."""
    past = common.dim(build, node.input(3), 2) if node.input(3) else 0
    filled = _filled(build, node)
    limit = _constant(build, node.input(6))
    total = _total(past, sq, limit)
    sequence = build.const(np.int64(sq)) if isinstance(sq, int) else build.squeeze(build.dim(query, 2), 0)
    limit_value = sequence if past == 0 else common.scalar(build, node.input(6))
    ends = _ends(build, node, filled)
    return Cache(
        rows=common.counted(build, sq if isinstance(sq, int) else sequence),
        sequence=sequence,
        ends=ends,
        before=_before(build, ends, sequence, past),
        past=past,
        length=_length(build, node.input(3), past, sequence, limit_value, total),
        limit=limit_value,
        total=total,
        is_even=filled is not None,
        is_plain=total is not None and filled == total == common.total_of(past, sq),
        is_full=past == 0 or (total is not None and total == limit),
    )


def _constant(build: Emit, x: str) -> int | None:
    array = build.graph.constant(x)
    return None if array is None or array.size != 1 else int(array.reshape(-1)[0])


def _filled(build: Emit, node: Node) -> int | None:
    """How many rows are filled afterwards when that is known and the same for the whole batch."""
    array = build.graph.constant(node.input(5))
    same = array is not None and array.size > 0 and bool((array == array.reshape(-1)[0]).all())
    return int(array.reshape(-1)[0]) + 1 if array is not None and same else None


def _total(past: Dim, sq: Dim, limit: int | None) -> int | None:
    """Rows of the present cache."""
    if past == 0:
        require(
            limit is None or not isinstance(sq, int) or limit == sq, "total_sequence_length is not that of the keys"
        )
        return forms.known(sq)
    return max(limit, past) if limit is not None and isinstance(past, int) else None


def _ends(build: Emit, node: Node, filled: int | None) -> str:
    if filled is not None:
        return build.const(np.int64(filled))
    return build.op("Add", common.column(build, node.input(5)), build.const(np.int64(1)))


def _before(build: Emit, ends: str, sequence: str, past: Dim) -> str:
    if past == 0:
        return build.const(np.int64(0))
    return common.larger(build, build.op("Sub", ends, sequence), build.const(np.int64(0)))


def _length(build: Emit, past: str, size: Dim, sequence: str, limit: str, total: int | None) -> str:
    if total is not None:
        return build.const(np.int64(total))
    return sequence if size == 0 else common.larger(build, limit, common.length(build, past))


def places(build: Emit, cache: Cache, more: int = 0) -> str:
    """0, 1, … for each row of the present cache, and for some more."""
    if cache.total is not None:
        return common.counted(build, cache.total + more)
    size = build.op("Add", cache.length, build.const(np.int64(more))) if more else cache.length
    return common.counted(build, size)


def present(build: Emit, cache: Cache, past: str, new: str, sizes: Sizes) -> str:
    """The past one with new keys (or values) at their places, [batch, heads, rows, size]; the rest is 0."""
    if cache.past == 0:
        return new
    if cache.is_plain:
        return forms.append(build, past, new)
    both = build.op("Concat", past, new, axis=2)
    stored = common.length(build, past)
    every = build.op("Add", stored, cache.sequence)
    row = places(build, cache)
    moved = build.op("Sub", build.op("Add", row, stored), cache.before)
    moved = common.smaller(build, moved, build.op("Sub", every, build.const(np.int64(1))))
    source = build.op("Where", build.op("Greater", cache.before, row), row, moved)
    starts = build.op("Mul", _entries(build, new, sizes.kv_heads), every)
    index = build.op("Add", build.op("Reshape", starts, build.ints(-1, sizes.kv_heads, 1)), _flat(build, cache, source))
    taken = build.op("Gather", build.op("Reshape", both, build.ints(-1, sizes.size)), index, axis=0)
    filled = build.op("Greater", build.op("Add", cache.before, cache.sequence), row)
    filled = build.unsqueeze(_flat(build, cache, filled), 3)
    return build.op("Where", filled, taken, build.number(0, sizes.dtype))


def _entries(build: Emit, new: str, heads: int) -> str:
    """0, 1, … for each head of each entry of the batch."""
    count = build.op("Mul", build.squeeze(build.dim(new, 0), 0), build.const(np.int64(heads)))
    return common.counted(build, count)


def _flat(build: Emit, cache: Cache, x: str) -> str:
    """[rows] (when all entries are the same) or [batch, 1, 1, rows] → [batch or 1, 1, rows]."""
    return build.unsqueeze(x, 0, 1) if cache.is_even else build.squeeze(x, 1)


def visible(build: Emit, cache: Cache, left: int, *, causal: bool, sink: bool = False) -> str:
    """Which rows a query sees, bool [batch or 1, 1, seq or 1, rows]; with a sink one more, which all see."""
    row = places(build, cache, int(sink))
    last = build.op("Sub", cache.ends, build.const(np.int64(1)))
    place = last
    if causal:
        own = build.op("Add", build.unsqueeze(cache.rows, 1), cache.before)
        place = common.smaller(build, own, last)
    keep = common.not_after(build, row, place)
    if left >= 0:
        first = build.op("Sub", place, build.const(np.int64(left))) if left else place
        keep = build.op("And", keep, common.not_after(build, first, row))
    return build.op("Or", keep, is_sink(build, cache, row)) if sink else keep


def is_sink(build: Emit, cache: Cache, row: str) -> str:
    """True at the one more row."""
    return common.not_after(build, cache.length, row)


def spread(build: Emit, cache: Cache, bias: str, more: int = 0) -> str:
    """A bias over total_sequence_length keys as one over all rows; what comes after is not seen."""
    last = build.op("Sub", cache.limit, build.const(np.int64(1)))
    return build.op("Gather", bias, common.smaller(build, places(build, cache, more), last), axis=3)


def rotary_places(build: Emit, cache: Cache, given: str) -> str:
    """Positions of the new tokens, [batch or 1, seq]: after those of before, or as given.

    As in onnxruntime's CPU kernel only the first one that is given counts in a prompt.
    """
    if not given:
        return build.op("Add", build.op("Reshape", cache.before, build.ints(-1, 1)), cache.rows)
    corner = build.slice(build.slice(given, 0, 0, 1), 1, 0, 1)
    prompt = build.op("Add", corner, cache.rows)
    if cache.past == 0:
        return prompt
    return build.op("Where", build.op("Equal", cache.limit, cache.sequence), prompt, given)
