"""Decoders' attention operators of onnxruntime, read into the common form (docs/ContribOperators.md there).

DecoderMaskedMultiHeadAttention: one new token over a buffer of keys, laid out as onnxruntime's CPU kernel has it
([batch, heads, longest, d]), or over those of an encoder. The others have CUDA kernels only. DecoderMaskedSelfAttention
has projections inside, and its keys are stored as [batch, heads, d/x, longest, x], 16 bytes a group, under the shape
[batch, heads, longest, d]. DecoderAttention has the sequence first; whether it is self or cross attention, and has a
cache, say inputs that must be constants.
"""

from __future__ import annotations

from dataclasses import replace

from onnx import TensorProto

from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_attention, contrib_multihead, contrib_parts
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_common import Outputs, require
from graphkit.passes.attention.contrib_parts import Inputs, Parts
from graphkit.passes.attention.form import Attention
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Rule

_ORDER = (0, 1, 2, 10, 3, 4, 5, 6, 7)  # where DecoderMaskedMultiHeadAttention has the inputs of MultiHeadAttention
_FLAGS = {8: "static_kv", 9: "use_past", 10: "has_layer_state", 11: "has_key_padding_mask"}


def rules(options: Options) -> tuple[Rule, ...]:
    """The rules of this module with the options of the pass bound."""
    return (
        common.split_rule("DecoderMaskedMultiHeadAttention", options, _read_multihead),
        common.split_rule("DecoderAttention", options, _read_decoder),
        common.split_rule("DecoderMaskedSelfAttention", options, _read_masked),
    )


def _read_multihead(build: Emit, node: Node, options: Options) -> Outputs:
    beams = build.graph.constant(node.input(8)) if node.input(8) else None
    single = not node.input(8) or (beams is not None and beams.size == 1 and int(beams.reshape(-1)[0]) == 1)
    require(single and not node.input(9), "beam_width, cache_indirection: keys of other beams")
    inputs = contrib_parts.inputs_of(node, _ORDER, packs=True)
    require(
        not inputs.past_length or node.attr("past_present_share_buffer", 0), "past_sequence_length without a buffer"
    )
    buffer = node.attr("past_present_share_buffer", 0) and inputs.past_key
    require(not buffer or inputs.past_length, "past_present_share_buffer without past_sequence_length")
    wanted = common.used(build, node, 3)
    require(not wanted or node.attr("output_qk", 0), "output 3 is used, but output_qk is 0")
    return contrib_multihead.read_multihead(build, node, options, inputs)


def _read_decoder(build: Emit, node: Node, options: Options) -> Outputs:
    heads = common.heads_of(node)
    static, use_past, state, padded = (_flag(build, node, index) for index in _FLAGS)
    cached = use_past and state
    hidden = common.number(build, node.input(2), 1, "the hidden size")
    size = common.divided(hidden, heads, "the hidden size")
    query_bias, key_bias = build.split(node.input(4), 0, [hidden, 2 * hidden])
    query = _turned(build, _projected(build, node.input(0), node.input(2), query_bias), heads)
    if static and cached:
        key, value = node.input(6), node.input(7)
    else:
        both = _projected(build, node.input(1 if static else 0), node.input(3), key_bias)
        key, value = (_turned(build, part, heads) for part in build.split(both, 2, [hidden, hidden]))
        if cached:
            key, value = forms.append(build, node.input(6), key), forms.append(build, node.input(7), value)
    attention = Attention(
        query,
        key,
        value,
        heads,
        heads,
        scale=common.scale_of(node, size),
        keep=build.unsqueeze(build.op("Not", node.input(5)), 1, 2) if padded else "",
        keep_rows=False,
        dtype=common.float_type(build, node.input(2), node.input(0)),
        empty="computed",
    )
    written = forms.write(build, attention, options.chunk)
    output = build.op("Reshape", build.op("Transpose", written.output, perm=[2, 0, 1, 3]), build.ints(0, 0, -1))
    return common.outputs_of(build, node, output, key, value)


def _flag(build: Emit, node: Node, index: int) -> bool:
    array = build.graph.constant(node.input(index))
    if array is None or array.size != 1:
        raise common.NotPlainError(f"{_FLAGS[index]} is not a constant")
    return bool(array.reshape(-1)[0])


def _projected(build: Emit, x: str, weights: str, bias: str) -> str:
    return build.op("Add", build.op("MatMul", x, weights), bias)


def _turned(build: Emit, x: str, heads: int) -> str:
    """[seq, batch, heads·d] → [batch, heads, seq, d]."""
    return build.op("Transpose", build.op("Reshape", x, build.ints(0, 0, heads, -1)), perm=[1, 2, 0, 3])


def _read_masked(build: Emit, node: Node, options: Options) -> Outputs:
    require(not node.attr("do_rotary", 0), "do_rotary: its tables are inside onnxruntime")
    require(not node.input(7) and not node.input(8), "beam_width, cache_indirection: keys of other beams")
    require(node.input(4) and node.input(6) and node.attr("past_present_share_buffer", 0), "a past without a buffer")
    heads = common.heads_of(node)
    sizes = contrib_attention.hidden_sizes(build, node)
    require(sizes[0] == sizes[2], f"past of keys and values of different sizes, {sizes[0]} and {sizes[2]}")
    size = common.divided(sizes[0], heads, "the hidden size")
    dtype = common.float_type(build, node.input(1), node.input(0))
    group = 4 if dtype == TensorProto.FLOAT else 8
    require(size % group == 0, f"a head of size {size} is not in groups of {group}")
    query, key, value = contrib_attention.project(build, node, heads, sizes)
    batch, sq = common.dim(build, node.input(0), 0), common.dim(build, node.input(0), 1)
    stored, past_value = (build.squeeze(part, 0) for part in build.split(node.input(4), 0, [1, 1]))
    past_key = _ungrouped(build, stored, size, group)
    inputs = Inputs(node.input(0), "", "", "", node.input(3), node.input(5), past_key, past_value, node.input(6))
    parts = Parts(query, key, value, size, batch, sq, sq)
    parts, present = contrib_parts.with_past(build, inputs, parts)
    attention = replace(contrib_multihead.attention_of(build, node, inputs, parts), dtype=dtype)
    written = common.finish(build, attention, options)
    pair = (_grouped(build, present[0], size, group), present[1])
    stacked = build.op("Concat", *(build.unsqueeze(x, 0) for x in pair), axis=0)
    return common.outputs_of(build, node, written.output, stacked)


def _ungrouped(build: Emit, x: str, size: int, group: int) -> str:
    """Keys as stored → [batch, heads, longest, d]."""
    groups = build.op("Reshape", x, build.ints(0, 0, size // group, -1, group))
    return build.op("Reshape", build.op("Transpose", groups, perm=[0, 1, 3, 2, 4]), build.ints(0, 0, 0, -1))


def _grouped(build: Emit, x: str, size: int, group: int) -> str:
    """[batch, heads, longest, d] → keys as stored."""
    groups = build.op("Reshape", x, build.ints(0, 0, 0, size // group, group))
    return build.op("Reshape", build.op("Transpose", groups, perm=[0, 1, 3, 2, 4]), build.ints(0, 0, -1, size))
