"""Constant nodes: how they are made and what their values are."""

from __future__ import annotations

from typing import cast

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto

from graphkit.node import Node
from graphkit.weights import Weight, WeightStore


def constant_proto(weight: Weight) -> NodeProto:
    """A Constant node that makes the value of `weight` under its name."""
    proto = NodeProto(op_type="Constant", output=[weight.name], name=f"{weight.name}/Constant")
    attribute = proto.attribute.add(name="value", type=AttributeProto.TENSOR)
    attribute.t.CopyFrom(weight.proto)
    return proto


def constant_node_value(node: Node, store: WeightStore) -> np.ndarray | None:
    """Value of a Constant node of any attribute form, None for other nodes and sparse values."""
    if node.op_type != "Constant" or node.domain:
        return None
    if node._value is None and node.proto.attribute:
        node._value = _decode_constant(node.proto.attribute[0], store)
    return cast("np.ndarray | None", node._value)


def _decode_constant(attribute: AttributeProto, store: WeightStore) -> np.ndarray | None:
    name = attribute.name
    if attribute.ref_attr_name:  # a parameter of the function it stands in
        return None
    if name == "value":
        return Weight(attribute.t, store).array()
    value = onnx.helper.get_attribute_value(attribute)
    dtypes = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    if name in dtypes:
        return np.array(list(value) if name.endswith("s") else value, dtype=dtypes[name])
    if name in ("value_string", "value_strings"):
        return np.array(list(value) if name.endswith("s") else value, dtype=object)
    return None
