"""Models that quantize what they compute: how far they move on their own.

Whether a step of a quantization is taken is decided by the last digit of what is rounded, and no two engines sum in
the same order. So such a model is asked how far it moves when its inputs change by a millionth of their size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.compare import Tolerance, compare
from graphkit.graph import Graph
from graphkit.runtime import Engine

Array = npt.NDArray[Any]

_NUDGE = 1e-6
_SEEDS = 2
_DRIFTS, _LARGEST = 4.0, 5e-2  # what is allowed: so many times the drift, and never more than this


def quantizes(graph: Graph) -> bool:
    """True when a node, in a subgraph too, rounds what was computed to codes."""
    return any(_rounds(node.op_type) for inner in graph.walk() for node in inner.nodes)


def _rounds(op_type: str) -> bool:
    return "Quantize" in op_type or op_type.startswith(("QLinear", "QGemm", "QAttention"))


def drift(engine: Engine, feeds: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """How far the outputs move, relative to their largest values, when the float inputs change by a millionth."""
    errors = [0.0]
    for seed in range(_SEEDS):
        rng = np.random.default_rng(seed)
        outputs = engine.run({name: _nudged(array, rng) for name, array in feeds.items()})
        verdicts = compare(expected, {**expected, **outputs}, finite_only=True).outputs
        errors += [output.max_error for output in verdicts if np.isfinite(output.max_error)]
    return max(errors)


def _nudged(array: Array, rng: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    return (array * (1 + _NUDGE * rng.uniform(-1, 1, array.shape))).astype(array.dtype)


def allowing(tolerance: Tolerance, moved: float) -> Tolerance:
    """The tolerance for a reference that drifts so far."""
    return replace(tolerance, rtol=max(tolerance.rtol, min(_DRIFTS * moved, _LARGEST)))


def note(tolerance: Tolerance, moved: float) -> str:
    """What is allowed beyond the tolerance, and why; empty when nothing is."""
    rtol = allowing(tolerance, moved).rtol
    if rtol == tolerance.rtol:
        return ""
    return f"it quantizes, and moves by {moved:.1e} when its inputs change by {_NUDGE:g}: {rtol:.1e} is allowed"
