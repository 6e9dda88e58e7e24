"""onnxruntime's operators on quantized weights, and those on quantized activations that float ones replace.

Source: onnxruntime's contrib operators.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._quantized_params import guarded
from graphkit.passes.lowering._quantized_emit import MisfitError, QuantizedEmit
from graphkit.passes.lowering.quantized_dynamic import column, one
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_MS = "com.microsoft"


@rule(f"{_MS}::QAttention", name="qattention")
def qattention(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: Attention on the numbers that input and weights stand for."""
    x, w, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (node.input(i) for i in range(9))
    build = QuantizedEmit(graph, node)
    try:
        steps = build.floats(x)
        steps = build.binary("Sub", steps, one(build, x_zero)) if x_zero else steps
        weights = build.floats(w)
        weights = build.binary("Sub", weights, column(build, w_zero, 2)) if w_zero else weights
        numbers = build.named(build.binary("Mul", steps, one(build, x_scale)))
        floats = build.named(build.binary("Mul", weights, column(build, w_scale, 2)))
    except MisfitError as error:
        return Refusal("qattention", node.label, str(error))
    ins = [numbers, floats, build.named(build.floats(bias)), mask, past]
    while not ins[-1]:
        ins.pop()
    names = ("num_heads", "unidirectional", "do_rotary", "mask_filter_value")
    attrs = {key: value for key, value in node.attrs.items() if key in names}
    first = build.op("Attention", *ins, domain=_MS, outputs=len(node.outputs), **attrs)
    made = [first, *build.nodes[-1].output[1:]]
    return build.rewrite({old: new for old, new in zip(node.outputs, made, strict=True) if old}, "QAttention in float")


@rule(f"{_MS}::QEmbedLayerNormalization", name="qembed-layernorm")
def qembed_layernorm(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: EmbedLayerNormalization on the numbers that the tables stand for."""
    build = QuantizedEmit(graph, node)
    tables = []
    try:
        for index in range(2, 7):
            codes, scale, zero = node.input(index), node.input(index + 6), node.input(index + 11)
            if codes:
                steps = build.binary("Sub", build.floats(codes), one(build, zero))
                tables.append(build.named(build.binary("Mul", steps, one(build, scale))))
            else:
                tables.append("")
    except MisfitError as error:
        return Refusal("qembed-layernorm", node.label, str(error))
    ins = [node.input(0), node.input(1), *tables, *([node.input(7)] if node.input(7) else [])]
    epsilon = node.attr("epsilon", 1e-12)
    first = build.op("EmbedLayerNormalization", *ins, domain=_MS, outputs=len(node.outputs), epsilon=epsilon)
    made = [first, *build.nodes[-1].output[1:]]
    outputs = {old: new for old, new in zip(node.outputs, made, strict=True) if old}
    return build.rewrite(outputs, "QEmbedLayerNormalization in float")


@rule(f"{_MS}::GatherBlockQuantized", name="gather-block-quantized")
def gather_block_quantized(graph: Graph, node: Node) -> Outcome:
    """MNN lacks it: rows of bytes are gathered and then scaled block by block, so the table stays bytes in MNN."""
    indices, rank = node.inputs[1], graph.rank(node.inputs[1])
    found = block_table(graph, node)
    if isinstance(found, str) or rank is None:
        reason = found if isinstance(found, str) else "the rank of its indices is unknown"
        return Refusal("gather-block-quantized", node.label, reason)
    codes, scales, zeros = found
    block = codes.shape[1] // scales.shape[1]
    build = QuantizedEmit(graph, node)
    table = build.const(codes.reshape(len(codes), -1, block), "table")
    rows = build.cast(build.op("Gather", table, indices, axis=0), TensorProto.FLOAT)
    if zeros.any():
        rows = build.op("Sub", rows, build.op("Gather", build.const(zeros[..., None], "zeros"), indices, axis=0))
    factors = build.const(scales.astype(np.float32)[..., None], "scales")
    rows = build.op("Mul", rows, build.op("Gather", factors, indices, axis=0))
    rows = build.op("Reshape", rows, build.ints(*[0] * rank, codes.shape[1]))
    value = build.result(rows, graph.dtype(node.inputs[2]))
    return build.rewrite({node.outputs[0]: value}, "GatherBlockQuantized as Gather of bytes")


def block_table(graph: Graph, node: Node) -> tuple[np.ndarray, np.ndarray, np.ndarray] | str:
    """Codes of a GatherBlockQuantized at a byte each [rows, columns], scales and zero points [rows, blocks]; or why
    they cannot be had.
    """
    codes, scales = _codes(graph, node), graph.constant(node.inputs[2])
    block = int(node.attr("block_size", 128))
    if codes is None or scales is None or not codes.size:
        return "its table is not a constant matrix"
    if (
        node.attr("gather_axis", 0) != 0
        or node.attr("quantize_axis", 1) % 2 != 1
        or not block
        or codes.shape[1] % block
    ):
        return "rows are not along axis 0, blocks not along axis 1, or the last block is not whole"
    if scales.shape != (codes.shape[0], codes.shape[1] // block):
        return f"scales of shape {list(scales.shape)} do not fit a table of {list(codes.shape)} in blocks of {block}"
    zeros = _zeros(graph, node, scales.shape)
    return zeros if isinstance(zeros, str) else (codes, scales, zeros)


def _packed(graph: Graph, node: Node) -> bool:
    """True when a byte holds two codes, the first in its low half."""
    return graph.dtype(node.inputs[0]) == TensorProto.UINT8 and int(node.attr("bits", 4)) == 4


def _halves(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def _codes(graph: Graph, node: Node) -> np.ndarray | None:
    """The table as bytes."""
    stored = graph.constant(node.inputs[0])
    if stored is None or stored.ndim != 2:
        return None
    if _packed(graph, node):
        return _halves(stored)
    whole = stored.dtype.kind in "iu" or stored.dtype.name in ("int4", "uint4")
    return None if not whole else stored if stored.dtype == np.uint8 else stored.astype(np.int8)


def _zeros(graph: Graph, node: Node, shape: tuple[int, ...]) -> np.ndarray | str:
    """Zero points as float32 in the scales' shape; without the input the middle of a byte's codes, else zero."""
    if not node.input(3):
        middle = 2 ** (int(node.attr("bits", 4)) - 1) if graph.dtype(node.inputs[0]) == TensorProto.UINT8 else 0
        return np.full(shape, middle, np.float32)
    stored = graph.constant(node.input(3))
    if stored is None:
        return "its zero points are not constant"
    if stored.ndim and stored.dtype.kind in "iu" and _packed(graph, node):
        stored = _halves(stored)[..., : shape[-1]]
    if stored.shape != shape:
        return f"zero points of shape {list(stored.shape)} do not fit scales of shape {list(shape)}"
    return stored.astype(np.float32)


RULES: tuple[Rule, ...] = guarded(qattention, qembed_layernorm, gather_block_quantized)
