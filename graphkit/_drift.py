"""Models that quantize what they compute: how far they move on their own.

Whether a step of a quantization is taken is decided by the last digit of what is rounded, and no two engines sum in
the same order. So such a model is also run with everything that it quantizes changed by a millionth: a candidate that
is no further off than that, a few times over, computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from graphkit.runtime import Engine

Feeds = Mapping[str, npt.NDArray[Any]]
Opener = Callable[[Model], AbstractContextManager[Engine]]

_NUDGE, _HALF_NUDGE = 1e-6, 2**-10  # a half float's last digit
_SEEDS = 2
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
    for inner in list(graph.walk()):
        for node in [
            node for node in inner.nodes if "Quantize" in node.op_type and not inner.is_constant(node.inputs[0])
        ]:
            code = inner.dtype(node.inputs[0]) or TensorProto.FLOAT
            step = _NUDGE if code != TensorProto.FLOAT16 else _HALF_NUDGE
            dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
            signs = rng.choice([-1, 1], _along(inner, node.inputs[0]))
            factor = inner.add_constant((1 + step * signs).astype(dtype), "nudge")
            value = inner.new_name(f"{node.label}/nudged")
            inner.insert(NodeProto(op_type="Mul", input=[node.inputs[0], factor], output=[value], name=value), node)
            inner.set_input(node, 0, value)
    return graph.to_model()


def _along(graph: Graph, value: str) -> tuple[int, ...]:
    """As many as the last axis has: where steps follow what is rounded, one factor for all would change no code."""
    shape = graph.shape(value)
    last = shape[-1] if shape else None
    return (last,) if isinstance(last, int) and 0 < last <= _WIDEST else ()


def moved(model: Model, opener: Opener, samples: Sequence[tuple[Feeds, Feeds]]) -> list[float]:
    """How far the outputs move for each sample (inputs, outputs), relative to their largest values.

    opener: makes what runs a model.
    """
    most = [0.0] * len(samples)
    for seed in range(_SEEDS):
        graph = Graph.of(model)
        shapes.infer(graph)
        with opener(nudged(graph, seed)) as engine:
            for index, (feeds, expected) in enumerate(samples):
                verdicts = compare(expected, engine.run(feeds), finite_only=True).outputs
                errors = [output.max_error for output in verdicts if np.isfinite(output.max_error)]
                most[index] = max([most[index], *errors])
    return most


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
        f"it quantizes, and moves by {drift:.1e} when what it rounds changes by {_NUDGE:g}: {rtol:.1e} is allowed{weak}"
    )
