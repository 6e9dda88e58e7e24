"""Whether a quantized operator has what it needs: its inputs, attributes of the right type, numbers for parameters.

Rules that compute with stored parameters look here first: shape inference knows few of these operators, and nothing
else has checked them. Sources: ONNX Operators, and onnxruntime's ContribOperators.md.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Outcome, Rule

_MS = "com.microsoft::"
_NO_NUMBERS = (TensorProto.STRING, TensorProto.BOOL, TensorProto.COMPLEX64, TensorProto.COMPLEX128)

# How many inputs there must be at least, and which of them must not be left out.
_NEEDED: Mapping[str, tuple[int, ...]] = {
    "QuantizeLinear": (0, 1),
    "DequantizeLinear": (0, 1),
    f"{_MS}QuantizeLinear": (0, 1),
    f"{_MS}DequantizeLinear": (0, 1),
    "DynamicQuantizeLinear": (0,),
    "MatMulInteger": (0, 1),
    "ConvInteger": (0, 1),
    "QLinearMatMul": tuple(range(8)),
    "QLinearConv": tuple(range(8)),
    f"{_MS}QLinearConv": tuple(range(8)),
    f"{_MS}MatMulNBits": (0, 1, 2),
    f"{_MS}MatMulBnb4": (0, 1, 2),
    f"{_MS}GatherBlockQuantized": (0, 1, 2),
    f"{_MS}QAttention": (0, 1, 2, 3, 4),
    f"{_MS}QEmbedLayerNormalization": (0, 2, 3, 5, 6, 8, 9, 11, 12, 13, 14, 16, 17),
    f"{_MS}DynamicQuantizeMatMul": (0, 1, 2),
    f"{_MS}MatMulIntegerToFloat": (0, 1, 2, 3),
    f"{_MS}DynamicQuantizeLSTM": (0, 1, 2, 8, 9, 10, 11),
    **dict.fromkeys((f"{_MS}QLinearAdd", f"{_MS}QLinearMul"), (0, 1, 3, 4, 6)),
    **dict.fromkeys((f"{_MS}QLinear{kind}" for kind in ("Sigmoid", "LeakyRelu", "Softmax")), (0, 1, 3)),
    **dict.fromkeys((f"{_MS}QLinear{kind}" for kind in ("AveragePool", "GlobalAveragePool", "ReduceMean")), (0, 1, 3)),
    f"{_MS}QLinearConcat": (0, 1, 2, 3, 4),
    f"{_MS}QLinearWhere": tuple(range(9)),
    f"{_MS}QGemm": (0, 1, 2, 3, 4, 5),
}
# Attributes without a default; those that are sizes; and the largest number that any of them can be.
_GIVEN: Mapping[str, tuple[str, ...]] = {
    f"{_MS}MatMulNBits": ("K", "N"),
    f"{_MS}MatMulBnb4": ("K", "N", "block_size", "quant_type"),
    f"{_MS}DynamicQuantizeLSTM": ("hidden_size",),
    f"{_MS}QLinearAveragePool": ("kernel_shape",),
    f"{_MS}QAttention": ("num_heads",),
}
_WHOLE: tuple[str, ...] = ("axis", "block_size", "K", "N", "bits", "quant_type", "transA", "transB", "group")
_WHOLE += ("gather_axis", "quantize_axis", "output_dtype", "hidden_size", "keepdims", "channels_last", "opset")
_WHOLE += ("num_heads", "unidirectional", "do_rotary", "weight_prepacked", "accuracy_level", "ceil_mode")
_WHOLE += ("count_include_pad",)
_SIZES = ("K", "N", "bits", "group", "num_heads", "hidden_size")
_LISTS = ("kernel_shape", "strides", "pads", "dilations", "axes")
_REALS = ("alpha", "epsilon", "mask_filter_value")
_LARGEST = 1 << 31


def unsound(graph: Graph, node: Node) -> str:
    """What a quantized operator lacks, or has of a type that it cannot be, in words; empty when nothing is known."""
    needed = _NEEDED.get(node.op, ())
    missing = next((index for index in needed if not node.input(index)), None)
    if missing is not None:
        return f"it lacks its input {missing}"
    return _odd_attribute(node) or _odd_value(graph, node)


def _odd_attribute(node: Node) -> str:
    for name in _GIVEN.get(node.op, ()):
        if node.attr(name) is None:
            return f"it lacks its attribute '{name}'"
    block = 1 if node.op == f"{_MS}MatMulBnb4" else 0
    for name, value in node.attrs.items():
        least = 1 if name in _SIZES else block if name == "block_size" else -_LARGEST
        if not _fits(name, value, least):
            return f"its attribute '{name}' is {value!r}"
    return ""


def _fits(name: str, value: Any, least: int) -> bool:
    if name in _WHOLE:
        return isinstance(value, int) and least <= value < _LARGEST
    if name in _LISTS:
        return isinstance(value, list | tuple) and all(isinstance(item, int) and abs(item) < _LARGEST for item in value)
    return name not in _REALS or isinstance(value, Real)


def _odd_value(graph: Graph, node: Node) -> str:
    """An input that holds text or truth values where numbers belong; only a condition is made of these."""
    first = 1 if node.op == f"{_MS}QLinearWhere" else 0
    for value in node.inputs[first:]:
        if value and graph.dtype(value) in _NO_NUMBERS:
            return f"'{value}' is {TensorProto.DataType.Name(graph.dtype(value)).lower()}, no numbers"
    return ""


def guarded(*rules: Rule) -> tuple[Rule, ...]:
    """The rules, each with a refusal where the operator is not sound."""
    return tuple(map(_guarded, rules))


def _guarded(rule: Rule) -> Rule:
    @functools.wraps(rule.match)
    def match(graph: Graph, node: Node) -> Outcome:
        problem = unsound(graph, node) if node.op in _NEEDED else ""
        return rule.refuse(node, problem) if problem else rule.match(graph, node)

    return replace(rule, match=match)
