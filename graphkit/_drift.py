"""Models that quantize what they compute: how far they move on their own.

Whether a step of a quantization is taken is decided by the last digit of what is rounded, and no two engines sum in
the same order. So such a model is also run with everything that it quantizes changed by a millionth: a candidate that
is no further off than that, a few times over, computes the same.

Where the range is found while the model runs, the zero point is rounded too, and what decides it is how far the range
reaches below zero and above: there positive and negative numbers are also moved against each other, both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto

from graphkit import shapes
from graphkit.compare import Tolerance, compare
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Node
from graphkit.runtime import Engine

Feeds = Mapping[str, npt.NDArray[Any]]
Opener = Callable[[Model], AbstractContextManager[Engine]]

_NUDGE, _HALF_NUDGE = 1e-6, 2**-10  # a half float's last digit
_SEEDS = 2
_DYNAMIC = "DynamicQuantize"
_WIDEST = 1 << 16  # numbers in a nudge
_DRIFTS, _LARGEST = 4.0, 5e-2  # what is allowed: so many times the drift, up to this;
_WILD, _MOST = 1.5, 0.5  # of a model that moves further still only so many times, and never more than this


def quantizes(graph: Graph) -> bool:
    """True when a node, in a subgraph too, rounds what was computed to codes."""
    return any(_rounds(node.op_type) for inner in graph.walk() for node in inner.nodes)


def _rounds(op_type: str) -> bool:
    return "Quantize" in op_type or op_type.startswith(("QLinear", "QGemm", "QAttention"))


def nudged(graph: Graph, seed: int) -> Model:
    """The model with factors of 1 ± 1e-6 in front of everything that it quantizes. Changes the given graph."""
    rng = np.random.default_rng(seed)
    for inner, node in _quantizing(graph):
        code = inner.dtype(node.inputs[0]) or TensorProto.FLOAT
        step = _NUDGE if code != TensorProto.FLOAT16 else _HALF_NUDGE
        dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
        signs = rng.choice([-1, 1], _along(inner, node.inputs[0]))
        factor = inner.add_constant((1 + step * signs).astype(dtype), "nudge")
        _before(inner, node, "Mul", node.inputs[0], factor)
    return graph.to_model()


def skewed(graph: Graph, sign: int) -> Model:
    """The model with x ± 1e-6 · |x| in place of every x whose range it finds. Changes the given graph."""
    for inner, node in _quantizing(graph):
        if _DYNAMIC in node.op_type:
            x = node.inputs[0]
            size, part = (inner.new_name(f"{node.label}/{hint}") for hint in ("size", "part"))
            step = inner.add_constant(np.array(sign * _NUDGE, np.float32), "nudge")
            inner.insert(NodeProto(op_type="Abs", input=[x], output=[size], name=size), node)
            inner.insert(NodeProto(op_type="Mul", input=[size, step], output=[part], name=part), node)
            _before(inner, node, "Add", x, part)
    return graph.to_model()


def _quantizing(graph: Graph) -> list[tuple[Graph, Node]]:
    """Nodes that round what was computed, each with its graph."""
    return [
        (inner, node)
        for inner in graph.walk()
        for node in inner.nodes
        if "Quantize" in node.op_type and not inner.is_constant(node.inputs[0])
    ]


def _before(graph: Graph, node: Node, op: str, *inputs: str) -> None:
    """Compute what a node reads by one more operator."""
    value = graph.new_name(f"{node.label}/nudged")
    graph.insert(NodeProto(op_type=op, input=inputs, output=[value], name=value), node)
    graph.set_input(node, 0, value)


def _along(graph: Graph, value: str) -> tuple[int, ...]:
    """Factors that differ along the last axis that has more than one number: where steps follow what is rounded, one
    factor for all would change no code.
    """
    shape = graph.shape(value) or ()
    ones = next((count for count, dim in enumerate(reversed(shape)) if dim != 1), len(shape))
    last = shape[-1 - ones] if ones < len(shape) else None
    return (last, *[1] * ones) if isinstance(last, int) and 0 < last <= _WIDEST else ()


def moved(model: Model, opener: Opener, samples: Sequence[tuple[Feeds, Feeds]]) -> list[float]:
    """How far the outputs move for each sample (inputs, outputs), relative to their largest values.

    opener: makes what runs a model.
    """
    most = [0.0] * len(samples)
    for changed in _variants(model):
        with opener(changed) as engine:
            for index, (feeds, expected) in enumerate(samples):
                verdicts = compare(expected, engine.run(feeds), finite_only=True).outputs
                errors = [output.max_error for output in verdicts if np.isfinite(output.max_error)]
                most[index] = max([most[index], *errors])
    return most


def _variants(model: Model) -> Iterator[Model]:
    for seed in range(_SEEDS):
        yield nudged(_inferred(model), seed)
    if any(_DYNAMIC in node.op_type for _, node in _quantizing(Graph.of(model))):
        for sign in (-1, 1):
            yield skewed(_inferred(model), sign)


def _inferred(model: Model) -> Graph:
    graph = Graph.of(model)
    shapes.infer(graph)
    return graph


def allowing(tolerance: Tolerance, drift: float) -> Tolerance:
    """The tolerance for a reference that drifts so far."""
    allowed = max(min(_DRIFTS * drift, _LARGEST), min(_WILD * drift, _MOST))
    return replace(tolerance, rtol=max(tolerance.rtol, allowed))


def note(tolerance: Tolerance, drift: float) -> str:
    """What is allowed beyond the tolerance, and why; empty when nothing is."""
    rtol = allowing(tolerance, drift).rtol
    if rtol == tolerance.rtol:
        return ""
    weak = ", a weak proof; strip-activation-qdq allows a strong one" if rtol > _LARGEST else ""
    return (
        f"it quantizes, and moves by up to {drift:.1e} when what it rounds changes by {_NUDGE:g}: "
        f"up to {rtol:.1e} is allowed, on each sample as it moves there{weak}"
    )
