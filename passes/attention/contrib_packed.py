"""com.microsoft PackedAttention and PackedMultiHeadAttention of onnxruntime, read into the common form.

Tokens of all sequences stand one after the other, without padding: [tokens, hidden]; cumulative_sequence_length
[batch + 1] says where each begins, token_offset [batch, seq] where each token is in [batch·seq] with padding on the
right (the padding's offsets come last). They are padded, attended to, and packed again (docs/ContribOperators.md of
onnxruntime; it has kernels for CUDA only).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_attention, contrib_parts
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_common import Outputs, require
from graphkit.passes.attention.form import Attention
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Rule


def rules(options: Options) -> tuple[Rule, ...]:
    """The rules of this module with the options of the pass bound."""
    return (
        common.split_rule("PackedAttention", options, _read_attention),
        common.split_rule("PackedMultiHeadAttention", options, _read_multihead),
    )


@dataclass(frozen=True)
class _Packed:
    """Tokens [tokens, …] and how they are padded: where each place of [batch, seq] reads, and which are tokens.

    order, real: [batch, seq] and [batch, 1, 1, seq]; offsets: [tokens], where the tokens are in [batch·seq].
    """

    tokens: str
    order: str
    real: str
    offsets: str


def _packed(build: Emit, tokens: str, offsets: str, starts: str) -> _Packed:
    """Read token_offset and cumulative_sequence_length."""
    shape = build.graph.shape(offsets)
    require(shape is None or len(shape) == 2, "token_offset is not [batch, seq]")
    count = build.dim(tokens, 0)
    sequence = common.dim(build, offsets, 1)
    places = common.counted(build, sequence if isinstance(sequence, int) else common.length(build, offsets, 1))
    first = common.column(build, build.slice(starts, 0, 0, -1))
    length = build.op("Sub", common.column(build, build.slice(starts, 0, 1)), first)
    begin = build.op("Reshape", first, build.ints(-1, 1))
    order = common.smaller(build, build.op("Add", begin, places), build.op("Sub", count, build.ints(1)))
    flat = build.op("Reshape", offsets, build.ints(-1))
    taken = build.op("Slice", flat, build.ints(0), count, build.ints(0))
    return _Packed(tokens, order, build.op("Greater", length, places), taken)


def _read_attention(build: Emit, node: Node, options: Options) -> Outputs:
    heads = common.heads_of(node)
    sizes = contrib_attention.hidden_sizes(build, node)
    packed = _packed(build, node.input(0), node.input(3), node.input(4))
    joined = common.with_bias(build, build.op("MatMul", node.input(0), node.input(1)), node.input(2))
    parts = [_padded(build, packed, part, heads) for part in build.split(joined, 1, sizes)]
    return _written(build, node, options, packed, parts, (sizes[0], sizes[2]), node.input(5))


def _read_multihead(build: Emit, node: Node, options: Options) -> Outputs:
    heads = common.heads_of(node)
    query, key, value, bias = (node.input(index) for index in range(4))
    shape = build.graph.shape(query)
    if shape is None or len(shape) not in (2, 4):
        raise common.NotPlainError("the rank of the query (2, or 4 when it is packed) is not known")
    packed = _packed(build, query, node.input(4), node.input(5))
    if len(shape) == 4:
        size = common.number(build, query, 3, "the size of a head")
        tokens = common.with_bias(build, query, contrib_parts.packed_bias(build, bias, heads, size))
        padded = build.op("Gather", tokens, packed.order, axis=0)
        sizes = (heads * size, heads * size)
        return _written(build, node, options, packed, contrib_parts.unpacked(build, padded, 3), sizes, node.input(6))
    require(key and value, "key and value are missing")
    hidden = common.number(build, query, 1, "the hidden size")
    whole = common.number(build, value, 1, "the hidden size of the value")
    biases = contrib_parts.split_bias(build, bias, heads, hidden)
    pairs = zip((query, key, value), biases, strict=True)
    parts = [_padded(build, packed, common.with_bias(build, x, more), heads) for x, more in pairs]
    return _written(build, node, options, packed, parts, (hidden, whole), node.input(6))


def _padded(build: Emit, packed: _Packed, tokens: str, heads: int) -> str:
    """[tokens, hidden] → [batch, heads, seq, d]; padding is some token, which nobody sees."""
    return forms.split_heads(build, build.op("Gather", tokens, packed.order, axis=0), heads)


def _written(
    build: Emit,
    node: Node,
    options: Options,
    packed: _Packed,
    parts: list[str],
    sizes: tuple[int, int],
    bias: str,
) -> Outputs:
    """Attention over padded parts, packed again; sizes are those of query and value, all heads together."""
    heads = common.heads_of(node)
    attention = Attention(
        query=parts[0],
        key=parts[1],
        value=parts[2],
        heads=heads,
        kv_heads=heads,
        scale=common.scale_of(node, common.divided(sizes[0], heads, "the hidden size")),
        bias=bias,
        keep=packed.real,
        keep_rows=False,
        masked=-np.inf if bias else None,
        dtype=common.float_type(build, packed.tokens),
        empty="computed",
    )
    written = common.finish(build, attention, options)
    flat = build.op("Reshape", written.output, build.ints(-1, sizes[1]))
    return common.outputs_of(build, node, build.op("Gather", flat, packed.offsets, axis=0))
