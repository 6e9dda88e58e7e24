"""Abstract evaluation of If, Loop and Scan: what holds in every branch and after every iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import TensorProto

from graphkit.node import Node
from graphkit.symbolic.state import UNKNOWN, State, join, scalar

if TYPE_CHECKING:
    from graphkit.graph import Graph
    from graphkit.symbolic.evaluate import Evaluator, Scope

_ROUNDS = 8  # sizes only ever become unknown, which ends well before


def evaluate(evaluator: Evaluator, scope: Scope, node: Node, ins: list[State]) -> tuple[State, ...]:
    """States of the outputs of a node with subgraphs; the scopes of its subgraphs are filled on the way."""
    known = set(evaluator.symbols._polynomials)
    if node.domain or node.op_type not in ("If", "Loop", "Scan"):
        for sub in node.subgraphs.values():
            _enter(evaluator, scope, sub, [UNKNOWN] * len(sub.inputs))
        return (UNKNOWN,) * len(node.outputs)
    if node.op_type == "If":
        branches = [_enter(evaluator, scope, sub, []) for sub in node.subgraphs.values()]
        joined = [join(a, b) for a, b in zip(*branches, strict=True)] if len(branches) == 2 else branches[0]
        return tuple(_outside(state, known) for state in joined)
    body = node.subgraphs["body"]
    if node.op_type == "Loop":
        return tuple(_outside(state, known) for state in _loop(evaluator, scope, body, ins[2:]))
    return tuple(_outside(state, known) for state in _scan(evaluator, scope, node, body, ins))


def _enter(evaluator: Evaluator, scope: Scope, sub: Graph, arguments: list[State]) -> list[State]:
    """Evaluate a subgraph with these inputs; returns its outputs' states."""
    inner = scope.inner[id(sub)] = type(scope)(sub, scope)
    for name, state in zip(sub.inputs, arguments, strict=False):
        evaluator.bind(inner, name, state)
    evaluator.sweep(inner)
    return [inner[value] for value in sub.outputs]


def _outside(state: State, known: set[str]) -> State:
    """Sizes that were named inside the subgraph mean nothing outside."""
    shape = state.shape
    if shape is not None:
        shape = tuple(dim if not isinstance(dim, str) or dim in known else None for dim in shape)
    items = state.items
    if items is not None:
        items = tuple(item if not isinstance(item, str) or item in known else None for item in items)
    return State(state.dtype, shape, items)


def _settle(
    evaluator: Evaluator,
    scope: Scope,
    body: Graph,
    first: list[State],
    carried: list[State],
    rest: list[State],
    skip: int,
) -> tuple[list[State], list[State]]:
    """Join what goes in with what comes round until it no longer changes: (carried, other outputs)."""
    known = set(evaluator.symbols._polynomials)
    for _ in range(_ROUNDS):
        outs = _enter(evaluator, scope, body, [*first, *carried, *rest])[skip:]
        after = [join(a, _outside(b, known)) for a, b in zip(carried, outs, strict=False)]
        if after == carried:
            return carried, outs[len(carried) :]
        carried = after
    carried = [UNKNOWN] * len(carried)
    return carried, _enter(evaluator, scope, body, [*first, *carried, *rest])[skip + len(carried) :]


def _loop(evaluator: Evaluator, scope: Scope, body: Graph, initial: list[State]) -> list[State]:
    first = [scalar(None), scalar(None, TensorProto.BOOL)]
    final, scanned = _settle(evaluator, scope, body, first, initial, [], 1)
    return final + [_stacked(state, 0, None) for state in scanned]


def _scan(evaluator: Evaluator, scope: Scope, node: Node, body: Graph, ins: list[State]) -> list[State]:
    count = node.attr("num_scan_inputs", 0)
    axes = node.attr("scan_input_axes") or [0] * count
    slices = [_slice(state, axis) for state, axis in zip(ins[len(ins) - count :], axes, strict=True)]
    final, scanned = _settle(evaluator, scope, body, [], ins[: len(ins) - count], slices, 0)
    out_axes = node.attr("scan_output_axes") or [0] * len(scanned)
    return final + [_stacked(state, axis, None) for state, axis in zip(scanned, out_axes, strict=True)]


def _slice(state: State, axis: int) -> State:
    if state.shape is None:
        return State(state.dtype, None)
    at = axis % len(state.shape)
    return State(state.dtype, state.shape[:at] + state.shape[at + 1 :])


def _stacked(state: State, axis: int, length: int | None) -> State:
    if state.shape is None:
        return State(state.dtype, None)
    at = axis % (len(state.shape) + 1)
    return State(state.dtype, (*state.shape[:at], length, *state.shape[at:]))
