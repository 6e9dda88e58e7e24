"""Shape arithmetic in canonical form: a plan says how to compute a vector of sizes from the graph inputs.

Plans are nested tuples, so equal computations are equal keys:
`("Shape", input)`, `("Gather", plan, const)`, `("Concat", plan, …)`, `("Mul", plan, plan)`,
`("Add", plan, plan)` and `("Const", shape, (int, …))`; all are int64, of rank 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Dim, Node
from graphkit.symbolic.evaluate import Evaluator
from graphkit.symbolic.state import State
from graphkit.symbolic.symbols import Size, Symbols

Plan = tuple[Any, ...]
_MAX_LENGTH = 16
_MAX_DEPTH = 6  # nodes in a row around a subgraph that are looked at
_OPERATORS = frozenset(("Shape", "Gather", "Concat", "Mul", "Add"))


def const(shape: tuple[int, ...], items: tuple[int, ...]) -> Plan:
    """The plan of a constant."""
    return ("Const", shape, items)


class Planner:
    """Plans for the states of one model. Each named size has one home: an axis of one value.

    Homes are graph inputs, those with many named sizes first, so that few are asked for their shape. With
    `inner`, sizes that no input has live where the root graph first asks for a shape that has them.
    """

    def __init__(self, evaluator: Evaluator, *, inner: bool) -> None:
        self.symbols: Symbols = evaluator.symbols
        self.homes: dict[str, tuple[str, int]] = {}
        self.ranks: dict[str, int] = {}
        root = evaluator.graph
        shapes = {
            value: evaluator.root.states[value].shape or ()
            for value in root.inputs
            if value in evaluator.root.states and value not in root.initializers
        }
        for value, shape in sorted(shapes.items(), key=lambda item: -len({*filter(_is_name, item[1])})):
            self._settle(value, shape)
        for node in root.nodes if inner else ():
            if node.op in ("Shape", "Size"):
                value = node.inputs[0]
                self._settle(value, evaluator.root[value].shape or ())

    def _settle(self, value: str, shape: Sequence[Dim]) -> None:
        """Make a value the home of those named sizes of it that have none."""
        for axis, dim in enumerate(shape):
            if isinstance(dim, str) and dim not in self.homes and self.symbols.atoms(dim) == {dim}:
                self.homes[dim] = (value, axis)
                self.ranks[value] = len(shape)

    def can(self, state: State | None) -> bool:
        """True for int64 vectors and scalars whose elements are computed from sizes of graph inputs."""
        return (
            state is not None
            and state.dtype == TensorProto.INT64
            and state.items is not None
            and len(state.items) <= _MAX_LENGTH
            and len(state.shape or ()) <= 1
            and all(item is not None and self._has_home(item) for item in state.items)
        )

    def _has_home(self, size: Size) -> bool:
        return isinstance(size, int) or self.symbols.atoms(size) <= self.homes.keys()

    def plan(self, state: State) -> Plan:
        """The plan of a state that `can` be planned."""
        items = state.items or ()
        if state.known:
            return const(tuple(int(d) for d in state.shape or ()), tuple(int(i) for i in items))  # type: ignore[arg-type]
        if not state.shape:
            return self._size(items[0], ())  # type: ignore[arg-type]
        return self._from_one(items) or self._concat(items)

    def _from_one(self, items: tuple[Any, ...]) -> Plan | None:
        """Axes of one input, and perhaps numbers: picked out of its shape with the numbers put behind it."""
        homes = [self.homes.get(item) for item in items if isinstance(item, str)]
        inputs = {home[0] if home is not None else None for home in homes}
        source = inputs.pop()
        if inputs or source is None:
            return None
        rank = self.ranks[source]
        numbers = tuple(dict.fromkeys(item for item in items if isinstance(item, int)))
        table: Plan = ("Shape", source)
        if numbers:
            table = ("Concat", table, const((len(numbers),), numbers))
        where = tuple(self.homes[item][1] if isinstance(item, str) else rank + numbers.index(item) for item in items)
        if where == tuple(range(rank + len(numbers))):
            return table
        return ("Gather", table, const((len(where),), where))

    def _concat(self, items: tuple[Any, ...]) -> Plan:
        parts: list[Plan] = []
        for item in items:
            if isinstance(item, int) and parts and parts[-1][0] == "Const":
                numbers = (*parts[-1][2], item)
                parts[-1] = const((len(numbers),), numbers)
            else:
                parts.append(self._size(item, (1,)))
        return parts[0] if len(parts) == 1 else ("Concat", *parts)

    def _size(self, size: Size, shape: tuple[int, ...]) -> Plan:
        """One size as a scalar, or as a vector of one element."""
        if isinstance(size, int):
            return const(shape, (size,))
        if size in self.homes:
            source, axis = self.homes[size]
            if shape and self.ranks[source] == 1:
                return ("Shape", source)
            return ("Gather", ("Shape", source), const(shape, (axis,)))
        terms = [self._term(factor, atoms, shape) for factor, atoms in sorted(self.symbols.terms(size), key=_order)]
        total = terms[0]
        for term in terms[1:]:
            total = ("Add", total, term)
        return total

    def _term(self, factor: int, atoms: tuple[str, ...], shape: tuple[int, ...]) -> Plan:
        factors = [self._size(atom, shape) for atom in atoms]
        if factor != 1 or not factors:
            factors.append(const(shape, (factor,)))
        total = factors[0]
        for other in factors[1:]:
            total = ("Mul", total, other)
        return total


def _is_name(dim: object) -> bool:
    return isinstance(dim, str)


def _order(term: tuple[int, tuple[str, ...]]) -> tuple[int, tuple[str, ...]]:
    return (-len(term[1]), term[1])


def sources(plan: Plan) -> Iterator[str]:
    """The values whose shapes a plan asks for."""
    if plan[0] == "Shape":
        yield plan[1]
    elif plan[0] != "Const":
        for part in plan[1:]:
            yield from sources(part)


def steps(plan: Plan) -> set[Plan]:
    """The plans of the nodes that a plan consists of."""
    if plan[0] == "Const":
        return set()
    parts = () if plan[0] == "Shape" else plan[1:]
    return {plan}.union(*(steps(part) for part in parts))


def plan_of_node(graph: Graph, node: Node, plans: dict[str, Plan], homes: dict[str, int]) -> Plan | None:
    """The plan that a node is already, given the plans of earlier values; None when it is none."""
    if node.op_type not in _OPERATORS or node.domain:
        return None
    if node.op_type == "Shape":
        plain = node.inputs[0] in homes and not node.attrs
        return ("Shape", node.inputs[0]) if plain else None
    if not any(value in plans for value in node.inputs) or node.attr("axis", 0) != 0:
        return None
    parts = [plans.get(value) or _constant_plan(graph, value) for value in node.inputs]
    return None if None in parts else (node.op_type, *parts)


def _constant_plan(graph: Graph, value: str) -> Plan | None:
    if graph.dtype(value) not in (0, TensorProto.INT64):
        return None
    array = graph.constant(value) if graph.is_constant(value) else None
    if array is None or array.dtype.kind != "i" or array.ndim > 1 or array.size > 2 * _MAX_LENGTH:
        return None
    return const(array.shape, tuple(array.reshape(-1).tolist()))


class CapturedPlans:
    """Plans of values that subgraphs read from the graphs around them, which are rewritten already."""

    def __init__(self, ranks: dict[str, int]) -> None:
        self.ranks = ranks
        self._known: dict[tuple[int, str], Plan | None] = {}

    def of(self, graph: Graph, node: Node) -> dict[str, Plan]:
        """Plans of those inputs of a node that its own graph does not define."""
        return self._plans(graph.parent, [v for v in node.inputs if v and not graph.defines(v)], _MAX_DEPTH)

    def _plans(self, graph: Graph | None, values: Sequence[str], depth: int) -> dict[str, Plan]:
        found = ((value, self._plan(graph, value, depth)) for value in values if value)
        return {value: plan for value, plan in found if plan is not None}

    def _plan(self, graph: Graph | None, value: str, depth: int) -> Plan | None:
        while graph is not None and not graph.defines(value):
            graph = graph.parent
        maker = graph.producer(value) if graph is not None else None
        if graph is None or maker is None or depth == 0:
            return None
        key = (id(graph), value)
        if key not in self._known:
            plans = self._plans(graph, maker.inputs, depth - 1)
            self._known[key] = plan_of_node(graph, maker, plans, self.ranks)
        return self._known[key]


def dying(graph: Graph, node: Node, kept: set[str]) -> int:
    """How many nodes nobody needs any more when `node` goes, at most about 64; makers of `kept` stay."""
    gone, stack = {node}, [node]
    while stack and len(gone) < 64:
        for value in stack.pop().inputs:
            maker = graph.producer(value)
            if maker is None or value in kept or maker in gone:
                continue
            users = {user for out in maker.outputs for user in graph.consumers(out)}
            if users <= gone and not any(graph.is_output(out) for out in maker.outputs):
                gone.add(maker)
                stack.append(maker)
    return len(gone)
