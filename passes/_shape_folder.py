"""The rewrites of `fold-shapes`, driven by the states that abstract evaluation found."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto

from graphkit.graph import Graph
from graphkit.node import Node, TensorType
from graphkit.passes._shape_index import Indices
from graphkit.passes._shape_plans import CapturedPlans, Plan, Planner, dying, plan_of_node, sources, steps
from graphkit.passes._shape_targets import expand_target, reshape_target
from graphkit.passes._shape_views import VIEWS, origin, takes_constant, transposed_batch, view, view_proto
from graphkit.rewrite import Change, Refusal
from graphkit.symbolic.evaluate import Evaluator, Scope, values_of
from graphkit.symbolic.state import State

RULE = "fold-shapes"
_KEEP_SHAPE = ("Reshape", "Expand", "Tile", "Slice", "Flatten", "Squeeze")


class Folder:
    """Applies all rewrites to one graph after another.

    `changes`, `kinds` and `refusals` collect what happened; `closed` is set when the gate said no.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.planner = Planner(evaluator, inner=True)
        self.outer_planner = Planner(evaluator, inner=False)  # for subgraphs: what they can see
        self.captured = CapturedPlans(self.outer_planner.ranks)
        self.symbols = evaluator.symbols
        self.changes: list[Change] = []
        self.kinds: list[str] = []
        self.refusals: list[Refusal] = []
        self.closed = False
        self._constants: dict[tuple[int, Plan], str] = {}

    def fold(self, scope: Scope) -> None:
        """Rewrite one graph; the graphs inside it are not touched."""
        for step in (self._targets, self._views, self._known, self._replan):
            if not self.closed:
                step(scope)

    def _allows(self, graph: Graph, node: Node, what: str, kind: str) -> bool:
        if self.closed or not graph.allows(node, what):
            self.closed = True
            return False
        self.changes.append(Change(node.label, what))
        self.kinds.append(kind)
        return True

    # -- Reshape, Expand, Slice, Tile -----------------------------------------------------------------------

    def _targets(self, scope: Scope) -> None:
        graph = scope.graph
        for op in _KEEP_SHAPE:
            for node in graph.by_op(op):
                if self.closed:
                    return
                self._target(scope, node)

    def _target(self, scope: Scope, node: Node) -> None:
        source, result = scope[node.inputs[0]], scope[node.outputs[0]]
        if source.shape is None or result.shape is None:
            return
        if _keeps_shape(scope, node, source, result):
            self._bypass(scope.graph, node)
        elif node.op_type in ("Reshape", "Expand") and len(node.inputs) == 2:
            self._constant_target(scope, node, source, result)

    def _bypass(self, graph: Graph, node: Node) -> None:
        if self._allows(graph, node, f"remove {node.op_type} to the same shape", "kept shape"):
            _bypass(graph, node, node.inputs[0])

    def _constant_target(self, scope: Scope, node: Node, source: State, result: State) -> None:
        graph, target = scope.graph, node.inputs[1]
        items = scope[target].items
        if graph.is_constant(target) or items is None or source.shape is None or result.shape is None:
            return
        if node.op_type == "Reshape":
            found = reshape_target(source.shape, result.shape, items)
        else:
            found = expand_target(source.shape, result.shape)
        if found is None:
            if node.op_type == "Reshape":
                self.refusals.append(Refusal(RULE, node.label, _why_open(result)))
            return
        if self._allows(graph, node, f"{node.op_type} to the constant {list(found)}", "constant target"):
            name = self._constant(graph, ("Const", (len(found),), found))
            _replace(graph, node, _with_target(node, name))

    # -- chains of views, and gathers that are views ---------------------------------------------------------

    def _views(self, scope: Scope) -> None:
        for node in scope.graph.by_op("Reshape"):
            self._transpose(scope, node)  # before the Reshapes in it are merged with others
        indices = Indices(scope, self.symbols)
        for node in scope.graph.nodes:
            if self.closed:
                return
            if not node.domain and node.op_type in VIEWS:
                self._view(scope, node)
            elif _is_gather(node) and not self._is_size(scope, node) and indices.is_view(node):
                source = origin(scope, node.inputs[0])
                self._put_view(scope, node, source, f"{node.op_type} that takes everything in order")

    def _is_size(self, scope: Scope, node: Node) -> bool:
        """True for a part of a shape: written as a view here, it would be planned as a Gather again."""
        planner = self.planner if scope.parent is None else self.outer_planner
        return planner.can(scope.states.get(node.outputs[0]))

    def _transpose(self, scope: Scope, node: Node) -> None:
        found = transposed_batch(scope, self.symbols, node)
        if found is not None and self._allows(scope.graph, node, f"transpose to {found[1]} at once", "view"):
            value, perm = found
            proto = onnx.helper.make_node("Transpose", [value], node.outputs, name=node.name, perm=perm)
            _replace(scope.graph, node, proto)

    def _view(self, scope: Scope, node: Node) -> None:
        source = origin(scope, node.inputs[0])
        if source != node.inputs[0] and scope[node.outputs[0]].shape is not None:
            self._put_view(scope, node, source, f"{node.op_type} of a view")

    def _put_view(self, scope: Scope, node: Node, source: str, what: str) -> None:
        graph, result = scope.graph, scope[node.outputs[0]].shape or ()
        found = view(scope, source, result)
        if found is None or not self._allows(graph, node, f"{what}: {found[0]} {found[1]}", "view"):
            return
        op, numbers = found
        if numbers or op == "Reshape":
            takes = takes_constant(graph, op)
            constant = self._constant(graph, ("Const", (len(numbers),), tuple(numbers))) if takes else ""
            _replace(graph, node, view_proto(graph, node, source, op, numbers, constant))
        else:
            _bypass(graph, node, source)

    # -- values that are known -------------------------------------------------------------------------------

    def _known(self, scope: Scope) -> None:
        """Replace values known in full by constants; last nodes first, so that what only they need goes."""
        graph = scope.graph
        known = [node for node in graph.nodes if _is_known(scope, node) and _is_used(graph, node)]
        for node in reversed(known):
            if not node.alive:
                continue  # it went with a node that only needed it for sizes
            used = [value for value in node.outputs if value and graph.is_used(value)]
            if used and not self._allows(graph, node, f"fold {node.op} of known sizes", "known value"):
                return
            feeders = _feeders(graph, node)
            graph.remove(node)
            for value in used:
                graph.define_constant(value, values_of(scope[value]))
            graph.remove_dead(p for p in feeders if p.alive and not _is_known(scope, p))

    # -- what is left of shape arithmetic --------------------------------------------------------------------

    def _replan(self, scope: Scope) -> None:
        """Compute vectors of named sizes straight from graph inputs, each once."""
        graph = scope.graph
        planner = self.planner if scope.parent is None else self.outer_planner
        seen = set(graph.root.inputs)
        made: dict[Plan, str] = {}
        plans: dict[str, Plan] = {}
        for node in graph.nodes:
            if graph.parent is not None:
                plans.update(self.captured.of(graph, node))
            own = plan_of_node(graph, node, plans, planner.ranks)
            value = node.outputs[0] if node.outputs else ""
            if own is not None:
                plans[value] = own
            seen.update(node.outputs)
            if _is_frontier(scope, node, planner):
                plan = planner.plan(scope[value])
                if own is not None and len(steps(own)) <= len(steps(plan)):
                    plan = own  # the shape of an input as it is, though some of its sizes are numbers
                if not seen.issuperset(sources(plan)) or not self._pays(graph, node, plan, made):
                    continue
                if plan != own or graph.producer(made.get(plan, value)) not in (None, node):
                    if not self._allows(graph, node, "compute sizes from the graph inputs", "replanned"):
                        return
                    self._put(scope, node, plan, made)
                    continue
            if own is not None and graph.producer(made.get(own, "")) is None:
                made[own] = value

    def _pays(self, graph: Graph, node: Node, plan: Plan, made: dict[Plan, str]) -> bool:
        """True when a plan over graph inputs, which others may share, or one that adds no nodes."""
        if all(value in graph.root.input_infos for value in sources(plan)):
            return True
        return sum(part not in made for part in steps(plan)) <= dying(graph, node, set(sources(plan)))

    def _put(self, scope: Scope, node: Node, plan: Plan, made: dict[Plan, str]) -> None:
        graph = scope.graph
        new = self._emit(graph, node, plan, made)
        old = node.outputs[0]
        scope.states[new] = scope[old]
        graph.set_type(new, TensorType(onnx.TensorProto.INT64, scope[old].shape))
        graph.replace_all_uses(old, new)
        graph.remove_dead([node])

    def _emit(self, graph: Graph, node: Node, plan: Plan, made: dict[Plan, str]) -> str:
        """The value of a plan; nodes that it lacks are put in front of `node`."""
        if plan[0] == "Const":
            return self._constant(graph, plan)
        if plan in made and graph.producer(made[plan]) is not None:  # not removed with its last user since
            return made[plan]
        op, *parts = plan
        inputs = parts if op == "Shape" else [self._emit(graph, node, part, made) for part in parts]
        name = graph.new_name(f"{'/'.join(parts) if op == 'Shape' else 'sizes'}/{op}")
        proto = NodeProto(op_type=op, input=inputs, output=[f"{name}_out"], name=name)
        if op in ("Gather", "Concat"):
            proto.attribute.append(onnx.helper.make_attribute("axis", 0))
        graph.insert(proto, node)
        made[plan] = f"{name}_out"
        return made[plan]

    def _constant(self, graph: Graph, plan: Plan) -> str:
        key = (id(graph), plan)
        if key not in self._constants or not graph.is_constant(self._constants[key]):
            array = np.array(plan[2], dtype=np.int64).reshape(plan[1])
            self._constants[key] = graph.add_constant(array, "sizes")
        return self._constants[key]


