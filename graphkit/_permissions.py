"""Attributes that permit an engine to compute less exactly than the operator says: a reference does not use them.

onnxruntime's MatMulNBits rounds what it multiplies to 8 bits on the fly where `accuracy_level` is 4, which is what
most tools write; what the operator means is the product of numbers (onnxruntime, docs/ContribOperators.md: "the
minimum accuracy level of input A, can be: 0(unset), 1(fp32), 2(fp16), 3(bf16), or 4(int8)").
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

from onnx import ModelProto, NodeProto

from graphkit.model import Model, walk_nodes

_DOMAIN, _ATTRIBUTE = "com.microsoft", "accuracy_level"


def exact(model: Model) -> Model:
    """The model without such permissions; the same one when it has none."""
    if not any(_permitted(model.proto)):
        return model
    proto = copy.deepcopy(model.proto)
    for node in list(_permitted(proto)):
        kept = [attribute for attribute in node.attribute if attribute.name != _ATTRIBUTE]
        del node.attribute[:]
        node.attribute.extend(kept)
    return Model(proto, model.store, model.path)


def note(model: Model) -> str:
    """A sentence about permissions that a reference does without; empty when there are none."""
    count = sum(1 for _ in _permitted(model.proto))
    nodes = f"{count} node{'s' if count != 1 else ''}"
    return f"the reference computes exactly where {_ATTRIBUTE} permits less ({nodes})" if count else ""


def _permitted(model: ModelProto) -> Iterator[NodeProto]:
    """Nodes with a permission, in subgraphs and functions too."""
    bodies = [model.graph.node, *(body.node for body in model.functions)]
    for node in walk_nodes(node for nodes in bodies for node in nodes):
        if node.domain == _DOMAIN and any(item.name == _ATTRIBUTE and item.i for item in node.attribute):
            yield node
