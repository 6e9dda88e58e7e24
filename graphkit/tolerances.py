"""What counts as equal when nobody says otherwise."""

from __future__ import annotations

from graphkit.compare import Tolerance
from graphkit.graph import Graph

_HALF = 2e-2  # of the largest value: half floats have 11 bits, and sums of them fewer


def default_tolerance(graph: Graph) -> Tolerance:
    """What equal means for a rewritten graph: 1e-4 of the largest value, 2e-2 when it has half floats."""
    return Tolerance(rtol=_HALF if computes_in_half(graph) else 1e-4)


def mnn_tolerance(graph: Graph, *, halved: bool = False) -> Tolerance:
    """What equal means for MNN: 1e-3, and 2e-2 when the graph computes in half floats or the file stores them."""
    return Tolerance(rtol=_HALF if halved or computes_in_half(graph) else 1e-3)


def computes_in_half(graph: Graph) -> bool:
    """True when an input, an output or a weight is float16 or bfloat16."""
    halves = (10, 16)  # TensorProto.FLOAT16, BFLOAT16
    infos = (*graph.input_infos.values(), *graph.output_infos.values())
    low = any(info.type.tensor_type.elem_type in halves for info in infos)
    return low or any(weight.data_type in halves for weight in graph.initializers.values())
