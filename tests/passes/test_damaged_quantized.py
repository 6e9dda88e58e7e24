"""Quantized operators whose parameters are damaged: refused, with the node named; never a bug of ours."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from graphkit.errors import GraphkitError
from graphkit.mnn.carry.lift import lift
from graphkit.mnn.preflight import check
from graphkit.model import Model
from graphkit.optimizer import optimize

Array = npt.NDArray[Any]
MS = "com.microsoft"
_U8, _I8 = np.uint8, np.int8
_ONE, _POINT = np.array(0.1, np.float32), np.array(3, _U8)


def _codes(kind: Any, *shape: int) -> Array:
    return np.asarray(np.random.default_rng(0).integers(0, 100, shape)).astype(kind)


def _scales(*shape: int) -> Array:
    return np.full(shape, 0.1, np.float32)


# Operator: inputs in order ("x" and "i" are inputs of the model: their shape and type), attributes.
_X, _Q = np.zeros((3, 8), np.float32), np.zeros((3, 8), _U8)
_TRIPLE = {"q": _Q, "qs": _ONE, "qz": _POINT}
_RESULT = {"ys": _ONE, "yz": _POINT}
_MATRIX = {"c": _codes(_I8, 8, 16), "s": _scales(16), "z": _codes(_I8, 16)}
_SCALED: dict[str, tuple[dict[str, Array], dict[str, Any]]] = {
    "DequantizeLinear": ({**_MATRIX}, {"axis": 1}),
    "DequantizeLinear/blocks": (
        {"c": _codes(_I8, 8, 16), "s": _scales(2, 16), "z": _codes(_I8, 2, 16)},
        {"axis": 0, "block_size": 4},
    ),
    "DequantizeLinear/live": ({"q": _Q, "s": _scales(8), "z": _codes(_U8, 8)}, {"axis": 1}),
    f"{MS}::DequantizeLinear": ({**_MATRIX}, {"axis": 1}),
    "QuantizeLinear": ({"x": _X, "s": _scales(8), "z": _codes(_U8, 8)}, {"axis": 1}),
    "QuantizeLinear/weights": ({"w": _scales(8, 16), "s": _scales(16), "z": _codes(_U8, 16)}, {"axis": 1}),
    "DynamicQuantizeLinear": ({"x": _X}, {}),
    f"{MS}::MatMulNBits": (
        {"x": _X, "c": _codes(_U8, 16, 1, 8), "s": _scales(16), "z": _codes(_U8, 16), "g": np.zeros(8, np.int32)},
        {"K": 8, "N": 16, "bits": 4, "block_size": 16},
    ),
    f"{MS}::MatMulBnb4": (
        {"x": _X, "c": _codes(_U8, 64), "s": _scales(8)},
        {"K": 8, "N": 16, "block_size": 16, "quant_type": 1},
    ),
    f"{MS}::GatherBlockQuantized": (
        {"c": _codes(_U8, 9, 32), "i": np.zeros((2, 3), np.int64), "s": _scales(9, 2), "z": _codes(_U8, 9, 2)},
        {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 8},
    ),
    f"{MS}::GatherBlockQuantized/halves": (
        {"c": _codes(_U8, 9, 16), "i": np.zeros((2, 3), np.int64), "s": _scales(9, 2), "z": _codes(_U8, 9, 1)},
        {"block_size": 16, "gather_axis": 0, "quantize_axis": 1, "bits": 4},
    ),
    "MatMulInteger": ({"q": _Q, "c": _codes(_I8, 8, 16), "qz": _POINT, "z": _codes(_I8, 16)}, {}),
    "ConvInteger": ({"q": np.zeros((1, 4, 6, 6), _U8), "c": _codes(_I8, 5, 4, 3, 3), "qz": _POINT}, {}),
    "QLinearMatMul": ({**_TRIPLE, **_MATRIX, **_RESULT}, {}),
    "QLinearConv": (
        {"q": np.zeros((1, 4, 6, 6), _U8), "qs": _ONE, "qz": _POINT, "c": _codes(_I8, 5, 4, 3, 3), "s": _scales(5),
         "z": _codes(_I8, 5), **_RESULT, "b": _codes(np.int32, 5)},
        {"kernel_shape": [3, 3]},
    ),
    f"{MS}::QLinearAdd": ({**_TRIPLE, "c": _codes(_U8, 8), "s": _ONE, "z": _POINT, **_RESULT}, {}),
    f"{MS}::QLinearMul": ({**_TRIPLE, "c": _codes(_U8, 8), "s": _ONE, "z": _POINT, **_RESULT}, {}),
    f"{MS}::QLinearSigmoid": ({**_TRIPLE, **_RESULT}, {}),
    f"{MS}::QLinearLeakyRelu": ({**_TRIPLE, **_RESULT}, {"alpha": 0.1}),
    f"{MS}::QLinearSoftmax": ({**_TRIPLE, **_RESULT}, {"opset": 13, "axis": 1}),
    f"{MS}::QLinearAveragePool": (
        {"q": np.zeros((1, 4, 6, 6), _U8), "qs": _ONE, "qz": _POINT, **_RESULT},
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    f"{MS}::QLinearGlobalAveragePool": (
        {"q": np.zeros((1, 4, 6, 6), _U8), "qs": _ONE, "qz": _POINT, **_RESULT}, {"channels_last": 0},
    ),
    f"{MS}::QLinearReduceMean": ({**_TRIPLE, **_RESULT}, {"axes": [1], "keepdims": 1}),
    f"{MS}::QLinearConcat": ({**_RESULT, **_TRIPLE, "c": _codes(_U8, 3, 2), "s": _ONE, "z": _POINT}, {"axis": 1}),
    f"{MS}::QLinearWhere": (
        {"w": np.ones((3, 8), bool), **_TRIPLE, "c": _codes(_U8, 3, 8), "s": _ONE, "z": _POINT, **_RESULT},
        {},
    ),
    f"{MS}::QGemm": (
        {**_TRIPLE, **_MATRIX, "b": _codes(np.int32, 16),
         **_RESULT},
        {"transA": 0, "transB": 0, "alpha": 1.0},
    ),
    f"{MS}::MatMulIntegerToFloat": (
        {"q": _Q, "c": _codes(_I8, 8, 16), "qs": _ONE, "s": _scales(16), "qz": _POINT,
         "z": _codes(_I8, 16), "b": _scales(16)},
        {},
    ),
    f"{MS}::DynamicQuantizeMatMul": (
        {"x": _X, **_MATRIX, "b": _scales(16)}, {},
    ),
    f"{MS}::DynamicQuantizeLSTM": (
        {"x": np.zeros((4, 1, 6), np.float32), "c": _codes(_I8, 1, 6, 16), "r": _codes(_I8, 1, 4, 16),
         "": _ONE, "_1": _ONE, "_2": _ONE, "_3": _ONE, "_4": _ONE,
         "cs": _scales(1), "cz": _codes(_I8, 1), "rs": _scales(1), "rz": _codes(_I8, 1)},
        {"hidden_size": 4},
    ),
    f"{MS}::QAttention": (
        {"q": np.zeros((1, 3, 8), _U8), "c": _codes(_I8, 8, 24), "b": _scales(24), "qs": _ONE, "s": _scales(24),
         "": _ONE, "qz": _POINT, "z": _codes(_I8, 24)},
        {"num_heads": 2},
    ),
}  # fmt: skip
_LIVE = {"x", "q", "i"}
_BUGS = (ValueError, TypeError, IndexError, KeyError, AttributeError, ArithmeticError, AssertionError)


def _built(op: str) -> onnx.ModelProto:
    """A model of one quantized operator, well formed."""
    inputs, attrs = _SCALED[op]
    domain, _, name = op.partition("/")[0].rpartition("::")
    names = ["" if key.startswith("_") else key for key in inputs]
    node = helper.make_node(name, names, ["y"], name="broken", domain=domain, **attrs)
    kinds = {key: helper.np_dtype_to_tensor_dtype(inputs[key].dtype) for key in inputs}
    ins = [helper.make_tensor_value_info(key, kinds[key], inputs[key].shape) for key in inputs if key in _LIVE]
    held = [numpy_helper.from_array(array, key) for key, array in inputs.items() if key not in _LIVE and key in names]
    out = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "g", ins, [out], [tensor for tensor in held if tensor.name])
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _damaged(op: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model with one thing about its operator damaged at a time; what, in words."""
    sound = _built(op)
    for tensor in sound.graph.initializer:
        for what, array in _wrong(numpy_helper.to_array(tensor)):
            made = copy.deepcopy(sound)
            held = next(other for other in made.graph.initializer if other.name == tensor.name)
            held.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))
            yield f"{tensor.name} {what}", made
    node = sound.graph.node[0]
    for index, name in enumerate(node.input):
        for what in ("left out", "cut off", "unknown") if name else ():
            made = copy.deepcopy(sound)
            _unplug(made.graph.node[0], index, what)
            yield f"{name} {what}", made
    for attribute in node.attribute:
        for value in (None, *_WRONG[attribute.type]):
            made = copy.deepcopy(sound)
            changed = made.graph.node[0]
            kept = [other for other in changed.attribute if other.name != attribute.name]
            del changed.attribute[:]
            changed.attribute.extend(kept)
            if value is not None:
                changed.attribute.append(helper.make_attribute(attribute.name, value))
            yield f"{attribute.name} = {value}", made
    for name in list(_LIVE & {value.name for value in sound.graph.input}):
        for dims in ([], [1], None, [3, 8, 2], ["n", "m"], [0, 8]):
            made = copy.deepcopy(sound)
            held_type = next(value for value in made.graph.input if value.name == name).type.tensor_type
            fresh = helper.make_tensor_value_info(name, held_type.elem_type, dims)
            next(value for value in made.graph.input if value.name == name).CopyFrom(fresh)
            yield f"{name} of shape {dims}", made


