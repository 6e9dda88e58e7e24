"""ai.onnx Attention, opsets 23 to 25, read into the common form (ONNX Operators, Attention).

As the ONNX reference implementation computes it: softcap before the mask, a zero row where no key may be seen, a mask
that is shorter than the keys is filled up with "not to be seen".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Dim, Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import form as forms
from graphkit.passes.attention import mask
from graphkit.passes.attention.form import Attention, Stage
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Outcome, Refusal, Rule

_NAME = "onnx-attention"
_STAGES: tuple[Stage, ...] = ("scaled", "capped", "masked", "weights")
_SHORT_MASKS = 24  # the opset from which a mask may be shorter than the keys


def rules(options: Options) -> tuple[Rule, ...]:
    """The rule for ai.onnx Attention."""

    def match(graph: Graph, node: Node) -> Outcome:
        """MNN has no Attention."""
        found = _inspect(graph, node)
        if isinstance(found, str):
            return Refusal(_NAME, node.label, found)
        return _rewrite(Emit(graph, node), node, found, options.chunk)

    return (Rule(_NAME, ("Attention",), match),)


@dataclass(frozen=True)
class _Node:
    """What is known of a node: sizes (None: not known), element type, the rank of what it reads, its mask."""

    rank: int
    heads: int
    kv_heads: int
    size: int | None
    batch: Dim
    sq: Dim
    fresh: Dim  # keys that come in
    past: Dim  # keys of before; 0 without
    dtype: int
    mask: Literal["", "full", "short"]  # short: perhaps
    mask_rows: bool | None


def _inspect(graph: Graph, node: Node) -> _Node | str:
    """Read the node, or say what is in the way."""
    shapes = [graph.shape(value) for value in node.inputs[:3]]
    dtype = graph.dtype(node.inputs[0])
    if any(shape is None or len(shape) not in (3, 4) for shape in shapes) or dtype not in mask.LOWEST:
        return "the shapes (rank 3 or 4) or the element type of query, key and value are not known"
    if any(graph.dtype(value) != dtype for value in node.inputs[1:3]):
        return "query, key and value are of different element types"
    query, key, _ = (shape for shape in shapes if shape is not None)
    heads = _heads(node, query, key)
    if isinstance(heads, str):
        return heads
    flat = len(query) == 3
    size = forms.known(query[-1])
    size = size // heads[0] if size is not None and flat else size
    if size is None and node.attr("scale") is None:
        return "the scale is 1/√(head size) and the head size is not known"
    past_shape = graph.shape(node.input(4)) if node.input(4) else None
    past: Dim = 0 if not node.input(4) else past_shape[2] if past_shape else None
    sequence = 1 if flat else 2
    found = _Node(len(query), *heads, size, query[0], query[sequence], key[sequence], past, dtype, "", mask_rows=False)
    return _with_mask(graph, node, found)


def _heads(node: Node, query: tuple[Dim, ...], key: tuple[Dim, ...]) -> tuple[int, int] | str:
    """How many heads query and keys have."""
    if len(query) == 3:
        heads, kv_heads = node.attr("q_num_heads"), node.attr("kv_num_heads")
        if not heads or not kv_heads:
            return "q_num_heads and kv_num_heads must be given for inputs of rank 3"
    else:
        heads, kv_heads = query[1], key[1]
        if heads == kv_heads and not isinstance(heads, int) and heads is not None:
            return 1, 1  # as many as there are; nobody needs the number
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        return "the numbers of heads are not known"
    return (heads, kv_heads) if heads % kv_heads == 0 else f"{heads} heads share {kv_heads} heads of keys"


def _with_mask(graph: Graph, node: Node, found: _Node) -> _Node | str:
    """The node with what is known of its mask."""
    if not node.input(3):
        return found
    shape, kind = graph.shape(node.input(3)), graph.dtype(node.input(3))
    if shape is None or not 1 <= len(shape) <= 4 or not kind:
        return "the rank (1 to 4) or the element type of attn_mask is not known"
    last = shape[-1]
    total = _total(found)
    same = last is not None and last in total
    if not same and graph.opset() < _SHORT_MASKS and (last == 1 or not isinstance(last, int)):
        if last == 1:
            return "the last axis of attn_mask is 1: the standard broadcasts it, its reference fills it up"
        same = True
    rows = _has_rows(shape[-2], found.sq) if len(shape) > 1 else False
    return replace(found, mask="full" if same else "short", mask_rows=rows)


def _has_rows(rows: Dim, queries: Dim) -> bool | None:
    if rows == 1:
        return queries == 1
    return True if isinstance(rows, int) or (rows is not None and rows == queries) else None


def _total(found: _Node) -> tuple[Dim, ...]:
    """What the number of all keys may be called."""
    if found.past == 0:
        return (found.fresh,)
    if isinstance(found.past, int) and isinstance(found.fresh, int):
        return (found.past + found.fresh,)
    return (f"{found.past} + {found.fresh}", f"{found.fresh} + {found.past}")


def _number(dims: tuple[Dim, ...]) -> int | None:
    return forms.known(dims[0])


def _rewrite(build: Emit, node: Node, found: _Node, chunk: int) -> Outcome:
    attention, present = _read(build, node, found)
    out = [*node.outputs, "", "", ""]
    used = [bool(name) and build.graph.is_used(name) for name in out]
    stage: Stage = _STAGES[node.attr("qk_matmul_output_mode", 0)] if used[3] else ""
    if stage == "masked":
        attention = replace(attention, masked=-np.inf)
    written = forms.write(build, attention, chunk, stage)
    output = forms.merge_heads(build, written.output) if found.rank == 3 else written.output
    values = (output, *present, written.scores)
    outputs = {out[i]: values[i] for i in range(4) if out[i] and (used[i] or i < 3)}
    return build.rewrite(outputs, forms.described(node.op_type, build))


def _read(build: Emit, node: Node, found: _Node) -> tuple[Attention, tuple[str, str]]:
    """The common form, and present keys and values."""
    query, key, value = node.inputs[:3]
    if found.rank == 3:
        query = forms.split_heads(build, query, found.heads)
        key, value = (forms.split_heads(build, x, found.kv_heads) for x in (key, value))
    key, value = forms.append(build, node.input(4), key), forms.append(build, node.input(5), value)
    scale = node.attr("scale")
    attention = Attention(
        query=query,
        key=key,
        value=value,
        heads=found.heads,
        kv_heads=found.kv_heads,
        scale=scale if scale is not None else (found.size or 1) ** -0.5,
        sq=forms.known(found.sq),
        sk=_number(_total(found)),
        causal=bool(node.attr("is_causal", 0)),
        window=(node.attr("left_window_size", -1), node.attr("right_window_size", -1)),
        softcap=node.attr("softcap", 0.0),
        dtype=found.dtype,
        softmax_dtype=node.attr("softmax_precision"),
    )
    attention = _masked(build, node, found, _placed(build, node, found, attention))
    return attention, (key, value)


def _placed(build: Emit, node: Node, found: _Node, attention: Attention) -> Attention:
    """The form with the position of the first query: after the past, or so that the last is the last valid key."""
    if node.input(6) and not node.input(4):
        valid = build.unsqueeze(build.cast(node.input(6), TensorProto.INT64), 1, 2, 3)
        valid_keys = build.op("Greater", valid, mask.keys(build, attention))
        attention = replace(attention, keep=valid_keys, keep_rows=False)
        if mask.is_positional(attention):
            first = build.op("Sub", valid, mask.length(build, attention.query, attention.sq))
            attention = replace(attention, offset=first)
        return attention
    if not node.input(4) or not mask.is_positional(attention):
        return attention
    past = found.past
    return replace(attention, offset=past if isinstance(past, int) else build.squeeze(build.dim(node.input(4), 2), 0))


def _masked(build: Emit, node: Node, found: _Node, attention: Attention) -> Attention:
    """The form with the node's mask."""
    value = node.input(3)
    if not value:
        left, _ = attention.window
        sees = not attention.keep and left < 0
        return replace(attention, empty="computed") if sees and attention.causal else attention
    kind = build.graph.dtype(value)
    boolean = kind == TensorProto.BOOL
    value = value if boolean or kind == found.dtype else build.cast(value, found.dtype)
    value = _filled(build, node, found, value, attention, boolean=boolean)
    if not boolean:
        sure = mask.never_hides(build.graph, node.input(3)) and found.mask == "full"
        alone = not attention.keep and attention.window == (-1, -1)
        return replace(
            attention, bias=value, bias_rows=found.mask_rows, empty="computed" if sure and alone else "zeros"
        )
    if attention.keep:
        value = build.op("And", value, attention.keep)
    return replace(attention, keep=value, keep_rows=found.mask_rows)


def _filled(build: Emit, node: Node, found: _Node, value: str, attention: Attention, *, boolean: bool) -> str:
    """The mask for all keys: those that a short one does not speak of may not be seen."""
    rank = build.graph.rank(node.input(3))
    if found.mask == "full" or rank is None:
        return value
    return mask.fill(build, value, rank, attention, boolean=boolean)
