"""The index proper: who makes and who uses each value, across nested graphs.

Invariants, checked by hypothesis in tests/test_graph_properties.py: `_uses[v][n]` counts how often node `n`
uses `v`, in its inputs or anywhere inside its subgraphs; a value not defined in a subgraph is counted in the
parent as used by the subgraph's owner, once for each use inside and for each mention as its output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from itertools import chain
from typing import Self

from onnx import NodeProto, ValueInfoProto

from graphkit._order import NodeOrder
from graphkit.errors import GraphkitError
from graphkit.node import WITH_GRAPHS, Node, TensorType, normal_domain, with_inputs
from graphkit.weights import Weight, renamed_weight


class Index(NodeOrder):
    """Structure of one graph; `graphkit.graph.Graph` adds types, constants and whole-graph operations."""

    def __init__(self) -> None:
        super().__init__()
        self.parent: Self | None = None
        self.owner: Node | None = None
        self.is_function = False
        self.name = ""
        self.input_infos: dict[str, ValueInfoProto] = {}
        self.output_infos: dict[str, ValueInfoProto] = {}
        self.initializers: dict[str, Weight] = {}
        self.inferred: dict[str, TensorType] = {}
        self.declared: dict[str, ValueInfoProto] = {}
        self._types: dict[str, TensorType] = {}
        self._producer: dict[str, Node] = {}
        self._uses: dict[str, dict[Node, int]] = {}
        self._by_op: dict[str, dict[Node, None]] = {}
        self._holders: dict[Node, None] = {}

    # -- looking ------------------------------------------------------------------------------------------

    @property
    def inputs(self) -> list[str]:
        """Names of the graph inputs."""
        return list(self.input_infos)

    @property
    def outputs(self) -> list[str]:
        """Names of the graph outputs."""
        return list(self.output_infos)

    @property
    def output_set(self) -> dict[str, ValueInfoProto]:
        """The graph outputs, for membership tests."""
        return self.output_infos

    def defines(self, value: str) -> bool:
        """True when this very graph defines the value (input, initializer or node output)."""
        return value in self._producer or value in self.initializers or value in self.input_infos

    def sees(self, value: str) -> bool:
        """True when this graph or one around it defines the value."""
        return self.defines(value) or (self.parent is not None and self.parent.sees(value))

    def producer(self, value: str) -> Node | None:
        """The node of this graph that makes the value; None for inputs, initializers and outer values."""
        return self._producer.get(value)

    def consumers(self, value: str) -> list[Node]:
        """Nodes of this graph that use the value, themselves or inside their subgraphs, each once."""
        return list(self._uses.get(value, ()))

    def use_count(self, value: str) -> int:
        """How often nodes use the value, and once more when it is a graph output."""
        return sum(self._uses.get(value, {}).values()) + (value in self.output_infos)

    def is_output(self, value: str) -> bool:
        """True when the value is a graph output."""
        return value in self.output_infos

    def is_used(self, value: str) -> bool:
        """True when a node uses the value or it is a graph output."""
        return value in self._uses or value in self.output_infos

    def by_op(self, op_type: str, domain: str = "") -> list[Node]:
        """Nodes of one operator, in the order of their insertion."""
        domain = normal_domain(domain)
        return list(self._by_op.get(f"{domain}::{op_type}" if domain else op_type, ()))

    def holders(self) -> list[Node]:
        """Nodes that have subgraphs."""
        return list(self._holders)

    def op_counts(self) -> dict[str, int]:
        """Number of nodes of each operator of this graph, without its subgraphs."""
        return {op: len(nodes) for op, nodes in self._by_op.items() if nodes}

    def values_used_by(self, node: Node) -> set[str]:
        """Values that a node uses: its inputs and what its subgraphs capture."""
        used = {value for value in node.inputs if value}
        for sub in node.subgraphs.values():
            used.update(sub.captures())
        return used

    def captures(self) -> Counter[str]:
        """Values used here but defined outside, with the number of uses."""
        found = Counter({v: sum(uses.values()) for v, uses in self._uses.items() if not self.defines(v)})
        found.update(v for v in self.output_infos if not self.defines(v))
        return found

    def all_names(self) -> Iterator[str]:
        """Every value and node name of this graph, without its subgraphs."""
        own = (self.input_infos, self.initializers, self._producer, self._uses, self.output_infos)
        return chain(*own, [node.proto.name for node in self.nodes])

    # -- changing -----------------------------------------------------------------------------------------

    def fill(self, protos: Iterable[NodeProto]) -> None:
        """Add nodes to an empty graph that has no parent yet: `insert` for many, many times faster."""
        producer, uses, by_op = self._producer, self._uses, self._by_op
        given = {*self.input_infos, *self.initializers}
        last = None
        for size, proto in enumerate(protos, 1):
            node = Node(proto, self)  # type: ignore[arg-type]  # an Index is only ever made as a Graph
            for value in node.inputs:
                users = uses.get(value)
                if users is None:
                    uses[value] = {node: 1}
                else:
                    users[node] = users.get(node, 0) + 1
            for out in node.outputs:
                if out in producer or out in given:
                    raise _twice(out, node.label)
                if out:
                    producer[out] = node
            op = node.op
            group = by_op.get(op)
            if group is None:
                group = by_op[op] = {}
            group[node] = None
            node._prev = last
            if last is None:
                self._first = node
            else:
                last._next = node
            last, self._last, self._size = node, node, size
            if (node.domain or op in WITH_GRAPHS) and proto.attribute:
                self._join_subgraphs(node)
        self._listed = None
        uses.pop("", None)

    def insert(self, proto: NodeProto, before: Node | None = None) -> Node:
        """Add a node in front of `before`, or at the end. The protobuf must not be changed afterwards.

        Raises GraphkitError when one of its outputs is defined already, here or in a graph around this one.
        """
        if before is not None:
            self.require(before)
        self._check_outputs(proto)
        node = Node(proto, self)  # type: ignore[arg-type]  # an Index is only ever made as a Graph
        self._join_subgraphs(node)
        self._link(node, before)
        self._by_op.setdefault(node.op, {})[node] = None
        for value in node.inputs:
            self._add_use(value, node, 1)
        for out in node.outputs:
            if out:
                self._producer[out] = node
                self._hide(out)
        self.settle(node)
        return node

    def _check_outputs(self, proto: NodeProto, free: Container[str] = ()) -> None:
        seen = set()
        for out in proto.output:
            if out and (out in seen or (out not in free and self.sees(out))):
                raise _twice(out, proto.name or out)
            seen.add(out)

    def _join_subgraphs(self, node: Node) -> None:
        self.build_subgraphs(node)
        if node.subgraphs:
            self._holders[node] = None
        for sub in node.subgraphs.values():
            for value, count in sub.captures().items():
                self._add_use(value, node, count)

    def build_subgraphs(self, node: Node) -> None:
        """Index the graph attributes of a new node."""
        raise AssertionError("Graph implements this")

    def settle(self, node: Node) -> None:
        """Keep value names unique and known after a node came in."""
        raise AssertionError("Graph implements this")

    def remove(self, node: Node) -> None:
        """Take a node out of the graph. What it made may still be used: define it again, or bypass it.

        Raises GraphkitError when the node is not part of this graph.
        """
        self.require(node)
        for value in node.inputs:
            self._drop_use(value, node, 1)
        for sub in node.subgraphs.values():
            for value, count in sub.captures().items():
                self._drop_use(value, node, count)
        for out in node.outputs:
            if out:
                del self._producer[out]
                self._expose(out)
        del self._by_op[node.op][node]
        self._holders.pop(node, None)
        self._unlink(node)
        node.alive = False

    def replace_node(self, node: Node, proto: NodeProto) -> Node:
        """Put a node made from `proto` in the place of `node`. Raises GraphkitError as `insert` does."""
        self._check_outputs(proto, free=node.outputs)
        before = node._next
        self.remove(node)
        return self.insert(proto, before)

    def set_inputs(self, node: Node, inputs: list[str]) -> None:
        """Change what a node reads; its subgraphs stay as they are."""
        self.require(node)
        for value in node.inputs:
            self._drop_use(value, node, 1)
        node.proto, node.inputs = with_inputs(node.proto, inputs), tuple(inputs)
        for value in node.inputs:
            self._add_use(value, node, 1)

    def set_input(self, node: Node, index: int, value: str) -> None:
        """Change one input of a node; inputs before it that do not exist yet are omitted ones."""
        inputs = list(node.inputs)
        inputs.extend([""] * (index + 1 - len(inputs)))
        inputs[index] = value
        self.set_inputs(node, inputs)

    def put_initializer(self, name: str, weight: Weight) -> None:
        """Add or replace an initializer. Raises GraphkitError when a node or outer graph defines the name."""
        fresh = not self.defines(name)
        if name in self._producer or (fresh and self.sees(name)):
            raise _twice(name, name)
        self.initializers[name] = weight if weight.name == name else renamed_weight(weight, name)
        self._types.pop(name, None)
        if fresh:
            self._hide(name)

    def remove_initializer(self, name: str) -> None:
        """Take an initializer out."""
        del self.initializers[name]
        self._types.pop(name, None)
        if not self.defines(name):
            self._expose(name)

    def remove_input(self, name: str) -> None:
        """Take a graph input out; an initializer of the same name becomes a plain constant."""
        del self.input_infos[name]
        self._types.pop(name, None)
        if not self.defines(name):
            self._expose(name)

    # -- bookkeeping --------------------------------------------------------------------------------------

    def _pass_on(self, value: str, count: int) -> None:
        """Tell the parent, while it has our node, that uses of an outer value came (count > 0) or went."""
        if self.parent is None or self.owner is None or not self.owner.alive:
            return
        if count > 0:
            self.parent._add_use(value, self.owner, count)
        elif count < 0:
            self.parent._drop_use(value, self.owner, -count)

    def _add_use(self, value: str, node: Node, count: int) -> None:
        if not value:
            return
        uses = self._uses.setdefault(value, {})
        uses[node] = uses.get(node, 0) + count
        if self.parent is not None and not self.defines(value):
            self._pass_on(value, count)

    def _drop_use(self, value: str, node: Node, count: int) -> None:
        if not value:
            return
        uses = self._uses[value]
        uses[node] -= count
        if not uses[node]:
            del uses[node]
            if not uses:
                del self._uses[value]
        if self.parent is not None and not self.defines(value):
            self._pass_on(value, -count)

    def _hide(self, value: str) -> None:
        """The value has just been defined here: uses that counted as captures no longer do."""
        if self.parent is not None:
            self._pass_on(value, -self.use_count(value))

    def _expose(self, value: str) -> None:
        """The value is no longer defined here: its uses are captures now."""
        if self.parent is not None:
            self._pass_on(value, self.use_count(value))


def _twice(value: str, node: str) -> GraphkitError:
    return GraphkitError(f"value '{value}' is defined twice", node=node)
