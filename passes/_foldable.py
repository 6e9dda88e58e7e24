"""Which nodes depend on constants only, and which of those must not be folded and why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.symbolic.evaluate import Evaluator, Scope
from graphkit.symbolic.state import State
from graphkit.weights import tensor_nbytes

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
KNOWN_DOMAINS = ("", "ai.onnx.ml")
_GROWS = frozenset(("ConstantOfShape", "Expand", "Tile", "Range", "OneHot", "EyeLike", "Pad", "Resize", "Upsample"))


@dataclass(frozen=True)
class Limits:
    """Options of the pass that decide what is folded."""

    max_bytes: int
    fold_dequantize: bool


@dataclass
class Region:
    """Foldable nodes in order, what is known about their values, and refused nodes with reasons."""

    nodes: dict[Node, None]
    refused: dict[Node, str]
    scope: Scope


def find_region(graph: Graph, limits: Limits) -> Region:
    """All foldable nodes of one graph (not of the graphs inside it), in linear time."""
    evaluator = Evaluator(graph.root)
    scope = _scope(graph)
    region = Region({}, {}, scope)
    made: set[str] = set()
    for node in graph.nodes:
        if not _is_constant(graph, node, made):
            continue
        reason = _why_not(node, limits) or _overflows(graph, node) or _too_large(graph, node, evaluator, scope, limits)
        if reason:
            region.refused[node] = reason
            continue
        region.nodes[node] = None
        made.update(node.outputs)
    return region


def _scope(graph: Graph) -> Scope:
    return Scope(graph, _scope(graph.parent) if graph.parent is not None else None)


def _is_constant(graph: Graph, node: Node, made: set[str]) -> bool:
    """True when the node has inputs and all of them (and all that its subgraphs capture) are constant."""
    known = False
    for value in node.inputs:
        if value:
            if value not in made and not graph.is_constant(value):
                return False
            known = True
    if not known or (node.op_type == "Constant" and not node.domain):
        return False
    if node.subgraphs:
        return all(value in made or graph.is_constant(value) for value in graph.values_used_by(node))
    return True


def _why_not(node: Node, limits: Limits) -> str | None:
    if node.domain not in KNOWN_DOMAINS:
        return f"operators of domain '{node.domain}' are not known here"
    if node.op_type in RANDOM or any(_is_random(sub) for sub in node.subgraphs.values()):
        return "its result is random"
    if node.op_type == "Dropout" and (len(node.inputs) > 2 and node.inputs[2]):
        return "it may run in training mode"
    if node.op_type == "DequantizeLinear" and not limits.fold_dequantize:
        return "folding would undo a quantization; option fold_dequantize=true folds it"
    return None


def _overflows(graph: Graph, node: Node) -> str | None:
    """The one quotient of integers that has no result stops the process in onnxruntime (SIGFPE)."""
    if node.op != "Div":
        return None
    above, below = (graph.constant(value) for value in node.inputs)
    if above is None or below is None or above.dtype.kind != "i" or not (below == -1).any():
        return None
    return "its quotient overflows" if (above == np.iinfo(above.dtype).min).any() else None


def _is_random(graph: Graph) -> bool:
    return any(
        node.op_type in (*RANDOM, "Dropout") or node.domain not in KNOWN_DOMAINS
        for inner in graph.walk()
        for node in inner.nodes
    )


def _too_large(graph: Graph, node: Node, evaluator: Evaluator, scope: Scope, limits: Limits) -> str | None:
    ins = [scope[value] for value in node.inputs]
    outs = evaluator.node(scope, node, ins)
    for value, state in zip(node.outputs, outs, strict=False):
        scope.states[value] = state
    given = sum(_nbytes(state) or 0 for state in ins)
    for state in outs:
        size = _nbytes(state)
        if size is None and node.op_type in _GROWS:
            return "the size of its result is not known before it is computed"
        if size is not None and size > max(limits.max_bytes, given):
            return f"its result takes {size:,} bytes, more than max_bytes and than its inputs"
    return None


def _nbytes(state: State) -> int | None:
    sizes = state.sizes()
    if sizes is None or state.dtype in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    return tensor_nbytes(state.dtype, tuple(sizes))
