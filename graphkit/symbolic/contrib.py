"""Types of what onnxruntime's contrib operators make: without them a chain of these ends all inference.

Semantics as in onnxruntime's docs/ContribOperators.md. Outputs that are not listed stay unknown.
"""

from __future__ import annotations

from graphkit.node import Dim, Node
from graphkit.symbolic.state import UNKNOWN, State
from graphkit.symbolic.symbols import Symbols
from graphkit.symbolic.values import Transfer, broadcast

_AS_FIRST = (
    "BiasAdd", "BiasDropout", "BiasGelu", "BiasSoftmax", "FastGelu", "Gelu", "GroupNorm", "QuickGelu",
    "RotaryEmbedding", "SimplifiedLayerNormalization", "LayerNormalization", "QLinearSigmoid", "QLinearLeakyRelu",
    "QLinearSoftmax",
)  # fmt: skip
_SKIPS = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipGroupNorm")


def _one(node: Node, state: State) -> tuple[State, ...]:
    """The first output; the others are unknown."""
    return (state, *(UNKNOWN for _ in node.outputs[1:]))


def _as_first(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    return _one(node, State(ins[0].dtype, ins[0].shape))


def _skip(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Skip…Normalization: the normalized values, mean, deviation, and the sum as the last of four."""
    same = State(ins[0].dtype, ins[0].shape)
    return tuple(same if index in (0, 3) else UNKNOWN for index in range(len(node.outputs)))


def _last(node: Node, ins: list[State], index: int) -> Dim:
    """Last dimension of an input, None when it is not known."""
    shape = ins[index].shape if index < len(ins) and node.input(index) else None
    return shape[-1] if shape else None


def _rows(state: State, width: Dim) -> State | None:
    """[batch, sequence, width] for an input of [batch, sequence, …]."""
    return State(state.dtype, (*state.shape[:2], width)) if state.shape is not None and len(state.shape) == 3 else None


def _attention(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """Attention: the width of the values, a third of the packed weights unless it says otherwise."""
    sizes, packed = node.attr("qkv_hidden_sizes"), _last(node, ins, 1) or _last(node, ins, 2)
    width: Dim = sizes[2] if sizes else packed // 3 if isinstance(packed, int) else None
    out = _rows(ins[0], width)
    return _one(node, out) if out is not None else None


def _multihead(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """MultiHeadAttention: as many rows as the query has, as wide as the values where these are of rank 3."""
    if len(ins) < 3 or not node.input(2) or ins[2].shape is None or len(ins[2].shape) != 3:
        return None
    out = _rows(ins[0], _last(node, ins, 2))
    return _one(node, out) if out is not None else None


def _group_query(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """GroupQueryAttention: shaped as the query, unless keys and values are packed into it."""
    return _as_first(node, ins, symbols) if node.input(1) else None


def _embed(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """EmbedLayerNormalization: [batch, sequence] of ids and the width of the word table; the sum is output 2."""
    ids = ins[0].shape
    if ids is None:
        return None
    rows = State(ins[2].dtype, (*ids, _last(node, ins, 2)))
    return tuple(rows if index in (0, 2) else UNKNOWN for index in range(len(node.outputs)))


def _product(node: Node, ins: list[State], symbols: Symbols) -> tuple[State, ...] | None:
    """FusedMatMul without batch transposes."""
    a, b = ins[0].shape, ins[1].shape
    batches = node.attr("transBatchA", 0) or node.attr("transBatchB", 0)
    if a is None or b is None or len(a) < 2 or len(b) < 2 or batches:
        return None
    rows, columns = a[-1] if node.attr("transA", 0) else a[-2], b[-2] if node.attr("transB", 0) else b[-1]
    lead = broadcast(symbols, a[:-2], b[:-2])
    return _one(node, State(ins[0].dtype, (*lead, rows, columns))) if lead is not None else None


CONTRIB: dict[str, Transfer] = {
    **{f"com.microsoft::{name}": _as_first for name in _AS_FIRST},
    **{f"com.microsoft::{name}": _skip for name in _SKIPS},
    "SimplifiedLayerNormalization": _as_first,
    "com.microsoft::Attention": _attention,
    "com.microsoft::MultiHeadAttention": _multihead,
    "com.microsoft::GroupQueryAttention": _group_query,
    "com.microsoft::EmbedLayerNormalization": _embed,
    "com.microsoft::FusedMatMul": _product,
}
