"""Gelu recognised in the spellings of exporters.

erf: x · ½(1 + erf(x/√2)). tanh: x · ½(1 + tanh(√(2/π)(x + 0.044715 x³))), or the same by sigmoid. They are
recognised by what they compute, not by how it is written: the argument of Erf or Tanh is read as a polynomial
in x, and everything behind it as a product (Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match

Approximate = Literal["none", "tanh"]
Polynomial = dict[int, float]

_MAX_STEPS = 6  # products behind the activation; nobody writes more than four
_MAX_DEPTH = 7  # operators between x and the activation
C, K = math.sqrt(2 / math.pi), 0.044715
_KERNELS: Mapping[str, Mapping[int, float]] = {
    "Erf": {1: math.sqrt(0.5)},
    "Tanh": {1: C, 3: C * K},
    "Sigmoid": {1: 2 * C, 3: 2 * C * K},  # ½(1 + tanh u) = sigmoid(2u)
}
_SUMS = {"Erf": (0.5, 0.5), "Tanh": (0.5, 0.5), "Sigmoid": (1.0, 0.0)}  # what x multiplies: a · act + b


@dataclass(frozen=True)
class GeluMatch:
    """A Gelu found in a graph: its input and output, which of the two functions, its nodes in order."""

    x: str
    output: str
    approximate: Approximate
    nodes: tuple[Node, ...]


def polynomial(graph: Graph, value: str, x: str, depth: int = _MAX_DEPTH) -> Polynomial | None:
    """The value as a polynomial in `x` (coefficient by power), None when it is not one of a few terms."""
    if value == x:
        return {1: 1.0}
    number = _match.scalar_beside(graph, value, x)
    if number is not None:
        return {0: number}
    node = graph.producer(value)
    if node is None or node.domain or depth == 0 or node.op_type not in _TERMS:
        return None
    parts = [polynomial(graph, operand, x, depth - 1) for operand in node.inputs]
    if any(part is None for part in parts):
        return None
    return _combine(node.op_type, [part for part in parts if part is not None])


_TERMS = ("Add", "Sub", "Mul", "Div", "Pow", "Neg", "Identity")


def _combine(op_type: str, parts: list[Polynomial]) -> Polynomial | None:
    first, second = parts[0], parts[-1]
    if op_type == "Identity":
        return first
    if op_type == "Neg":
        return {power: -c for power, c in first.items()}
    if op_type in ("Add", "Sub"):
        sign = 1 if op_type == "Add" else -1
        return {p: first.get(p, 0.0) + sign * second.get(p, 0.0) for p in {*first, *second}}
    if op_type == "Mul":
        return _product(first, second)
    constant = second.get(0) if set(second) == {0} else None
    if not constant:
        return None
    if op_type == "Div":
        return {power: c / constant for power, c in first.items()}
    return _power(first, constant)


def _product(first: Polynomial, second: Polynomial) -> Polynomial | None:
    found: Polynomial = {}
    for p, a in first.items():
        for q, b in second.items():
            found[p + q] = found.get(p + q, 0.0) + a * b
    return found if max(found) <= 3 else None


def _power(base: Polynomial, exponent: float) -> Polynomial | None:
    if exponent not in (2.0, 3.0):
        return None
    found: Polynomial | None = base
    for _ in range(int(exponent) - 1):
        found = found and _product(found, base)
    return found


def _is_kernel(found: Polynomial | None, kernel: Mapping[int, float], dtype: int) -> bool:
    if found is None:
        return False
    terms = {power: c for power, c in found.items() if c}
    return set(terms) == set(kernel) and all(
        abs(terms[p] - kernel[p]) <= 3 * _match.tolerance(dtype) * abs(kernel[p]) for p in kernel
    )


@dataclass
class _Product:
    """What was multiplied so far: `act · slope + offset`, times `factor`, times x once `x` is known."""

    act: str
    value: str
    slope: float = 1.0
    offset: float = 0.0
    factor: float = 1.0
    x: str = ""
    nodes: list[Node] = field(default_factory=list)

    def complete(self, dtype: int) -> bool:
        """True when all of ½(1 + act)·x has been seen, or of act·x where that is a Sigmoid."""
        sums = zip((self.slope * self.factor, self.offset * self.factor), _SUMS[self.act], strict=True)
        return bool(self.x) and all(_match.close(seen, wanted, dtype) for seen, wanted in sums)


def find_gelu(graph: Graph, act: Node) -> GeluMatch | str | None:
    """The Gelu around an Erf, Tanh or Sigmoid; a reason when most of one is there, None for anything else."""
    dtype = graph.dtype(act.outputs[0]) or graph.dtype(act.inputs[0])
    state = _Product(act.op_type, act.outputs[0])
    for _ in range(_MAX_STEPS):
        if state.complete(dtype):
            break
        consumers = graph.consumers(state.value)
        node = _match.next_op(graph, state.value, "Add", "Mul", "Div")
        if node is None:
            return _why_stopped(graph, state, act, len(consumers))
        if not _step(graph, state, node, act, dtype):
            return _why_not(state, act, node)
        state.nodes.append(node)
        state.value = node.outputs[0]
    if not state.complete(dtype):
        return _why_not(state, act, None)
    approximate: Approximate = "none" if act.op_type == "Erf" else "tanh"
    nodes = (*_argument_nodes(graph, act.inputs[0], state.x), act, *state.nodes)
    inside = _match.used_outside(graph, nodes, [state.value])
    if inside is not None:
        return f"'{inside}' inside the Gelu is used elsewhere"
    return GeluMatch(state.x, state.value, approximate, nodes)


def _step(graph: Graph, state: _Product, node: Node, act: Node, dtype: int) -> bool:
    """Take one node into the product; False when it does not belong to a Gelu."""
    scaled = _match.with_scalar(graph, node)
    if scaled is not None and scaled[0] == state.value:
        return _step_scalar(state, node, scaled[1], scaled[2])
    summed = bool(state.offset) or act.op_type == "Sigmoid"
    if node.op_type != "Mul" or not summed or state.x or len(set(node.inputs)) == 1:
        return False
    other = node.inputs[1] if node.inputs[0] == state.value else node.inputs[0]
    return _find_x(graph, state, other, act, dtype)


def _step_scalar(state: _Product, node: Node, number: float, position: int) -> bool:
    if node.op_type == "Add":
        if state.offset or state.x:
            return False
        state.offset = number
        return True
    if node.op_type == "Div":
        if position == 0 or not number:
            return False
        number = 1 / number
    if state.offset:
        state.factor *= number
    else:
        state.slope *= number
    return True


def _find_x(graph: Graph, state: _Product, factor: str, act: Node, dtype: int) -> bool:
    """Is `factor` x itself, or x times a number, for the x that Erf or Tanh was given?"""
    scale, x = 1.0, factor
    for _ in range(3):
        if _is_kernel(polynomial(graph, act.inputs[0], x), _KERNELS[act.op_type], dtype):
            state.x, state.factor = x, state.factor * scale
            return True
        node = _match.made_by(graph, x, "Mul", "Div")
        scaled = _match.with_scalar(graph, node) if node is not None else None
        if node is None or scaled is None or (node.op_type == "Div" and not (scaled[2] and scaled[1])):
            return False
        x, scale = scaled[0], scale * (scaled[1] if node.op_type == "Mul" else 1 / scaled[1])
    return False


def _argument_nodes(graph: Graph, value: str, x: str) -> list[Node]:
    """Nodes between x and the activation, in order."""
    found: dict[Node, None] = {}

    def visit(name: str) -> None:
        node = graph.producer(name)
        if name == x or node is None or node in found or node.op_type not in _TERMS:
            return
        for operand in node.inputs:
            visit(operand)
        found[node] = None

    visit(value)
    return list(found)


def _why_stopped(graph: Graph, state: _Product, act: Node, uses: int) -> str | None:
    if not state.offset and act.op_type == "Tanh":
        return None
    if uses and graph.is_output(state.value):
        return f"'{state.value}' inside the Gelu is a graph output"
    if uses > 1:
        return f"'{state.value}' inside the Gelu is used by {uses} nodes"
    return _why_not(state, act, None)


def _why_not(state: _Product, act: Node, node: Node | None) -> str | None:
    # A Tanh is most often no Gelu at all, and so is an Erf that nothing is added to.
    if not state.offset or (act.op_type == "Tanh" and not state.x):
        return None
    if state.x:
        total = state.slope * state.factor
        return f"the factor is {total:.6g}, not 0.5"
    if node is not None and node.op_type == "Mul":
        wanted = "x/√2" if act.op_type == "Erf" else "√(2/π)(x + 0.044715x³)"
        return f"the argument of {act.op_type} is not {wanted} of the x that '{node.label}' multiplies by"
    return f"1 + {act.op_type} is not multiplied by x and 0.5"


def is_mnn_spelling(graph: Graph, found: GeluMatch) -> bool:
    """True when MNN fuses this erf form as it stands: order of operands and rank of scalars matter."""
    return _match.spelling(graph, found.nodes, found.x, rank_0=True) in _ERF_ORDERS


_ERF_TAIL = (("Mul(2,x)", "Mul(3,#)"), ("Mul(x,2)", "Mul(3,#)"))
_ERF_ORDERS = {(head, "Erf(0)", "Add(1,#)", *tail) for head in ("Mul(x,#)", "Div(x,#)") for tail in _ERF_TAIL}


def belongs_to_gelu(graph: Graph, node: Node) -> bool:
    """True for the last node of a Gelu spelled out, and for one whose result goes into an Erf.

    Other rules must keep their hands off these, or MNN no longer sees the Gelu.
    """
    if any(user.op_type == "Erf" for user in graph.consumers(node.outputs[0])):
        return True
    acts, level = [], [node]
    for _ in range(4):
        level = [above for below in level for value in below.inputs if (above := graph.producer(value))]
        acts += [above for above in level if _match.is_op(above, *_KERNELS)]
        level = [above for above in level if _match.is_op(above, "Mul", "Add", "Div")]
    found = [find_gelu(graph, act) for act in acts]
    return any(isinstance(gelu, GeluMatch) and gelu.output == node.outputs[0] for gelu in found)
