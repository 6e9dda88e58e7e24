"""One form for all attention operators, and how it is written in plain operators.

Attention(Q, K, V) = softmax(cap(Q·Kᵀ·scale) + mask)·V (Vaswani et al. 2017; ONNX Operators, Attention). Readers of
the many operators fill in an `Attention`; `write` emits the operators that MNN runs right. Grouped queries
(Ainslie et al. 2023) share keys by folding each group into the rows of one product, so that nothing is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from onnx import TensorProto

from graphkit.passes._emit import Emit
from graphkit.passes.attention import blocks, mask

Stage = Literal["", "scaled", "capped", "masked", "weights"]


@dataclass(frozen=True)
class Attention:
    """What an attention operator computes. Values are names; all are rank 4 with the heads second.

    query: [batch, heads, sq, d]; key: [batch, kv_heads, sk, d]; value: [batch, kv_heads, sk, dv], past included;
    all of element type `dtype`. sq, sk: their lengths where known. bias (`dtype`) is added to the scores; keep (bool)
    is True where a key may be seen; both broadcast to [batch, heads, sq, sk], rank ≤ 4, and `bias_rows` and
    `keep_rows` say whether their axis −2 has sq rows (False: 1 or no such axis; None: not known, no blocks).

    Query i stands at position i + offset among the keys: `offset` is a number or an int64 value, a scalar or of shape
    [batch, 1, 1, 1]; with align "bottom-right" it is sk − sq. causal: it sees keys up to its position; window, (left,
    right): keys from position − left to position + right, both included; −1: no bound.

    masked: what is added to the score of a key that may not be seen; None: enough that its weight is 0. empty: what a
    query gets that may see no key: "zeros", or what softmax makes of its scores ("computed").
    softmax_dtype: the element type that softmax is computed in.
    """

    query: str
    key: str
    value: str
    heads: int
    kv_heads: int
    scale: float
    sq: int | None = None
    sk: int | None = None
    bias: str = ""
    keep: str = ""
    bias_rows: bool | None = True
    keep_rows: bool | None = True
    causal: bool = False
    align: Literal["top-left", "bottom-right"] = "top-left"
    offset: str | int = 0
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    dtype: int = TensorProto.FLOAT
    softmax_dtype: int | None = None
    masked: float | None = None
    empty: Literal["zeros", "computed"] = "zeros"

    @property
    def groups(self) -> int:
        """Query heads for each head of keys."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Written:
    """What was written: output [batch, heads, sq, dv], scores [batch, heads, sq, sk] when they were asked for."""

    output: str
    scores: str = ""


def described(op: str, build: Emit) -> str:
    """What was done with an operator, in a few words; each block of queries has a Softmax of its own."""
    count = sum(proto.op_type == "Softmax" for proto in build.nodes)
    return f"{op} in plain operators" + (f", {count} blocks of queries" if count > 1 else "")


def write(build: Emit, form: Attention, chunk: int = 0, scores: Stage = "") -> Written:
    """Emit the attention; `scores` also gives the scores at a stage: scaled, capped, masked, or the weights.

    With a `chunk`, blocks of that many queries are computed one after the other, which takes less memory; needs a
    known number of queries, and nobody who asks for the scores. Else all are computed at once.
    """
    if scores or not blocks.possible(form, chunk):
        return _whole(build, form, scores)
    query, rest = _scaled(build, form)
    parts = [
        _whole(build, part, "").output for part in blocks.cut(build, replace(form, query=query, scale=rest), chunk)
    ]
    return Written(build.op("Concat", *parts, axis=2))


def _scaled(build: Emit, form: Attention) -> tuple[str, float]:
    """The query with the scale in it, also the division by softcap; and the scale that this leaves."""
    rest = form.softcap if form.softcap > 0 else 1.0
    if form.scale == rest:
        return form.query, rest
    return build.op("Mul", form.query, build.number(form.scale / rest, form.dtype)), rest


def _whole(build: Emit, form: Attention, stage: Stage) -> Written:
    """All queries at once."""
    hidden = mask.additive(build, form)
    if form.groups > 1 and not stage and not hidden.value:
        # Without masks each group may stay folded into the rows from the first product to the last.
        folded = build.op("Reshape", form.query, build.ints(0, form.kv_heads, -1, 0))
        output = _computed(build, replace(form, query=folded, heads=form.kv_heads), hidden, "").output
        return Written(build.op("Reshape", output, build.ints(0, form.heads, -1, 0)))
    if form.groups > 1 and not stage and form.sq is not None and hidden.value in build.constants:
        return _by_groups(build, form, hidden, form.sq)
    return _computed(build, form, hidden, stage)


def _by_groups(build: Emit, form: Attention, hidden: mask.Hidden, queries: int) -> Written:
    """With a mask [sq, sk] groups are an axis of their own: rows folded for the products would be copied for it."""
    query = build.op("Reshape", form.query, build.ints(0, form.kv_heads, form.groups, queries, -1))
    key, value = (build.unsqueeze(x, 2) for x in (form.key, form.value))
    grouped = replace(form, query=query, key=key, value=value, heads=form.kv_heads)
    output = _computed(build, grouped, hidden, "", rank=5).output
    return Written(build.op("Reshape", output, build.ints(0, form.heads, queries, -1)))


