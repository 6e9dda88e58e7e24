"""com.microsoft MultiHeadAttention of onnxruntime, read into the common form (docs/ContribOperators.md there)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import contrib_parts
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_common import Outputs, require
from graphkit.passes.attention.contrib_parts import Inputs, Parts, inputs_of
from graphkit.passes.attention.form import Attention
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Rule


def rules(options: Options) -> tuple[Rule, ...]:
    """The rules of this module with the options of the pass bound."""
    return (common.split_rule("MultiHeadAttention", options, _read),)


def _read(build: Emit, node: Node, options: Options) -> Outputs:
    require(not node.input(9), "cache_indirection: which beam a key came from is known to onnxruntime's search only")
    return read_multihead(build, node, options, inputs_of(node, range(9)))


def read_multihead(build: Emit, node: Node, options: Options, inputs: Inputs) -> Outputs:
    """Emit the outputs (output, present key and value, scores) of a node that reads these inputs."""
    read = contrib_parts.read(build, inputs, common.heads_of(node))
    parts, present = contrib_parts.with_past(build, inputs, read)
    attention = attention_of(build, node, inputs, parts)
    wanted = common.used(build, node, 3)
    written = common.finish(build, attention, options, "masked" if wanted else "")
    return common.outputs_of(build, node, written.output, *present, written.scores)


def attention_of(build: Emit, node: Node, inputs: Inputs, parts: Parts) -> Attention:
    """The common form of a node: its attributes and masks over the parts, past included."""
    heads = common.heads_of(node)
    total = common.total_of(parts.before, parts.fresh)
    attention = Attention(
        parts.query,
        parts.key,
        parts.value,
        heads,
        heads,
        scale=common.scale_of(node, parts.size),
        sq=forms.known(parts.sq),
        sk=total,
        bias=inputs.attention_bias,
        dtype=common.float_type(build, inputs.query, inputs.key, inputs.bias, inputs.past_key),
        empty="computed",
    )
    if inputs.mask:
        fill = float(node.attr("mask_filter_value", common.FILL))
        padding = common.Padding(inputs.mask, parts.batch, parts.key, parts.query, total, fill)
        attention = common.add_padding(build, attention, padding)
    return _causal(build, attention, parts) if node.attr("unidirectional", 0) else attention


def _causal(build: Emit, attention: Attention, parts: Parts) -> Attention:
    """Hide what comes after; as in onnxruntime's CPU kernel the last query sees every key, also beyond its place."""
    sq, fresh = parts.sq, parts.fresh
    if sq is not None and sq == fresh:
        return replace(attention, causal=True, align="bottom-right")
    if isinstance(sq, int) and attention.sk is not None and isinstance(parts.before, int):
        ahead = np.arange(attention.sk)[None, :] - np.arange(sq)[:, None]
        seen = ahead <= parts.before
        seen[-1] = True
        return replace(attention, keep=build.const(seen, "visible"))
    rows, total = (build.squeeze(build.dim(x, 2), 0) for x in (parts.query, parts.key))
    places = build.unsqueeze(common.counted(build, rows), 1)
    last = build.op("Greater", build.op("Add", places, build.const(np.int64(2))), rows)
    limit = build.op("Where", last, total, common.with_bias(build, places, parts.start))
    return replace(attention, keep=common.not_after(build, common.counted(build, total), limit))
