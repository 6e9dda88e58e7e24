"""com.microsoft Attention of onnxruntime, read into the common form.

The projections of query, key and value are part of the operator; past and present are stacked: [2, batch, heads,
seq, d] (onnxruntime, docs/ContribOperators.md).
"""

from __future__ import annotations

from dataclasses import replace

from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_common import Outputs, require
from graphkit.passes.attention.form import Attention
from graphkit.passes.attention.options import Options
from graphkit.rewrite import Rule


def rules(options: Options) -> tuple[Rule, ...]:
    """The rules of this module with the options of the pass bound."""
    return (common.split_rule("Attention", options, _read),)


def _read(build: Emit, node: Node, options: Options) -> Outputs:
    _check(build, node)
    wanted = common.used(build, node, 1)
    sizes = hidden_sizes(build, node)
    stacks = sizes[0] == sizes[2] or not (node.input(4) or wanted)
    require(stacks, f"past or present of keys and values of different sizes, {sizes[0]} and {sizes[2]}")
    query, key, value = project(build, node, common.heads_of(node), sizes)
    before = common.dim(build, node.input(4), 3) if node.input(4) else 0
    if before != 0:
        past_key, past_value = (build.squeeze(part, 0) for part in build.split(node.input(4), 0, [1, 1]))
        key, value = forms.append(build, past_key, key), forms.append(build, past_value, value)
    total = common.total_of(before, common.dim(build, node.input(0), 1))
    written = common.finish(build, _attention(build, node, (query, key, value), total), options)
    return common.outputs_of(build, node, written.output, _stacked(build, key, value) if wanted else "")


def _attention(build: Emit, node: Node, parts: tuple[str, str, str], total: int | None) -> Attention:
    """The common form over query, key and value, past included; `total` is the number of keys where it is known."""
    heads, x = common.heads_of(node), node.input(0)
    attention = Attention(
        *parts,
        heads=heads,
        kv_heads=heads,
        scale=common.scale_of(node, hidden_sizes(build, node)[0] // heads),
        sq=forms.known(common.dim(build, x, 1)),
        sk=total,
        bias=node.input(5),
        dtype=common.float_type(build, node.input(1), x),
        empty="computed",
    )
    if node.input(3):
        fill = float(node.attr("mask_filter_value", common.FILL))
        padding = common.Padding(node.input(3), common.dim(build, x, 0), parts[1], parts[0], total, fill, starts=True)
        attention = common.add_padding(build, attention, padding)
    causal = bool(node.attr("unidirectional", 0))
    return replace(attention, causal=True, align="bottom-right") if causal else attention


def _check(build: Emit, node: Node) -> None:
    require(not node.attr("do_rotary", 0), "do_rotary: its tables are inside onnxruntime, whose CPU kernel refuses it")
    shares = node.attr("past_present_share_buffer", 0) and node.input(4)
    require(not shares, "past_present_share_buffer: onnxruntime writes the present into the memory of the past")
    mask = build.graph.shape(node.input(3)) if node.input(3) else None
    conflict = mask is not None and len(mask) == 4 and node.attr("unidirectional", 0)
    require(not conflict, "unidirectional with a mask of rank 4, which says itself what is causal")


def hidden_sizes(build: Emit, node: Node) -> tuple[int, int, int]:
    """Sizes of query, key and value of all heads: qkv_hidden_sizes, or thirds of what the weights give."""
    whole = common.number(build, node.input(1), 1, "the size of the weights")
    given = node.attr("qkv_hidden_sizes") or [whole // 3] * 3
    require(len(given) == 3 and sum(given) == whole, f"qkv_hidden_sizes {given} for weights of {whole} columns")
    require(given[0] == given[1], f"query and key of different sizes, {given[0]} and {given[1]}")
    return given[0], given[1], given[2]


def project(build: Emit, node: Node, heads: int, sizes: tuple[int, int, int]) -> list[str]:
    """Query, key and value, [batch, heads, seq, d], of the input; weights and bias are inputs 1 and 2."""
    for size in sizes:
        common.divided(size, heads, "a hidden size")
    joined = common.with_bias(build, build.op("MatMul", node.input(0), node.input(1)), node.input(2))
    return [forms.split_heads(build, part, heads) for part in build.split(joined, 2, sizes)]


def _stacked(build: Emit, key: str, value: str) -> str:
    return build.op("Concat", build.unsqueeze(key, 0), build.unsqueeze(value, 0), axis=0)
