"""Scan, which MNN 3.6 lacks: its steps one after the other, or a Loop (ONNX Operators, Scan 8 and 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node, TensorType
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._bodies import write_loop, write_out
from graphkit.rewrite import Outcome, Refusal, Rule, rule

# Above this many steps or nodes it is a Loop: the converter's time grows with the square of the node count.
_UNROLLED_STEPS, _UNROLLED_NODES = 8, 64


@dataclass(frozen=True)
class _Run:
    """A Scan without batch. `scanned` are the sequences, `axes` where their steps lie (not negative).

    `rank` of an output is that of what one step hands out, None when unknown. `steps` is None when not a number.
    """

    body: Graph
    initial: tuple[str, ...]
    scanned: tuple[str, ...]
    axes: tuple[int, ...]
    backwards: tuple[bool, ...]
    out_axes: tuple[int, ...]
    out_backwards: tuple[bool, ...]
    out_ranks: tuple[int | None, ...]
    steps: int | None

    @property
    def unrolls(self) -> bool:
        """True when the steps are few enough to be written one after the other."""
        known = self.steps is not None and self.steps <= _UNROLLED_STEPS
        return known and (self.steps or 0) * self.body.total() <= _UNROLLED_NODES


@rule("Scan", name="scan")
def scan(graph: Graph, node: Node) -> Outcome:
    """Scan is not in MNN: its steps one after the other when they are few, else a Loop."""
    read = _read if graph.opset() >= 9 else _read_batched
    run = read(graph, node)
    problem = run if isinstance(run, str) else _problem(graph, run)
    if isinstance(run, str) or problem:
        return Refusal("scan", node.label, problem or "")
    emit = Emit(graph, node)
    results = _write(emit, run) if graph.opset() >= 9 else _write_batched(emit, node, run)
    outputs = {old: new for old, new in zip(node.outputs, results, strict=False) if old}
    return emit.rewrite(outputs, f"Scan as {run.steps} steps" if run.unrolls else "Scan as Loop")


def _problem(graph: Graph, run: _Run) -> str | None:
    if run.steps == 0:
        return "its sequence is empty"
    if run.steps is None and any(run.out_backwards) and graph.opset() < 11:
        return "reversing an output of unknown length needs Range, which is in ONNX from opset 11"
    if any(rank is None for axis, rank in zip(run.out_axes, run.out_ranks, strict=True) if axis):
        return "the rank of what a step hands out is unknown"
    if not run.unrolls and any(not type_.dtype for type_ in _types(run)):
        return "the element types inside are unknown"
    return None


def _read(graph: Graph, node: Node) -> _Run | str:
    body, count = node.subgraphs["body"], int(node.attr("num_scan_inputs", 0))
    states = len(node.inputs) - count
    outs = body.outputs[states:]
    ranks = [graph.rank(value) for value in node.inputs[states:]]
    axes = _resolved(node.attr("scan_input_axes") or [0] * count, ranks)
    out_ranks = tuple(body.rank(value) for value in outs)
    stacked = [None if rank is None else rank + 1 for rank in out_ranks]
    out_axes = _resolved(node.attr("scan_output_axes") or [0] * len(outs), stacked)
    if axes is None or out_axes is None:
        return "an axis counts from the end of a value of unknown rank"
    sizes = [
        shape[axis] for value, axis in zip(node.inputs[states:], axes, strict=True) if (shape := graph.shape(value))
    ]
    return _Run(
        body,
        node.inputs[:states],
        node.inputs[states:],
        axes,
        _flags(node, "scan_input_directions", count),
        out_axes,
        _flags(node, "scan_output_directions", len(outs)),
        out_ranks,
        next((size for size in sizes if isinstance(size, int)), None),
    )


def _read_batched(graph: Graph, node: Node) -> _Run | str:
    """Scan of opset 8, whose inputs are (sequence_lens, *states, *sequences), with a batch in front."""
    body, count = node.subgraphs["body"], int(node.attr("num_scan_inputs", 0))
    states = len(node.inputs) - 1 - count
    shape = graph.shape(node.inputs[1 + states])
    if node.input(0):
        return "sequence lengths are given"
    if shape is None or len(shape) < 2 or not isinstance(shape[0], int) or not shape[0]:
        return "its batch size is not a known number"
    outs = len(body.outputs) - states
    backwards, none = _flags(node, "directions", count), (False,) * outs
    steps = shape[1] if isinstance(shape[1], int) else None
    initial, scanned = node.inputs[1 : 1 + states], node.inputs[1 + states :]
    return _Run(body, initial, scanned, (0,) * count, backwards, (0,) * outs, none, (None,) * outs, steps)


def _flags(node: Node, attribute: str, count: int) -> tuple[bool, ...]:
    return tuple(bool(item) for item in node.attr(attribute) or [0] * count)


def _resolved(axes: Sequence[int], ranks: Sequence[int | None]) -> tuple[int, ...] | None:
    """Axes counted from the front; None when that needs a rank that is unknown."""
    pairs = list(zip(axes, ranks, strict=True))
    if any(axis < 0 and rank is None for axis, rank in pairs):
        return None
    return tuple(axis + (rank or 0) if axis < 0 else axis for axis, rank in pairs)


def _write_batched(emit: Emit, node: Node, run: _Run) -> list[str]:
    """One run for each element of the batch, put together again."""
    shape = emit.graph.shape(run.scanned[0]) or (0,)
    rows = []
    for index in range(int(shape[0] or 0)):
        at = emit.const(np.array(index, np.int64), "element")
        initial, scanned = (
            tuple(emit.op("Gather", value, at, axis=0) for value in values) for values in (run.initial, run.scanned)
        )
        own = replace(run, initial=initial, scanned=scanned)
        rows.append([emit.unsqueeze(value, 0) for value in _write(emit, own)])
    return [emit.op("Concat", *column, axis=0) if len(rows) > 1 else column[0] for column in zip(*rows, strict=True)]


def _write(emit: Emit, run: _Run) -> list[str]:
    """Add all steps; returns the final states, then the stacked outputs."""
    results = _unrolled(emit, run) if run.unrolls else _looped(emit, run)
    return [*results[: len(run.initial)], *_arranged(emit, run, results[len(run.initial) :])]


def _arranged(emit: Emit, run: _Run, stacked: Sequence[str]) -> Iterator[str]:
    """Outputs stacked along axis 0 in the order of the steps, turned and moved as the attributes say."""
    for value, axis, backwards, rank in zip(stacked, run.out_axes, run.out_backwards, run.out_ranks, strict=True):
        moved = emit.op("Gather", value, _countdown(emit, run), axis=0) if backwards else value
        perm = [*range(1, axis + 1), 0, *range(axis + 1, (rank or 0) + 1)]
        yield emit.op("Transpose", moved, perm=perm) if axis else moved


def _countdown(emit: Emit, run: _Run) -> str:
    """The numbers of the steps from the last to 0; MNN 3.6 reverses wrong by a Slice what has four dims."""
    if run.steps is not None:
        return emit.ints(*reversed(range(run.steps)))
    minus = emit.const(np.array(-1, np.int64), "minus")
    return emit.op("Range", emit.op("Add", _count(emit, run), minus), minus, minus)


def _count(emit: Emit, run: _Run) -> str:
    if run.steps is not None:
        return emit.const(np.array(run.steps, np.int64), "steps")
    return emit.squeeze(emit.dim(run.scanned[0], run.axes[0]), 0)


def _once(emit: Emit, run: _Run, states: Sequence[str], at: str, back: str) -> tuple[list[str], list[str]]:
    """The body for one step, which is number `at` from the front and `back` from the back of the sequences."""
    scanned = [
        emit.op("Gather", value, back if backwards else at, axis=axis)
        for value, axis, backwards in zip(run.scanned, run.axes, run.backwards, strict=True)
    ]
    results = write_out(emit, run.body, dict(zip(run.body.inputs, [*states, *scanned], strict=True)))
    return results[: len(states)], results[len(states) :]


def _unrolled(emit: Emit, run: _Run) -> list[str]:
    states, rows, steps = list(run.initial), [], run.steps or 0
    for step in range(steps):
        at, back = (emit.const(np.array(index, np.int64), "step") for index in (step, steps - 1 - step))
        states, made = _once(emit, run, states, at, back)
        rows.append([emit.unsqueeze(value, 0) for value in made])
    stacked = [emit.op("Concat", *column, axis=0) if steps > 1 else column[0] for column in zip(*rows, strict=True)]
    return [*states, *stacked]


def _looped(emit: Emit, run: _Run) -> list[str]:
    count = _count(emit, run)
    last = emit.op("Sub", count, emit.const(np.array(1, np.int64), "one")) if any(run.backwards) else ""

    def step(inner: Emit, number: str, states: tuple[str, ...]) -> tuple[list[str], list[str]]:
        return _once(inner, run, states, number, inner.op("Sub", last, number) if last else number)

    return write_loop(emit, count, run.initial, _types(run), step)


def _types(run: _Run) -> list[TensorType]:
    """Types of the states and of what each step hands out; states may have another shape before the first step."""
    count = len(run.initial)
    declared = [run.body.type(value) or TensorType(0, None) for value in (*run.body.inputs[:count], *run.body.outputs)]
    states = [first if first.dtype else later for first, later in zip(declared, declared[count:], strict=False)]
    return [*states[:count], *declared[2 * count :]]


RULES: tuple[Rule, ...] = (scan,)
