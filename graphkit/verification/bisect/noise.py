"""How much of a difference is noise: from the operator, the types, and how far the reference moves on its own.

Two right engines differ in the last digits: they sum in another order and approximate exp in another way. How far
that carries is measured, not guessed: the reference is run again with everything it starts from (inputs, embeddings,
integers that become floats) changed by a millionth. A tensor that moves by D then may be off by a few D in an engine
that is right; integers that flip there are ties.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto

from graphkit import shapes
from graphkit._measure import measure
from graphkit.graph import Graph, Node
from graphkit.model import Model
from graphkit.verification.bisect.references import MEMORY, References, chunks, compute

Array = npt.NDArray[Any]

_NUDGE: Mapping[int, float] = {TensorProto.FLOAT: 1e-6, TensorProto.DOUBLE: 1e-6, TensorProto.FLOAT16: 2**-10}
_WAVE = 12345.0  # the sine of this many times a value has its sign at random
_DRIFTS = 10.0
_MOST = 1e-2  # what noise may excuse in one operator on right inputs
_ACCUMULATED = 1e-3
_STEPS = frozenset(
    {"Round", "Floor", "Ceil", "Sign", "Mod", "Cast", "QuantizeLinear", "DynamicQuantizeLinear", "Greater", "Less",
     "GreaterOrEqual", "LessOrEqual", "Equal", "Where", "ArgMax", "ArgMin", "TopK", "NonMaxSuppression"}
)  # fmt: skip

# Relative to the largest value, of one operator on right inputs. Measured on MNN 3.6.1 with the smallest Winograd
# tiles: 1e-6 over all operators of nine real models, 6e-6 at most; five to twenty times that is allowed.
_FLOAT = 1e-5
_BY_OP: Mapping[str, float] = {
    "Conv": 3e-5, "ConvTranspose": 3e-5, "MatMul": 3e-5, "Gemm": 3e-5, "LSTM": 1e-4, "GRU": 1e-4, "RNN": 1e-4,
    "LayerNormalization": 5e-5, "InstanceNormalization": 1e-4, "GroupNormalization": 1e-4, "Softmax": 3e-5,
    "LogSoftmax": 5e-5, "Pow": 5e-5, "Exp": 3e-5, "Log": 3e-5, "Gelu": 5e-5, "Erf": 3e-5, "Tanh": 3e-5,
    "Resize": 1e-4, "GridSample": 1e-4, "Sin": 1e-4, "Cos": 1e-4, "CumSum": 5e-5, "ReduceProd": 1e-4,
}  # fmt: skip

# Functions that come near 0 by cancellation or saturation: the error is in units of 1, not of the largest value.
_ABSOLUTE: Mapping[str, float] = {
    "Sigmoid": 2e-7, "Softmax": 2e-7, "HardSigmoid": 2e-7, "Tanh": 5e-7, "Erf": 1e-6, "Sin": 1e-6, "Cos": 1e-6,
    "Softplus": 3e-7, "Log": 3e-7, "LogSoftmax": 3e-7, "Elu": 3e-7, "Selu": 3e-7, "Celu": 3e-7,
}  # fmt: skip
_HALF = 4e-3


@dataclass(frozen=True)
class Drift:
    """How far a tensor moves when what the model starts from changes by a millionth.

    error: relative to the largest value; flips: integers and booleans that are different; mismatched: positions where
    NaN or infinity came or went.
    """

    error: float = 0.0
    flips: int = 0
    mismatched: int = 0


@dataclass(frozen=True)
class Allowance:
    """What one value may be off by: `rtol` of the largest value or `atol`; `flips` elements of integers."""

    rtol: float
    atol: float = 0.0
    flips: int = 0

    def widened(self, rtol: float) -> Allowance:
        """The same with more of the largest value."""
        return replace(self, rtol=self.rtol + rtol)

    def over(self, max_ref: float) -> float:
        """The same relative to a largest value."""
        return max(self.rtol, self.atol / max(max_ref, 1e-30))


def drifts(
    model: Model, references: References, names: Iterable[str], *, memory: int = MEMORY, seed: int = 0
) -> dict[str, Drift]:
    """Measure each tensor's drift on the sample of the references. Raises what onnxruntime's runs raise.

    A model that starts from nothing that can be nudged (integers alone) drifts by nothing.
    """
    wanted = [name for name in names if name in references]
    moved = nudged(model, seed)
    found = {}
    for chunk in chunks(moved, references.feeds, wanted, memory):
        for name, array in compute(moved, references.feeds, chunk).items():
            found[name] = _drift(references.array(name), array)
    return found


def _drift(expected: Array, actual: Array) -> Drift:
    if expected.shape != actual.shape:  # a count of what was found moved, too
        return Drift(np.inf, expected.size, expected.size)
    stats = measure(expected, actual)
    differs = int(np.count_nonzero(expected != actual)) if expected.dtype.kind in "iub" else stats.differing
    return Drift(stats.max_error(1e-30), differs, stats.nan_mismatch + stats.inf_mismatch)


def nudged(model: Model, seed: int = 0) -> Model:
    """The model with every float that it starts from times 1 ± 1e-6, a sign for each element."""
    graph = Graph.of(model)
    shapes.infer(graph)
    sources = [name for name in graph.inputs if graph.dtype(name) in _NUDGE]
    sources += [name for node in graph.nodes for name in node.outputs[:1] if _begins(graph, node, name)]
    for name in sources:
        _nudge(graph, name, seed)
    return graph.to_model()


def _begins(graph: Graph, node: Node, name: str) -> bool:
    """True for floats made of what are no floats: rows of a table, integers that are cast, ranges."""
    if graph.dtype(name) not in _NUDGE or node.op_type == "Constant" or not graph.is_used(name):
        return False
    given = [value for value in node.inputs if value and not graph.is_constant(value)]
    return bool(given) and all(graph.dtype(value) not in (*_NUDGE, 0) for value in given)


def _nudge(graph: Graph, name: str, seed: int) -> None:
    """Let the readers of a value read value · (1 + 1e-6 · sin(12345 · value + …)) instead."""
    code = graph.dtype(name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    made = graph.new_name(f"{name}/nudged")
    graph.replace_all_uses(name, made)
    if code == TensorProto.FLOAT16:
        factor = graph.add_constant(np.array(1 + _NUDGE[code] * (1 if seed % 2 else -1), dtype), "nudge")
        _add(graph, "Mul", [name, factor], made)
        return
    wave = graph.add_constant(np.array(_WAVE + 10 * seed, dtype), "wave")
    size = graph.add_constant(np.array(_NUDGE[code], dtype), "nudge")
    sine = _add(graph, "Sin", [_add(graph, "Mul", [name, wave])])
    _add(graph, "Add", [name, _add(graph, "Mul", [name, _add(graph, "Mul", [sine, size])])], made)


def _add(graph: Graph, op: str, inputs: list[str], output: str = "") -> str:
    name = output or graph.new_name(f"nudge/{op}")
    graph.insert(NodeProto(op_type=op, name=name, input=inputs, output=[name]))
    return name


def allowance(nodes: Iterable[Node], drift: Drift, dtype: np.dtype[Any], *, halved: bool = False) -> Allowance:
    """What a value that these nodes compute from right inputs may be off by.

    halved: the MNN file stores half floats, or the graph computes in them. A step (rounding, comparison, choice) among
    the nodes turns the last digit into any error: there as many elements may flip as flip in the reference.
    """
    kinds = _kinds(nodes)
    steps = bool(kinds & _STEPS)
    if dtype.kind in "iub":
        return Allowance(0.0, flips=2 * drift.flips + 1 if drift.flips else 0)
    rtol = max([_FLOAT, *(_BY_OP.get(kind, 0.0) for kind in kinds)])
    if halved or dtype == np.float16:
        rtol = max(rtol, _HALF)
    rtol = max(rtol, min(_DRIFTS * drift.error, _MOST))
    if steps and drift.error > _MOST:
        rtol = max(rtol, drift.error)
    return Allowance(rtol, max((_ABSOLUTE.get(kind, 0.0) for kind in kinds), default=0.0))


def _kinds(nodes: Iterable[Node]) -> set[str]:
    """Their operators, and those inside them: a Loop is judged as a whole."""
    found: set[str] = set()
    for node in nodes:
        found.add(node.op_type)
        for body in node.subgraphs.values():
            found |= _kinds(body.nodes)
    return found


def accumulated(drift: Drift, local: Allowance) -> Allowance:
    """What a value may be off by when nothing upstream was put right: many operators' noise, and the drift."""
    moved = _DRIFTS * drift.error if np.isfinite(drift.error) else 1.0
    flips = local.flips or 2 * drift.flips
    return Allowance(max(local.rtol, _ACCUMULATED, moved), local.atol, flips)
