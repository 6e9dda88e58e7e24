"""What a node of RNN, LSTM or GRU asks for, read once for all rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._cleanup_noops import ints_of
from graphkit.passes._emit import Emit
from graphkit.passes._match import FLOATS, made_by
from graphkit.passes.lowering._cells import DEFAULTS, GATES, Activation, read_activations

_BEFORE_FIRST = -(2**31) + 1  # the end of a Slice that runs backwards to the first element
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_MNN_ACTIVATIONS = ("Sigmoid", "Tanh", "Relu")


@dataclass(frozen=True)
class Form:
    """A recurrent node: names of its values ("" where omitted) and what its attributes say.

    X is [steps, batch, input] (layout 0); `steps` and `batch` are None when they are not known numbers.
    `reversed` has one entry for each direction.
    """

    node: Node
    kind: str
    hidden: int
    reversed: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    dtype: int
    steps: int | None
    batch: int | None

    @property
    def has_cell(self) -> bool:
        """True for LSTM, whose state is (h, c)."""
        return self.kind == "LSTM"

    @property
    def outputs(self) -> tuple[str, ...]:
        """Y, Y_h and for LSTM Y_c; "" for those that are not declared."""
        count = 3 if self.has_cell else 2
        return tuple(self.node.outputs[i] if i < len(self.node.outputs) else "" for i in range(count))

    def attr(self, name: str, default: Any) -> Any:
        """An attribute of the node."""
        return self.node.attr(name, default)


def read(graph: Graph, node: Node) -> Form | str:
    """The node as a `Form` (layout 0), or why it cannot be read."""
    x = node.inputs[0]
    shape, dtype = graph.shape(x), graph.dtype(x)
    hidden = _hidden(graph, node)
    reversed_ = _DIRECTIONS.get(node.attr("direction", "forward"))
    if hidden is None or reversed_ is None:
        return "its hidden size or its direction is unknown"
    if dtype not in FLOATS:
        return f"the element type of '{x}' is unknown"
    alphas, betas = node.attr("activation_alpha") or [], node.attr("activation_beta") or []
    activations = read_activations(node.op_type, node.attr("activations"), alphas, betas, len(reversed_))
    if isinstance(activations, str):
        return activations
    sizes = shape if shape is not None and len(shape) == 3 else (None, None, None)
    steps, batch = (size if isinstance(size, int) else None for size in sizes[:2])
    steps = 1 if steps is None and _is_one_step(graph, x) else steps
    return Form(node, node.op_type, hidden, reversed_, tuple(activations), dtype, steps, batch)


def _is_one_step(graph: Graph, x: str) -> bool:
    """True when x was made by Unsqueeze at axis 0, whatever its other dims: exporters write a cell so."""
    maker = made_by(graph, x, "Unsqueeze")
    axes = None if maker is None else ints_of(graph, maker, 1, "axes")
    return axes is not None and 0 in axes


def _hidden(graph: Graph, node: Node) -> int | None:
    given = node.attr("hidden_size")
    if given:
        return int(given)
    shape = graph.shape(node.inputs[2])
    size = shape[2] if shape is not None and len(shape) == 3 else None
    return size if isinstance(size, int) else None


def not_for_mnn(graph: Graph, form: Form) -> str | None:
    """Why MNN 3.6 cannot run the operator itself whatever outputs are declared, None when it can.

    Measured: it ignores clip, input_forget, sequence_lens and (but for three names in LSTM) activations, refuses
    peepholes and a GRU whose weights are computed, runs every GRU as if linear_before_reset were set, and unrolls
    to one step whatever GRU or one-directional LSTM with a given state has a sequence length that is not known.
    """
    node = form.node
    if node.attr("clip") or node.attr("input_forget", 0):
        return "it clips or couples gates"
    if node.input(4) or node.input(7):
        return "it has sequence lengths or peepholes"
    if not _mnn_activations(graph, form):
        return "its activations are not the usual ones"
    if form.kind == "GRU":
        return _gru_not_for_mnn(graph, form)
    return _lstm_not_for_mnn(form) if form.has_cell else None


def _lstm_not_for_mnn(form: Form) -> str | None:
    if len(form.reversed) > 1 or not form.node.input(6):
        return None
    if form.steps is None:
        return "its sequence length is not known"
    return "only c is given for its one step" if form.steps == 1 and not form.node.input(5) else None


def _gru_not_for_mnn(graph: Graph, form: Form) -> str | None:
    if not form.attr("linear_before_reset", 0):
        return "its reset comes before the product"
    if not _constant_weights(graph, form):
        return "its weights are computed"
    return "its sequence length is not known" if form.steps is None else None


def _constant_weights(graph: Graph, form: Form) -> bool:
    return all(graph.is_constant(value) for value in form.node.inputs[1:4] if value)


def _mnn_activations(graph: Graph, form: Form) -> bool:
    names = {tuple(item.name for item in direction) for direction in form.activations}
    if names == {DEFAULTS[form.kind]}:
        return True
    if not form.has_cell or not _constant_weights(graph, form) or len(names) > 1:
        return False
    return all(name in _MNN_ACTIVATIONS for name in next(iter(names)))


def full_lengths(graph: Graph, form: Form) -> bool:
    """True when sequence_lens surely says that all sequences have the full length."""
    lengths = graph.constant(form.node.input(4))
    return lengths is not None and form.steps is not None and bool((lengths == form.steps).all())


def no_peepholes(graph: Graph, node: Node) -> bool:
    """True when the peephole weights are constant zeros."""
    weights = graph.constant(node.input(7))
    return weights is not None and not np.any(weights)


def gates(form: Form) -> int:
    """How many gates' rows W and R have."""
    return GATES[form.kind]


def cannot_reverse(graph: Graph, form: Form) -> str | None:
    """Why a sequence cannot be reversed in this operator set, None when it can."""
    if graph.opset() < 10 and form.steps is None:
        return "reversing a sequence of unknown length needs Slice with steps, which is in ONNX from opset 10"
    return None


def flipped(emit: Emit, form: Form, value: str) -> str:
    """The steps [steps, batch, …] in reverse order; the rank must be 3: MNN 3.6 reverses wrong what has four dims."""
    if emit.opset < 10:
        return emit.op("Gather", value, emit.ints(*reversed(range(form.steps or 0))), axis=0)
    return emit.op("Slice", value, emit.ints(-1), emit.ints(_BEFORE_FIRST), emit.ints(0), emit.ints(-1))
