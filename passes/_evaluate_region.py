"""Compute the values of a region of constant nodes: data movement in numpy, the rest in onnxruntime.

A region runs as one small model, without optimizations, so that every operator means exactly what it means in
the reference. Where onnxruntime refuses the whole, halves are tried, and for a single node ONNX's reference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from graphkit import _body
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.symbolic.evaluate import Scope, values_of
from graphkit.weights import make_weight

Values = dict[str, np.ndarray]

_FED_BYTES = 1 << 16  # larger constants are fed as arrays, not copied into the model
_log = logging.getLogger(__name__)


def evaluate(
    graph: Graph, nodes: Sequence[Node], wanted: Sequence[str], scope: Scope
) -> tuple[Values, dict[Node, str]]:
    """Values of `wanted`, and the nodes that could not be computed with reasons.

    `nodes` are in order and depend on constants and on each other only; where one fails, what needs it is
    missing from the values too, and more values than the wanted ones may be there.
    """
    values: Values = {}
    _from_scope(nodes, scope, values)
    missing = [value for value in wanted if value not in values]
    needed = _needed(graph, nodes, missing, values)
    rest = [node for node in needed if not _move(graph, node, values)]
    failed: dict[Node, str] = {}
    if rest:
        _run(graph, rest, missing, values, failed)
    return values, failed


def _from_scope(nodes: Sequence[Node], scope: Scope, values: Values) -> None:
    """Small integers were computed already when the sizes of the results were."""
    for node in nodes:
        for value in node.outputs:
            state = scope.states.get(value) if value else None
            if state is not None and state.known:
                values[value] = values_of(state)


def _needed(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str], values: Values) -> list[Node]:
    """The nodes that the wanted values need, in order."""
    open_values = set(wanted)
    found = []
    for node in reversed(nodes):
        if not open_values.isdisjoint(node.outputs):
            found.append(node)
            open_values.update(value for value in graph.values_used_by(node) if value not in values)
    return found[::-1]


# -- numpy -------------------------------------------------------------------------------------------------


def _transposed(node: Node, array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.transpose(node.attr("perm")))


MOVES: dict[str, Callable[[Node, np.ndarray], np.ndarray]] = {
    "Identity": lambda node, array: array,
    "Transpose": _transposed,
}


def _move(graph: Graph, node: Node, values: Values) -> bool:
    """Compute a node that only moves data; False when it is none, or its input is not there yet."""
    move = MOVES.get(node.op_type)
    if move is None or node.domain or len(node.inputs) != 1:
        return False
    array = _value(graph, node.inputs[0], values)
    if array is None:
        return False
    values[node.outputs[0]] = move(node, array)
    return True


def _value(graph: Graph, value: str, values: Values) -> np.ndarray | None:
    return values[value] if value in values else graph.constant(value)


# -- onnxruntime -------------------------------------------------------------------------------------------


def _run(graph: Graph, nodes: list[Node], wanted: Sequence[str], values: Values, failed: dict[Node, str]) -> None:
    """Run nodes as one model; where that fails, run halves."""
    made = {value for node in nodes for value in node.outputs if value}
    names = [value for value in wanted if value in made]
    try:
        values.update(_onnxruntime(graph, nodes, names, values))
        return
    except Exception as error:  # noqa: BLE001  onnxruntime raises plain exceptions of many kinds for models it refuses
        _log.debug("onnxruntime refused %d constant nodes: %s", len(nodes), error)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if len(nodes) == 1:
        _reference(graph, nodes[0], values, failed, reason)
        return
    half = len(nodes) // 2
    for part in (nodes[:half], nodes[half:]):
        ready = [node for node in part if _is_ready(graph, node, part, values)]
        if ready:
            _run(graph, ready, [value for node in ready for value in node.outputs if value], values, failed)


def _is_ready(graph: Graph, node: Node, part: Sequence[Node], values: Values) -> bool:
    inside = {value for other in part for value in other.outputs}
    return all(v in values or v in inside or graph.is_constant(v) for v in graph.values_used_by(node))


def _onnxruntime(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str], values: Values) -> Values:
    import onnxruntime

    model, feeds = _model(graph, nodes, wanted, values)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results = session.run(list(wanted), feeds)
    return {name: array for name, array in zip(wanted, results, strict=True) if isinstance(array, np.ndarray)}


def _model(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str], values: Values) -> tuple[ModelProto, Values]:
    """A model of these nodes: small constants inside, large ones as inputs with feeds."""
    root = graph.root
    model = ModelProto(ir_version=root.model.proto.ir_version)
    for domain, version in root.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.graph.name = "constants"
    model.graph.node.extend(_body.write_node(node) for node in nodes)
    made = {value for node in nodes for value in node.outputs}
    used = dict.fromkeys(v for node in nodes for v in sorted(graph.values_used_by(node)) if v not in made)
    feeds: Values = {}
    for value in used:
        array = _value(graph, value, values)
        if array is None:
            raise ValueError(f"value '{value}' is not known")
        if array.nbytes > _FED_BYTES and array.dtype.kind in "fiub" and array.dtype.isbuiltin:
            feeds[value] = array
            info = onnx.helper.make_tensor_value_info(
                value, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            model.graph.input.append(info)
        else:
            model.graph.initializer.append(_tensor(value, array, graph))
    model.graph.output.extend(ValueInfoProto(name=name) for name in wanted)
    return model, feeds


def _tensor(name: str, array: np.ndarray, graph: Graph) -> TensorProto:
    if array.dtype.kind == "O":
        return make_weight(name, array, graph.store).proto
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def _reference(graph: Graph, node: Node, values: Values, failed: dict[Node, str], reason: str) -> None:
    """Run one node in ONNX's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    wanted = [value for value in node.outputs if value]
    try:
        model, feeds = _model(graph, [node], wanted, values)
        with np.errstate(divide="raise"):  # of integers: onnxruntime stops there too
            results = ReferenceEvaluator(model).run(wanted, feeds)
    except Exception as error:  # noqa: BLE001  any operator's Python code may run here
        failed[node] = f"onnxruntime cannot run it: {reason}"
        _log.debug("the reference failed too on %s: %s", node.label, error)
        return
    values.update((name, np.asarray(array)) for name, array in zip(wanted, results, strict=True) if array is not None)