def _is_gather(node: Node) -> bool:
    return not node.domain and node.op_type in ("Gather", "GatherND")


def _keeps_shape(scope: Scope, node: Node, source: State, result: State) -> bool:
    if source.shape != result.shape or None in (source.shape or ()):
        return False
    if node.op_type != "Slice":
        return True
    steps = node.input(4)
    return not steps or set(scope[steps].ints() or (0,)) == {1}


def _is_frontier(scope: Scope, node: Node, planner: Planner) -> bool:
    """True for a node that makes plannable sizes for a user that will not itself be planned."""
    if len(node.outputs) != 1 or node.subgraphs or scope.graph.is_output(node.outputs[0]):
        return False
    state = scope.states.get(node.outputs[0])
    if state is None or state.items is None or state.known or not planner.can(state):
        return False
    return any(not _is_planned(scope, user, planner) for user in scope.graph.consumers(node.outputs[0]))


def _is_planned(scope: Scope, node: Node, planner: Planner) -> bool:
    return not node.subgraphs and all(planner.can(scope.states.get(value)) for value in node.outputs)


def _why_open(result: State) -> str:
    sizes = ", ".join(str(dim) for dim in result.shape or ())
    return f"no constant target gives [{sizes}] for all sizes, 0 included"


def _is_known(scope: Scope, node: Node) -> bool:
    if node.op_type == "Constant" and not node.domain:
        return False
    states = [scope.states.get(value) for value in node.outputs if value]
    return bool(states) and all(state is not None and state.items is not None and state.known for state in states)


def _is_used(graph: Graph, node: Node) -> bool:
    return any(graph.is_used(value) for value in node.outputs if value)


def _with_target(node: Node, target: str) -> NodeProto:
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    proto.input[1] = target
    kept = [attribute for attribute in proto.attribute if attribute.name != "allowzero"]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    return proto


def _feeders(graph: Graph, node: Node) -> list[Node]:
    return [p for value in graph.values_used_by(node) if (p := graph.producer(value)) is not None]


def _replace(graph: Graph, node: Node, proto: NodeProto) -> None:
    """Replace a node; what only the old one needed goes."""
    feeders = _feeders(graph, node)
    graph.replace_node(node, proto)
    graph.remove_dead(feeders)


def _bypass(graph: Graph, node: Node, value: str) -> None:
    """Let `value` stand for a node's first output; what only the node needed goes."""
    feeders = _feeders(graph, node)
    graph.remove(node)
    graph.bypass(node.outputs[0], value)
    graph.remove_dead(feeder for feeder in feeders if feeder.alive)
