"""Activations and normalizations in the forms that MNN runs right, most of them as one operator."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.fuse_rmsnorm import write_spelling

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
LAYERNORM_OPSET = 17


class Floats:
    """Computes in float32 where the model has half precision, as fused kernels do inside.

    `up` brings a value in, `down` brings the result back. `dtype` is the element type in between, 0 when that of
    the node is unknown.
    """

    def __init__(self, build: Emit, *values: str) -> None:
        self.build = build
        self.outside = next((dtype for value in values if value and (dtype := build.graph.dtype(value))), 0)
        self.dtype: int = TensorProto.FLOAT if self.outside in _HALF else self.outside

    def up(self, x: str) -> str:
        """The value in the type to compute in."""
        kind = self.build.graph.dtype(x) or self.outside
        return self.build.cast(x, self.dtype) if kind in _HALF else x

    def down(self, y: str) -> str:
        """The result in the type of the model."""
        return self.build.cast(y, self.outside) if self.outside in _HALF else y

    def number(self, value: float) -> str:
        """A scalar of the type to compute in."""
        return self.build.number(value, self.dtype)


def gelu_erf(at: Floats, x: str) -> str:
    """x · ½(1 + erf(x/√2)) in the order that MNN fuses (Hendrycks and Gimpel, 2016)."""
    build = at.build
    erf = build.op("Erf", build.op("Mul", x, at.number(0.5**0.5)))
    return build.op("Mul", build.op("Mul", x, build.op("Add", erf, at.number(1))), at.number(0.5))


def gelu_tanh(at: Floats, x: str) -> str:
    """x · ½(1 + tanh(√(2/π)(x + 0.044715 x³))) in the order that MNN fuses."""
    build = at.build
    cube = build.op("Mul", build.op("Pow", x, at.number(3)), at.number(0.044715))
    inside = build.op("Mul", build.op("Add", x, cube), at.number((2 / np.pi) ** 0.5))
    half = build.op("Mul", build.op("Add", build.op("Tanh", inside), at.number(1)), at.number(0.5))
    return build.op("Mul", x, half)


def swish(at: Floats, x: str, alpha: float = 1.0) -> str:
    """x · sigmoid(alpha · x); MNN has it for alpha = 1."""
    inside = x if alpha == 1 else at.build.op("Mul", x, at.number(alpha))
    return at.build.op("Mul", x, at.build.op("Sigmoid", inside))


def softplus(at: Floats, x: str) -> str:
    """log(1 + eˣ) as max(x, softplus(min(x, 80))): MNN's own stops growing at 87."""
    build = at.build
    return build.op("Max", x, build.op("Softplus", build.op("Min", x, at.number(80))))


def mish(at: Floats, x: str) -> str:
    """x · tanh(softplus(x)) (Misra, 2019); from 20 on the factor is 1."""
    build = at.build
    return build.op("Mul", x, build.op("Tanh", build.op("Softplus", build.op("Min", x, at.number(20)))))


def layer_norm(at: Floats, x: str, scale: str, bias: str, epsilon: float) -> str:
    """LayerNormalization over the last axis; below opset 17 in the operators that MNN fuses to it."""
    build = at.build
    if build.opset >= LAYERNORM_OPSET:
        inputs = [x, scale, *([bias] if bias else [])]
        return build.op("LayerNormalization", *inputs, axis=-1, epsilon=epsilon)
    centred = build.op("Sub", x, build.reduce("ReduceMean", x, [-1]))
    variance = build.reduce("ReduceMean", build.op("Pow", centred, at.number(2)), [-1])
    root = build.op("Sqrt", build.op("Add", variance, at.number(epsilon)))
    y = build.op("Mul", build.op("Div", centred, root), scale)
    return build.op("Add", y, bias) if bias else y


def rms_norm(at: Floats, x: str, scale: str, epsilon: float, axes: tuple[int, ...] = (-1,)) -> str:
    """x / √(mean(x²) + ε) · scale (Zhang and Sennrich, 2019)."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(at.dtype)
    return at.build.op("Mul", write_spelling(at.build, x, axes, epsilon, np.dtype(dtype)), scale)


def group_norm(at: Floats, x: str, groups: int, epsilon: float) -> str:
    """Mean 0 and variance 1 over the channels of each group and all axes behind; no scale yet (Wu and He, 2018)."""
    build, dtype = at.build, onnx.helper.tensor_dtype_to_np_dtype(at.dtype)
    grouped = build.op("Reshape", x, build.ints(0, groups, -1))
    ones, zeros = build.const(np.ones(groups, dtype)), build.const(np.zeros(groups, dtype))
    y = build.op("InstanceNormalization", grouped, ones, zeros, epsilon=epsilon)
    return build.op("Reshape", y, build.op("Shape", x))


def per_channel(build: Emit, values: str, rank: int) -> str:
    """A vector with an entry for each channel in the shape [C, 1, …], to go with [N, C, …]."""
    return values if rank <= 2 else build.unsqueeze(values, *range(1, rank - 1))


def used(graph: Graph, node: Node, index: int) -> bool:
    """True when somebody wants this output."""
    return index < len(node.outputs) and bool(node.outputs[index]) and graph.is_used(node.outputs[index])
