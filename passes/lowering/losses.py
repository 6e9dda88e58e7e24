"""NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: MNN drops ignore_index from the mean and log_prob altogether.

Method: the function bodies of ONNX Operators, with the class picked by comparisons in place of GatherElements, whose
negative indices MNN does not have. Scores are [N, C, d1, …], labels [N, d1, …].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS
from graphkit.rewrite import Outcome, Refusal, rule


@dataclass(frozen=True)
class _Loss:
    """A loss of log-probabilities: `classes` is their number, `rank` that of the scores."""

    log_prob: str
    labels: str
    weights: str
    rank: int
    classes: int
    dtype: int
    ignored: int | None
    reduction: str


def _loss(graph: Graph, node: Node) -> _Loss | None:
    """What a loss node says, with the scores for its log-probabilities; None when shapes are unknown."""
    shape, dtype, label_type = graph.shape(node.inputs[0]), graph.dtype(node.inputs[0]), graph.dtype(node.inputs[1])
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int) or dtype not in FLOATS:
        return None
    if label_type not in (TensorProto.INT32, TensorProto.INT64):
        return None
    ignored, reduction = node.attr("ignore_index"), str(node.attr("reduction", "mean"))
    return _Loss(node.inputs[0], node.inputs[1], node.input(2), len(shape), shape[1], dtype, ignored, reduction)


@rule("NegativeLogLikelihoodLoss", name="nll-loss")
def nll_loss(graph: Graph, node: Node) -> Outcome:
    """NegativeLogLikelihoodLoss with its weights and ignored labels in plain arithmetic."""
    found = _loss(graph, node)
    if found is None:
        return Refusal("nll-loss", node.label, "the number of classes or an element type is unknown")
    emit = Emit(graph, node)
    return emit.rewrite({node.outputs[0]: _reduced(emit, found)}, "NegativeLogLikelihoodLoss in arithmetic")


@rule("SoftmaxCrossEntropyLoss", name="softmax-cross-entropy")
def cross_entropy(graph: Graph, node: Node) -> Outcome:
    """SoftmaxCrossEntropyLoss by LogSoftmax and the loss of it, in plain arithmetic."""
    found = _loss(graph, node)
    if found is None:
        return Refusal("softmax-cross-entropy", node.label, "the number of classes or an element type is unknown")
    emit = Emit(graph, node)
    log_prob = _log_softmax(emit, found)
    loss = _Loss(log_prob, *list(vars(found).values())[1:])
    outputs = {node.outputs[0]: _reduced(emit, loss)}
    if len(node.outputs) > 1 and node.outputs[1]:
        outputs[node.outputs[1]] = log_prob
    return emit.rewrite(outputs, "SoftmaxCrossEntropyLoss in arithmetic")


def _log_softmax(emit: Emit, given: _Loss) -> str:
    """LogSoftmax over axis 1; below opset 13 the operator takes all axes from there on."""
    if emit.opset >= 13 or given.rank == 2:
        return emit.op("LogSoftmax", given.log_prob, axis=1)
    top = emit.reduce("ReduceMax", given.log_prob, [1])
    rest = emit.op("Sub", given.log_prob, top)
    return emit.op("Sub", rest, emit.op("Log", emit.reduce("ReduceSum", emit.op("Exp", rest), [1])))


def _reduced(emit: Emit, given: _Loss) -> str:
    """The loss: −w[label] · log_prob[label], summed, or averaged by the weights."""
    kind = emit.graph.dtype(given.labels)
    labels = emit.unsqueeze(given.labels, 1)
    shape = [given.classes if dim == 1 else 1 for dim in range(given.rank)]
    classes = np.arange(given.classes).reshape(shape)
    if given.ignored is not None and 0 <= given.ignored < given.classes:
        classes[:, given.ignored] = np.iinfo(np.int32).min  # no label is that, so that none is picked
    chosen = emit.op("Equal", labels, emit.cast(emit.const(classes.astype(np.int64), "classes"), kind))
    zero = emit.number(0, given.dtype)
    scores = emit.op("Where", chosen, given.log_prob, zero)
    weights = _weights(emit, given, chosen, shape)
    if given.weights:
        scores = emit.op("Mul", scores, emit.op("Reshape", given.weights, emit.ints(*shape)))
    loss = emit.op("Neg", emit.reduce("ReduceSum", scores, [1], keepdims=False))
    if given.reduction == "none":
        return loss
    axes = list(range(given.rank - 1))
    if given.reduction == "mean" and weights is None:
        return emit.reduce("ReduceMean", loss, axes, keepdims=False)
    total = emit.reduce("ReduceSum", loss, axes, keepdims=False)
    if given.reduction == "sum" or weights is None:
        return total
    return emit.op("Div", total, emit.reduce("ReduceSum", weights, list(range(given.rank)), keepdims=False))


def _weights(emit: Emit, given: _Loss, chosen: str, shape: list[int]) -> str | None:
    """The weight of each label at its class, 0 elsewhere; None when all weigh 1."""
    if given.weights:
        spread = emit.op("Reshape", given.weights, emit.ints(*shape))
        return emit.op("Mul", emit.cast(chosen, given.dtype), spread)
    return None if given.ignored is None else emit.cast(chosen, given.dtype)


RULES = (nll_loss, cross_entropy)
