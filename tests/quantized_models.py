"""Small models with quantized operators, built for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize

MS = "com.microsoft"
Arrays = dict[str, npt.NDArray[Any]]
KINDS = {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}


def codes(rng: np.random.Generator, dtype: str, *shape: int, margin: int = 0) -> npt.NDArray[Any]:
    """Random codes over the range of a type; `margin` stays away from its ends (onnxruntime saturates sums there)."""
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min + margin, info.max + 1 - margin, shape)).astype(dtype)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str]]],
    outputs: dict[str, int],
    constants: Arrays,
    *,
    opset: int = 18,
) -> Model:
    """A model of nodes; inputs with type and shape, outputs with type, constants by name."""
    ins = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    outs = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "g", ins, outs, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return Model.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 21 else 10))


def lowered(source: Model, passes: str = "mnn") -> Model:
    """The model after passes; asserts that no quantized operator is left."""
    result = optimize(source, passes, verify="none").model
    left = [node.op for node in Graph.of(result).nodes if node.domain or "Linear" in node.op or "Integer" in node.op]
    assert not left, f"left: {left}"
    return result


def ops(source: Model) -> list[str]:
    """Operators of a model in order."""
    return [node.op for node in Graph.of(source).nodes]
