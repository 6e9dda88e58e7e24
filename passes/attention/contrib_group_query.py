"""com.microsoft GroupQueryAttention of onnxruntime, read into the common form.

Causal attention with shared heads of keys, a cache and rotary positions. Entry b of the batch has T = seqlens_k[b] + 1
keys when the node is done; max(T − seq, 0) of them came from the cache. The cache grows (total_sequence_length is
past + seq) or is a buffer of one size (it is less), and what is not filled is 0 in the present one. Source:
docs/ContribOperators.md of onnxruntime, and its CPU kernel where that is silent.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from onnx import TensorProto

from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_cache as caches
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_cache import Cache, Sizes
from graphkit.passes.attention.contrib_common import Outputs, require
from graphkit.passes.attention.form import Attention, Stage
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Rule

_REFUSED_INPUTS = {
    12: "k_scale: a quantized cache",
    13: "v_scale: a quantized cache",
    14: "q_norm_weight: onnxruntime's CPU kernel refuses it",
    15: "k_norm_weight: onnxruntime's CPU kernel refuses it",
    16: "query_seqlens: chunks that are padded one by one",
}
_STAGES: tuple[Stage, ...] = ("", "masked", "weights")  # of the attribute qk_output


def rules(options: Options) -> tuple[Rule, ...]:
    """The rules of this module with the options of the pass bound."""
    return (common.split_rule("GroupQueryAttention", options, _read),)


def _read(build: Emit, node: Node, options: Options) -> Outputs:
    _check(build, node)
    sizes = _sizes(build, node)
    query, key, value = _parts(build, node, sizes)
    cache = caches.read(build, node, query, sizes.sq)
    if node.attr("do_rotary", 0):
        query, key = _rotated(build, node, cache, (query, key), sizes.size)
    present_key, present_value = (
        caches.present(build, cache, past, new, sizes) for past, new in ((node.input(3), key), (node.input(4), value))
    )
    read = [query, present_key, present_value]
    if sizes.dtype != TensorProto.FLOAT:  # onnxruntime computes in float as well
        read = [build.cast(x, TensorProto.FLOAT) for x in read]
    attention = _attention(build, node, sizes, cache, read)
    written, scores = _written(build, node, options, attention, cache)
    if sizes.dtype != TensorProto.FLOAT:
        written = build.cast(written, sizes.dtype)
        scores = build.cast(scores, sizes.dtype) if scores else ""
    return common.outputs_of(build, node, written, present_key, present_value, scores)


def _check(build: Emit, node: Node) -> None:
    for index, reason in _REFUSED_INPUTS.items():
        require(not node.input(index), reason)
    quantized = node.attr("k_quant_type", "NONE") != "NONE" or node.attr("v_quant_type", "NONE") != "NONE"
    require(not quantized, "k_quant_type, v_quant_type: a quantized cache")
    require(not node.attr("sliding_window_cache", 0), "sliding_window_cache: keys move inside the cache")
    require(node.attr("local_window_size", -1) != 0, "local_window_size is 0: queries that see no key")
    require(bool(node.input(3)) == bool(node.input(4)), "past_key and past_value go together")
    require(common.dim(build, node.input(1), 1) != 0, "keys of length 0: the cache is shared with another layer")


def _sizes(build: Emit, node: Node) -> Sizes:
    heads, kv_heads = common.heads_of(node), common.heads_of(node, "kv_num_heads")
    require(heads % kv_heads == 0, f"{heads} heads share {kv_heads} heads of keys")
    hidden = common.number(build, node.input(0), 2, "the hidden size")
    packed = not node.input(1)
    require(packed == (not node.input(2)), "key and value go together")
    size = common.divided(hidden, heads + 2 * kv_heads if packed else heads, "the hidden size")
    dtype = common.float_type(build, node.input(0), node.input(1), node.input(3))
    return Sizes(heads, kv_heads, size, dtype, common.dim(build, node.input(0), 1))


def _parts(build: Emit, node: Node, sizes: Sizes) -> list[str]:
    """Query, key and value with their heads split."""
    apart = list(node.inputs[:3])
    if not node.input(1):
        widths = [count * sizes.size for count in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
        apart = build.split(node.input(0), 2, widths)
    counts = (sizes.heads, sizes.kv_heads, sizes.kv_heads)
    return [forms.split_heads(build, x, count) for x, count in zip(apart, counts, strict=True)]


def _rotated(build: Emit, node: Node, cache: Cache, parts: tuple[str, str], size: int) -> list[str]:
    """Rotary embedding at the positions of the new tokens."""
    require(node.input(7) and node.input(8), "do_rotary without cos_cache and sin_cache")
    half = common.number(build, node.input(7), 1, "the size of cos_cache")
    places = caches.rotary_places(build, cache, node.input(9))
    cos, sin = (build.op("Gather", table, places, axis=0) for table in node.inputs[7:9])
    flip = bool(node.attr("rotary_interleaved", 0))
    return [forms.rotary(build, x, cos, sin, interleaved=flip, part=2 * half, size=size) for x in parts]


def _attention(build: Emit, node: Node, sizes: Sizes, cache: Cache, read: list[str]) -> Attention:
    """The common form over all that is in the present cache."""
    attention = Attention(
        query=read[0],
        key=read[1],
        value=read[2],
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        scale=common.scale_of(node, sizes.size),
        sq=forms.known(sizes.sq),
        sk=cache.total,
        softcap=float(node.attr("softcap", 0.0)),
        empty="computed",
    )
    window, causal = node.attr("local_window_size", -1), bool(node.attr("causal", 1))
    left = window - 1 if window > 0 else -1
    bias = node.input(10)
    if bias and sizes.dtype != TensorProto.FLOAT:
        bias = build.cast(bias, TensorProto.FLOAT)
    if node.input(11) or node.attr("smooth_softmax", 0) == 1:
        keep = caches.visible(build, cache, left, causal=causal, sink=True)
        attention = replace(attention, keep=keep, keep_rows=causal)
        return _with_sink(build, node, attention, cache, bias)
    if bias:
        bias = bias if cache.is_full else caches.spread(build, cache, bias)
        attention = replace(attention, bias=bias, masked=-np.inf)
    if cache.is_plain:
        return replace(attention, causal=causal, align="bottom-right", window=(left, -1))
    return replace(attention, keep=caches.visible(build, cache, left, causal=causal), keep_rows=causal)


def _with_sink(build: Emit, node: Node, attention: Attention, cache: Cache, bias: str) -> Attention:
    """One more key for the sink, the term that head_sink (0 without) adds to the sum of softmax.

    The key is 0, and so is its score; the sink comes as its bias. Its value is 0.
    """
    key, value = (
        build.op("Concat", x, build.op("Mul", build.slice(x, 2, 0, 1), build.number(0)), axis=2)
        for x in (attention.key, attention.value)
    )
    total = None if attention.sk is None else attention.sk + 1
    attention = replace(attention, key=key, value=value, sk=total, masked=-np.inf)
    sink = node.input(11)
    if not bias and not sink:
        return attention
    others = caches.spread(build, cache, bias, 1) if bias else build.number(0)
    at_sink = build.number(0)
    if sink:
        at_sink = build.op("Reshape", build.cast(sink, TensorProto.FLOAT), build.ints(1, -1, 1, 1))
    last = caches.is_sink(build, cache, caches.places(build, cache, 1))
    return replace(attention, bias=build.op("Where", last, at_sink, others), bias_rows=bool(bias))


def _written(build: Emit, node: Node, options: Options, attention: Attention, cache: Cache) -> tuple[str, str]:
    """The output, and what output_qk shows of the scores: those of keys not seen are 0."""
    wanted, kind = common.used(build, node, 3), node.attr("qk_output", 0)
    require(kind in (1, 2) or not wanted, f"output_qk is used, but qk_output is {kind}")
    stage: Stage = _STAGES[kind] if wanted else ""
    if stage and not attention.keep:
        keep = caches.visible(build, cache, attention.window[0], causal=attention.causal)
        attention = replace(attention, keep=keep, causal=False, window=(-1, -1))
    written = common.finish(build, attention, options, stage)
    if not stage:
        return written.output, ""
    scores = build.op("Where", attention.keep, written.scores, build.number(0))
    end = build.unsqueeze(cache.limit, 0)
    return written.output, build.op("Slice", scores, build.ints(0), end, build.ints(3))
