"""What MNNConvert gets: tensors as raw bytes, whatever field the model keeps them in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphkit.mnn.handoff import write
from graphkit.mnn.road import convert
from graphkit.model import Model

KINDS = ("INT8", "UINT8", "BOOL", "INT16", "UINT16", "UINT32", "FLOAT16")


def table(kind: str, *, constant: bool) -> Model:
    """Rows of a table whose numbers are in a typed field, as `helper.make_tensor` writes them."""
    code = getattr(TensorProto, kind)
    low, high = {"BOOL": (0, 2), "INT8": (-100, 100), "INT16": (-100, 100)}.get(kind, (0, 100))
    numbers = np.random.default_rng(0).integers(low, high, 5 * 8).tolist()
    held = helper.make_tensor("c", code, [5, 8], numbers)
    nodes = [helper.make_node("Constant", [], ["c"], value=held)] if constant else []
    nodes += [helper.make_node("Gather", ["c", "i"], ["t"]), helper.make_node("Cast", ["t"], ["y"], to=1)]
    ins = [helper.make_tensor_value_info("i", TensorProto.INT64, [4])]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])]
    graph = helper.make_graph(nodes, "g", ins, outs, [] if constant else [held])
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_in_typed_fields_are_handed_over_as_raw_bytes(kind: str, constant: bool, tmp_path: Path) -> None:
    model = table(kind, constant=constant)
    before = model.proto.SerializeToString()
    write(model, tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    held = proto.graph.node[0].attribute[0].t if constant else proto.graph.initializer[0]
    source = model.proto.graph.node[0].attribute[0].t if constant else model.proto.graph.initializer[0]
    assert held.raw_data
    assert not held.int32_data
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(held), onnx.numpy_helper.to_array(source))
    assert model.proto.SerializeToString() == before


@pytest.mark.parametrize("kind", ["INT8", "BOOL", "UINT16"])
def test_tables_in_typed_fields_are_right_in_mnn(kind: str, tmp_path: Path) -> None:
    result = convert(table(kind, constant=False), tmp_path / "m.mnn", passes=None)
    assert result.proof.kind == "equal"