_INT, _INTS, _FLOAT = onnx.AttributeProto.INT, onnx.AttributeProto.INTS, onnx.AttributeProto.FLOAT
_WRONG: dict[int, tuple[Any, ...]] = {
    _INT: (0, -1, 3, 7, 1000, -(2**40), 2**40, "text", 1.5, [1, 2]),
    _INTS: ([0], [-1, -1], [99], 3),
    _FLOAT: (float("nan"), "text"),
}


def _wrong(array: Array) -> Iterator[tuple[str, Array]]:
    """The same parameter too long, too short, empty, of another rank or of another type."""
    flat = array.reshape(-1)
    yield "empty", flat[:0]
    yield "too long", np.concatenate([flat, flat, flat])
    yield "one too long", np.concatenate([flat, flat[:1]])
    yield "of one element", flat[:1]
    yield "of another rank", array[None]
    yield "a scalar", flat[0]
    yield "flat", flat
    if flat.size > 1:
        yield "one too short", flat[:-1]
    if flat.size > 3:
        yield "of three", flat[:3]
    if array.ndim > 1:
        yield "without rows", array[:0]
        yield "without columns", array[..., :0]
        yield "transposed", array.T
    for kind in (np.float32, np.float16, np.uint8, np.int8, np.int32, np.int64, np.float64, np.bool_):
        if array.dtype != kind:
            yield f"of {np.dtype(kind).name}", array.astype(kind)
    yield "text", np.array(["a"] * flat.size, object).reshape(array.shape)


def _unplug(node: NodeProto, index: int, what: str) -> None:
    if what == "cut off":
        del node.input[index:]
    else:
        node.input[index] = "" if what == "left out" else "nobody"


@pytest.mark.parametrize("op", _SCALED)
def test_damaged_parameters_are_the_models_fault(op: str) -> None:
    faults = []
    for what, proto in [("nothing", _built(op)), *_damaged(op)]:
        for road in (_check, _strip, _lift):
            try:
                road(Model.from_proto(proto))
            except GraphkitError as error:
                if error.exit_code == 4:
                    faults.append(f"{what}, {road.__name__}: {error}")
            except _BUGS as error:
                faults.append(f"{what}, {road.__name__}: {type(error).__name__}: {error}")
    assert not faults, "\n".join(faults)


def _check(model: Model) -> None:
    check(model)


def _strip(model: Model) -> None:
    optimize(model, "strip-activation-qdq,dequantize-weights,default", verify="none")


def _lift(model: Model) -> None:
    for weight in lift(model):
        for form in weight.forms:
            weight.parts(form)
