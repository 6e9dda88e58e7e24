"""Operators of ai.onnx.ml on numbers; MNN 3.6 has none of them (ONNX Operators-ml)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_KEYS = 4096  # of a LabelEncoder; each input is compared with all of them


_NO_IMPORT = "the model does not import ONNX's own operators"


@rule("ai.onnx.ml::Binarizer", name="binarizer")
def binarizer(graph: Graph, node: Node) -> Outcome:
    """1 above the threshold, else 0."""
    x = node.inputs[0]
    dtype = graph.dtype(x)
    if not dtype or not graph.opset():
        reason = f"the element type of '{x}' is unknown" if graph.opset() else _NO_IMPORT
        return Refusal("binarizer", node.label, reason)
    emit = Emit(graph, node)
    above = emit.op("Greater", x, emit.number(node.attr("threshold", 0.0), dtype))
    return emit.rewrite({node.outputs[0]: emit.cast(above, dtype)}, "Binarizer as Greater and Cast")


@rule("ai.onnx.ml::ArrayFeatureExtractor", name="array-feature-extractor")
def array_feature_extractor(graph: Graph, node: Node) -> Outcome:
    """Elements of the last axis; a vector becomes a row first."""
    x, indices = node.inputs
    rank = graph.rank(x)
    if not rank or not graph.opset():
        reason = f"the rank of '{x}' is unknown" if graph.opset() else _NO_IMPORT
        return Refusal("array-feature-extractor", node.label, reason)
    emit = Emit(graph, node)
    flat = emit.op("Reshape", indices, emit.ints(-1))
    x, rank = (emit.unsqueeze(x, 0), 2) if rank == 1 else (x, rank)
    y = emit.op("Gather", x, flat, axis=rank - 1)
    return emit.rewrite({node.outputs[0]: y}, "ArrayFeatureExtractor as Gather")


@rule("ai.onnx.ml::Scaler", name="scaler")
def scaler(graph: Graph, node: Node) -> Outcome:
    """(x − offset)·scale in float32, each of one number or one for each feature."""
    if not graph.opset():
        return Refusal("scaler", node.label, _NO_IMPORT)
    emit, x = Emit(graph, node), node.inputs[0]
    if graph.dtype(x) != TensorProto.FLOAT:
        x = emit.cast(x, TensorProto.FLOAT)
    for op, attribute in (("Sub", "offset"), ("Mul", "scale")):
        x = emit.op(op, x, emit.const(np.array(node.attr(attribute) or [op == "Mul"], np.float32), attribute))
    return emit.rewrite({node.outputs[0]: x}, "Scaler as Sub and Mul")


@rule("ai.onnx.ml::LabelEncoder", name="label-encoder")
def label_encoder(graph: Graph, node: Node) -> Outcome:
    """Numbers for numbers: each input is compared with every key, and the value of the equal one summed out."""
    x, rank = node.inputs[0], graph.rank(node.inputs[0])
    keys, values, default = (_table(node, name) for name in ("keys", "values", "default"))
    problem = _encoder_problem(keys, values, rank) if graph.opset() else _NO_IMPORT
    if problem or keys is None or values is None or rank is None:
        return Refusal("label-encoder", node.label, problem or "its table is not known")
    # ONNX's defaults for integers and floats.
    missing = default if default is not None else np.array(-1 if values.dtype.kind == "i" else -0.0)
    emit = Emit(graph, node)
    equal = emit.op("Equal", emit.unsqueeze(x, rank), emit.const(keys, "keys"))
    hits = emit.cast(equal, onnx.helper.np_dtype_to_tensor_dtype(values.dtype))
    found = emit.reduce("ReduceSum", emit.op("Mul", hits, emit.const(values, "values")), [rank], keepdims=False)
    known = emit.cast(emit.reduce("ReduceMax", emit.cast(equal, TensorProto.INT32), [rank], False), TensorProto.BOOL)
    default_value = emit.const(missing.reshape(()).astype(values.dtype), "default")
    y = emit.op("Where", known, found, default_value)
    return emit.rewrite({node.outputs[0]: y}, "LabelEncoder as comparisons")


def _table(node: Node, name: str) -> np.ndarray | None:
    """Keys, values or the default of a LabelEncoder, from whichever attribute has them; None for strings."""
    tensor = node.attr(f"{name}_tensor")
    if tensor is not None:
        array = onnx.numpy_helper.to_array(tensor)
        return array if array.dtype.kind in "if" else None
    for suffix, dtype in (("int64", np.int64), ("float", np.float32)):
        found = node.attr(f"{name}_{suffix}" if name == "default" else f"{name}_{suffix}s")
        if found is not None and found != []:
            return np.asarray(found, dtype)
    return None


def _encoder_problem(keys: np.ndarray | None, values: np.ndarray | None, rank: int | None) -> str | None:
    if keys is None or values is None:
        return "its keys or values are strings, which MNN does not have"
    if rank is None:
        return "the rank of its input is unknown"
    if keys.size > _KEYS or len(set(keys.tolist())) < keys.size:
        return "it has too many keys, or the same one twice"
    if not (np.isfinite(keys).all() and np.isfinite(values).all()):
        return "a key or value is not finite"
    return None


RULES: tuple[Rule, ...] = (binarizer, array_feature_extractor, scaler, label_encoder)
