"""MatMulNBits and MatMulBnb4: products with weights of a few bits, as float weights.

Quantization that MNN runs is planned on the float model, so the weights are made float here and nowhere else.
"""

from __future__ import annotations

import numpy as np
import onnx

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes._quantized_params import guarded
from graphkit.rewrite import Outcome, Rule, rule

_BITS = (2, 4, 8)


@rule("com.microsoft::MatMulNBits", name="matmul-n-bits")
def matmul_n_bits(graph: Graph, node: Node) -> Outcome:
    """A · Wᵀ with W = (codes − zero points) · scales in blocks along K, written as a float weight."""
    build, bits = Emit(graph, node), int(node.attr("bits", 4))
    if bits not in _BITS or node.attr("weight_prepacked", 0):
        return matmul_n_bits.refuse(node, f"weights of {bits} bits, or packed for one machine")
    arrays = [graph.constant(name) for name in node.inputs[1:3]]
    zeros, groups = (graph.constant(name) if (name := node.input(index)) else None for index in (3, 4))
    if (
        any(array is None for array in arrays)
        or (node.input(3) and zeros is None)
        or (node.input(4) and groups is None)
    ):
        return matmul_n_bits.refuse(node, "weights, scales or zero points are not constant")
    codes, scales = (array for array in arrays if array is not None)
    if groups is not None and (bits == 2 or (zeros is not None and zeros.dtype == np.uint8)):
        what = "codes of 2 bits" if bits == 2 else "packed zero points, which it takes for the middle of the range"
        return matmul_n_bits.refuse(node, f"onnxruntime itself computes g_idx with {what} wrong: nothing would tell")
    if codes.dtype != np.uint8 or scales.dtype.kind != "f":
        return matmul_n_bits.refuse(node, f"weights of {codes.dtype.name} with scales of {scales.dtype.name}")
    weight = dequantized(codes, scales, zeros, groups, bits, int(node.attr("K")), int(node.attr("N")))
    if weight is None:
        return matmul_n_bits.refuse(node, "the shapes of weights, scales and zero points do not belong together")
    y = build.op("MatMul", node.inputs[0], build.const(weight.T.astype(scales.dtype), "weight"))
    y = build.op("Add", y, node.input(5)) if node.input(5) else y
    return build.rewrite({node.outputs[0]: y}, f"MatMul with {bits}-bit weights made float")


def dequantized(
    codes: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | None,
    groups: np.ndarray | None,
    bits: int,
    inputs: int,
    outputs: int,
) -> np.ndarray | None:
    """Float32 weights [outputs, inputs] of packed codes [outputs, blocks, bytes]; None when sizes do not fit.

    Codes lie in each byte from the lowest bits up. `zeros` are packed codes, or numbers per block; without them
    it is the middle of the range. `groups` names the block of each input where blocks are not in order; onnxruntime
    takes it for whole blocks too, and reads the first `inputs`.
    """
    if not scales.size or scales.size % outputs or not codes.size or codes.size % scales.size:
        return None
    blocks = scales.size // outputs
    unpacked = _unpack(codes.reshape(outputs, -1), bits)
    block = unpacked.shape[1] // blocks
    if groups is not None and (groups.dtype.kind not in "iu" or groups.size not in (inputs, blocks * block)):
        return None
    index = np.minimum(np.arange(inputs) // block, blocks - 1) if groups is None else groups.reshape(-1)[:inputs]
    if unpacked.shape[1] < inputs or index.size != inputs or index.min() < 0 or index.max() >= blocks:
        return None
    offset = np.full((outputs, blocks), 2.0 ** (bits - 1), np.float32)
    if zeros is not None:
        points = _points(zeros, outputs, blocks, bits)
        if points is None:
            return None
        offset = points
    factor = scales.reshape(outputs, blocks).astype(np.float32)
    weight: np.ndarray = (unpacked[:, :inputs].astype(np.float32) - offset[:, index]) * factor[:, index]
    return weight


def _points(zeros: np.ndarray, outputs: int, blocks: int, bits: int) -> np.ndarray | None:
    """Zero points [outputs, blocks] as float32, packed in bytes or as they are; None when their number does not fit."""
    packed = zeros.dtype == np.uint8
    if zeros.size != outputs * (-(-blocks * bits // 8) if packed else blocks):
        return None
    rows = zeros.reshape(outputs, -1)
    return (_unpack(rows, bits)[:, :blocks] if packed else rows).astype(np.float32)


def _unpack(rows: np.ndarray, bits: int) -> np.ndarray:
    """Codes of each row of bytes, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: np.ndarray = (rows.astype(np.uint8)[:, :, None] >> shifts) & (2**bits - 1)
    return codes.reshape(rows.shape[0], -1)


# Dettmers et al., "QLoRA", 2023: the 16 levels of NF4; FP4 is a sign, two bits of exponent and one of mantissa.
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_FP4_HALF = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)


@rule("com.microsoft::MatMulBnb4", name="matmul-bnb4")
def matmul_bnb4(graph: Graph, node: Node) -> Outcome:
    """A · Wᵀ with W = levels[codes] · absmax in blocks, written as a float weight."""
    build, codes, scales = Emit(graph, node), graph.constant(node.inputs[1]), graph.constant(node.inputs[2])
    size, kind = int(node.attr("block_size")), node.attr("quant_type")
    if codes is None or scales is None or not node.attr("transB", 1) or kind not in (0, 1):
        return matmul_bnb4.refuse(node, "weights or scales are not constant, or not stored the usual way")
    inputs, outputs = int(node.attr("K")), int(node.attr("N"))
    if codes.dtype != np.uint8 or codes.size * 2 < inputs * outputs or scales.size * size < inputs * outputs:
        return matmul_bnb4.refuse(node, f"{codes.size} bytes and {scales.size} scales do not make {inputs} × {outputs}")
    levels = np.array(_NF4 if kind else (*_FP4_HALF, *(-x for x in _FP4_HALF)), np.float32)
    flat = codes.reshape(-1)
    unpacked = np.stack([flat >> 4, flat & 15], 1).reshape(-1)[: inputs * outputs]
    weight = levels[unpacked] * scales.astype(np.float32).reshape(-1)[np.arange(inputs * outputs) // size]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(graph.dtype(node.inputs[2]))
    y = build.op("MatMul", node.inputs[0], build.const(weight.reshape(outputs, inputs).T.astype(dtype), "weight"))
    return build.rewrite({node.outputs[0]: y}, "MatMul with 4-bit weights made float")


RULES: tuple[Rule, ...] = guarded(matmul_n_bits, matmul_bnb4)
