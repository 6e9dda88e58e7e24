"""RNN, LSTM and GRU in the variants that MNN's own operators do not compute: step by step, or as a Loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node, TensorType
from graphkit.passes._emit import Emit
from graphkit.passes.lowering import _recurrent
from graphkit.passes.lowering._bodies import write_loop
from graphkit.passes.lowering._cells import Cell, step
from graphkit.passes.lowering._recurrent import Form
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_NAME = "recurrent-spelled"
_UNROLLED = 8  # steps; above, a Loop: the converter's time grows with the square of the node count


@rule("RNN", "LSTM", "GRU", name=_NAME)
def spelled(graph: Graph, node: Node) -> Outcome:
    """A variant that MNN ignores, refuses or gets wrong: steps in MatMul and activations, in a Loop when many."""
    if node.attr("layout", 0) or graph.opset() < 7:
        return None
    form = _recurrent.read(graph, node)
    if isinstance(form, str):
        return Refusal(_NAME, node.label, form)
    if _recurrent.full_lengths(graph, form) or _recurrent.no_peepholes(graph, node):
        return None
    reason = _recurrent.not_for_mnn(graph, form)
    if reason is None:
        return None
    problem = _unwritable(graph, form)
    if problem:
        return Refusal(_NAME, node.label, problem)
    emit = Emit(graph, node)
    results = [_Direction(emit, form, index).write() for index in range(len(form.reversed))]
    outputs = _joined(emit, form, results)
    return emit.rewrite(outputs, f"{form.kind} spelled out, for {reason}")


def _unwritable(graph: Graph, form: Form) -> str | None:
    if form.node.input(4) and graph.opset() < 9:
        return "its sequence lengths need Where, which is in ONNX from opset 9"
    return _recurrent.cannot_reverse(graph, form) if any(form.reversed) else None


def _unrolls(form: Form) -> bool:
    return form.steps is not None and 0 < form.steps <= _UNROLLED


def _joined(emit: Emit, form: Form, results: Sequence[tuple[str, ...]]) -> dict[str, str]:
    """The outputs of all directions together, with the axis of directions; only those that are used."""
    outputs = {}
    for index, name in enumerate(form.outputs):
        if name and emit.graph.is_used(name):
            axis = 1 if index == 0 else 0
            parts = [emit.unsqueeze(result[index], axis) for result in results]
            outputs[name] = parts[0] if len(parts) == 1 else emit.op("Concat", *parts, axis=axis)
    return outputs


class _Direction:
    """Writes one direction of a node: results are Y [steps, batch, hidden] and the final state."""

    def __init__(self, emit: Emit, form: Form, index: int) -> None:
        self.emit, self.form, self.index = emit, form, index
        self.graph = emit.graph
        self.reverse = form.reversed[index]
        self.after = form.kind == "GRU" and bool(form.attr("linear_before_reset", 0))
        self.lengths = form.node.input(4)

    def write(self) -> tuple[str, ...]:
        """Add all nodes; returns (y, h) or (y, h, c)."""
        gates, state = self._gates(), self._initial()
        return self._unrolled(gates, state) if _unrolls(self.form) else self._looped(gates, state)

    # -- weights --------------------------------------------------------------------------------------------

    def _part(self, inner: Emit, position: int, start: int, stop: int) -> str:
        """Rows of this direction of W, R (transposed: [columns, rows]), B or P; constants go into `inner`."""
        value = self.form.node.input(position)
        array = self.graph.constant(value)
        if array is not None:
            return inner.const(np.ascontiguousarray(array[self.index, start:stop].T), "weights")
        part = self.emit.squeeze(self.emit.slice(value, 0, self.index, self.index + 1), 0)
        part = self.emit.slice(part, 0, start, stop)
        return self.emit.op("Transpose", part, perm=[1, 0]) if position < 3 else part

    def _cell(self, inner: Emit) -> Cell:
        form, hidden = self.form, self.form.hidden
        rows = _recurrent.gates(form) * hidden
        split = 2 * hidden if form.kind == "GRU" else rows
        peepholes = [self._part(inner, 7, i * hidden, (i + 1) * hidden) for i in range(3)] if form.node.input(7) else []
        bias = self._part(inner, 3, rows + split, 2 * rows) if self.after and form.node.input(3) else ""
        return Cell(
            form.kind,
            hidden,
            form.dtype,
            self._part(inner, 2, 0, split),
            form.activations[self.index],
            float(form.attr("clip", 0.0)),
            self._part(inner, 2, split, rows) if form.kind == "GRU" else "",
            bias,
            self.after,
            tuple(peepholes),
            bool(form.attr("input_forget", 0)),
        )

    def _gates(self) -> str:
        """x·Wᵀ and all biases that are added before the activations: [steps, batch, gates·hidden]."""
        emit, rows = self.emit, _recurrent.gates(self.form) * self.form.hidden
        gates = emit.op("MatMul", self.form.node.inputs[0], self._part(emit, 1, 0, rows))
        if not self.form.node.input(3):
            return gates
        input_bias, recurrent_bias = self._part(emit, 3, 0, rows), self._part(emit, 3, rows, 2 * rows)
        if self.after:
            kept = self._part(emit, 3, rows, rows + 2 * self.form.hidden)
            zeros = emit.const(np.zeros(self.form.hidden, onnx.helper.tensor_dtype_to_np_dtype(self.form.dtype)))
            recurrent_bias = emit.op("Concat", kept, zeros, axis=0)
        return emit.op("Add", gates, emit.op("Add", input_bias, recurrent_bias))

    def _initial(self) -> tuple[str, ...]:
        positions = (5, 6) if self.form.has_cell else (5,)
        return tuple(self._state(self.form.node.input(position)) for position in positions)

    def _state(self, given: str) -> str:
        """The initial state [batch, hidden] of this direction: what is given, else zeros."""
        emit = self.emit
        if given:
            return emit.squeeze(emit.slice(given, 0, self.index, self.index + 1), 0)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(self.form.dtype)
        if self.form.batch is not None:
            return emit.const(np.zeros((self.form.batch, self.form.hidden), dtype), "zeros")
        shape = emit.op("Concat", emit.dim(self.form.node.inputs[0], 1), emit.ints(self.form.hidden), axis=0)
        zero = onnx.numpy_helper.from_array(np.zeros(1, dtype))
        return emit.op("ConstantOfShape", shape, value=zero)

    # -- steps ----------------------------------------------------------------------------------------------

    def _step(self, emit: Emit, cell: Cell, gates: str, state: tuple[str, ...], now: str) -> tuple[str, ...]:
        """One step: (y, *state); beyond a sequence's length y is zero and the state stays."""
        new = step(emit, cell, gates, state)
        if not self.lengths:
            return (new[0], *new)
        valid = emit.unsqueeze(emit.op("Greater", self.lengths, now), 1)
        y = emit.op("Where", valid, new[0], emit.number(0, self.form.dtype))
        return (y, *(emit.op("Where", valid, after, before) for after, before in zip(new, state, strict=True)))

    def _unrolled(self, gates: str, state: tuple[str, ...]) -> tuple[str, ...]:
        emit, steps = self.emit, self.form.steps or 1
        cell = self._cell(emit)
        parts = emit.split(gates, 0, [1] * steps) if steps > 1 else [gates]
        outs = [""] * steps
        for now in reversed(range(steps)) if self.reverse else range(steps):
            at = emit.const(np.array(now, np.int32), "step") if self.lengths else ""
            outs[now], *rest = self._step(emit, cell, emit.squeeze(parts[now], 0), state, at)
            state = tuple(rest)
        rows = [emit.unsqueeze(out, 0) for out in outs]
        return (rows[0] if steps == 1 else emit.op("Concat", *rows, axis=0), *state)

    def _looped(self, gates: str, state: tuple[str, ...]) -> tuple[str, ...]:
        emit, form = self.emit, self.form
        if form.steps is None:
            count = emit.squeeze(emit.dim(form.node.inputs[0], 0), 0)
        else:
            count = emit.const(np.array(form.steps, np.int64), "steps")
        last = emit.op("Sub", count, emit.const(np.array(1, np.int64), "one")) if self.reverse else ""

        def once(inner: Emit, number: str, before: tuple[str, ...]) -> tuple[Sequence[str], Sequence[str]]:
            now = inner.op("Sub", last, number) if self.reverse else number
            at = inner.cast(now, TensorProto.INT32) if self.lengths else ""
            x = inner.op("Gather", gates, now, axis=0)
            y, *after = self._step(inner, self._cell(inner), x, before, at)
            return after, [y]

        types = [TensorType(form.dtype, (form.batch, form.hidden))] * (len(state) + 1)
        *final, y = write_loop(emit, count, state, types, once)
        return (_recurrent.flipped(emit, form, y) if self.reverse else y, *final)


RULES: tuple[Rule, ...] = (spelled,)