def _computed(build: Emit, form: Attention, hidden: mask.Hidden, stage: Stage, rank: int = 4) -> Written:
    """Scores, weights and the weighted sum of the values."""
    taken = _scores(build, form, hidden, stage, rank)
    weights = _softmax(build, form, taken["masked"], rank)
    if hidden.seen and stage == "weights":
        weights = build.op("Where", hidden.seen, weights, build.number(0, form.dtype))
    taken["weights"] = weights
    output = product(build, form, weights, form.value)
    if hidden.seen and stage != "weights":
        output = build.op("Where", hidden.seen, output, build.number(0, form.dtype))
    return Written(output, taken.get(stage, ""))


def _scores(build: Emit, form: Attention, hidden: mask.Hidden, stage: Stage, rank: int) -> dict[str, str]:
    """The scores at their stages."""
    query, rest = _scaled(build, replace(form, softcap=0.0) if stage == "scaled" else form)
    keys = build.op("Transpose", form.key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scaled = product(build, form, query, keys)
    capped = scaled
    if form.softcap > 0:
        if rest != form.softcap:
            capped = build.op("Mul", capped, build.number(1 / form.softcap, form.dtype))
        capped = build.op("Mul", build.op("Tanh", capped), build.number(form.softcap, form.dtype))
    masked = build.op("Add", capped, hidden.value) if hidden.value else capped
    return {"scaled": scaled, "capped": capped, "masked": masked}


def _softmax(build: Emit, form: Attention, scores: str, rank: int) -> str:
    if form.softmax_dtype in (None, form.dtype):
        return build.softmax(scores, rank=rank)
    weights = build.softmax(build.cast(scores, form.softmax_dtype), rank=rank)
    return build.cast(weights, form.dtype)


def product(build: Emit, form: Attention, rows: str, other: str) -> str:
    """[batch, heads, sq, n] · [batch, kv_heads, n, m] → [batch, heads, sq, m], each head of `other` for its group."""
    if form.groups == 1:
        return build.op("MatMul", rows, other)
    folded = build.op("Reshape", rows, build.ints(0, form.kv_heads, -1, 0))
    return build.op("Reshape", build.op("MatMul", folded, other), build.ints(0, form.heads, -1, 0))


def split_heads(build: Emit, x: str, heads: int) -> str:
    """[batch, seq, heads·d] → [batch, heads, seq, d]."""
    return build.op("Transpose", build.op("Reshape", x, build.ints(0, 0, heads, -1)), perm=[0, 2, 1, 3])


def merge_heads(build: Emit, x: str) -> str:
    """[batch, heads, seq, d] → [batch, seq, heads·d]."""
    return build.op("Reshape", build.op("Transpose", x, perm=[0, 2, 1, 3]), build.ints(0, 0, -1))


def swap_heads(build: Emit, x: str) -> str:
    """[batch, seq, heads, d] ↔ [batch, heads, seq, d]."""
    return build.op("Transpose", x, perm=[0, 2, 1, 3])


def append(build: Emit, past: str, new: str) -> str:
    """Keys or values of before and new ones, [batch, heads, seq, d], along the sequence; no past: the new ones."""
    return build.op("Concat", past, new, axis=2) if past else new


def rotary(build: Emit, x: str, cos: str, sin: str, *, interleaved: bool = False, part: int = 0, size: int = 0) -> str:
    """Rotary position embedding (Su et al. 2021) of [batch, heads, seq, d]; cos, sin: [batch or 1, seq, rotated/2].

    interleaved: pairs are neighbours, else the halves of the rotated dims. part: how many dims are rotated when not
    all of them are; then `size` must say how many there are, as it must without `part` when not interleaved.
    """
    rest = ""
    if part and part != size:
        x, rest = build.split(x, 3, [part, size - part])
    cos, sin = build.unsqueeze(cos, 1), build.unsqueeze(sin, 1)
    rotated = part or size
    if interleaved:
        pairs = build.op("Reshape", x, build.ints(0, 0, 0, -1, 2))
        first, second = build.split(pairs, 4, [1, 1])
        cos, sin = build.unsqueeze(cos, 4), build.unsqueeze(sin, 4)
    else:
        first, second = build.split(x, 3, [rotated // 2, rotated // 2])
    one = build.op("Sub", build.op("Mul", first, cos), build.op("Mul", second, sin))
    two = build.op("Add", build.op("Mul", second, cos), build.op("Mul", first, sin))
    y = build.op("Concat", one, two, axis=-1)
    y = build.op("Reshape", y, build.ints(0, 0, 0, -1)) if interleaved else y
    return build.op("Concat", y, rest, axis=-1) if rest else y


def known(size: object) -> int | None:
    """A dim of a shape when it is a number."""
    return size if isinstance(size, int) else None


__all__ = [
    "Attention",
    "Stage",
    "Written",
    "append",
    "known",
    "merge_heads",
    "product",
    "rotary",
    "split_heads",
    "swap_heads",
    "write",
]
