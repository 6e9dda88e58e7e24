"""The structural check after each pass: definitions, order, interface, and each new node by itself."""

from __future__ import annotations

import onnx
from onnx import NodeProto

from graphkit._body import Snapshot, find_problem
from graphkit.graph import Graph
from graphkit.node import Node, type_of_info


def find_fault(graph: Graph, before: Snapshot) -> str | None:
    """What a pass broke, in words, None when nothing: values undefined or defined twice, outputs renamed or
    retyped, and nodes that the ONNX checker refuses though it accepted what stood there before.
    """
    if list(before.outputs) != graph.outputs:
        return f"the model's outputs changed from {list(before.outputs)} to {graph.outputs}"
    missing = [name for name in graph.inputs if name not in before.inputs]
    if missing:
        return f"the model has new inputs: {missing}"
    for name, info in before.outputs.items():
        declared, now = info.type.tensor_type.elem_type, graph.type(name)
        if now is not None and now.dtype and declared and now.dtype != declared:
            return f"output '{name}' changed its element type from {declared} to {now.dtype}"
        known = type_of_info(before.inferred[name]) if name in before.inferred else None
        if (
            now is not None
            and known is not None
            and None not in (known.rank, now.rank)
            and known.rank != now.rank
        ):
            return f"output '{name}' changed its rank from {known.rank} to {now.rank}"
    return find_problem(graph) or _checker_problem(graph, before)


def _checker_problem(graph: Graph, before: Snapshot) -> str | None:
    old = {id(proto) for proto in before.nodes}
    failed_before: set[str] | None = None
    for inner in graph.walk():
        for node in inner.nodes:
            if id(node.proto) in old or node.subgraphs:
                continue
            if problem := _node_problem(graph, node.proto):
                if failed_before is None:
                    failed_before = {
                        p.output[0] for p in before.nodes if p.output and _node_problem(graph, p)
                    }
                if node.outputs[0] not in failed_before:
                    return f"{_label(node)} is not valid ONNX: {problem}"
    return None


def _label(node: Node) -> str:
    return f"node '{node.label}' ({node.op})"


def _node_problem(graph: Graph, proto: NodeProto) -> str | None:
    context = onnx.checker.C.CheckerContext()
    context.ir_version = min(max(graph.model.proto.ir_version, 3), onnx.IR_VERSION)
    context.opset_imports = graph.opsets
    try:
        onnx.checker.check_node(proto, context)
    except onnx.checker.ValidationError as error:
        return str(error).strip().splitlines()[0]
    return None
