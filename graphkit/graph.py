"""The graph: a thin index over the protobuf that stays true under every change.

Nodes stay protobufs in a linked list; producers, consumers and operators are looked up in constant time;
weights are lazy. Subgraphs of If, Loop and Scan are graphs of their own: a value of an outer graph that they
use counts as used by the node that holds them. Value names are unique over a graph and all graphs inside it
(names that shadow an outer one are renamed on the way in).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, ValueInfoProto

from graphkit import _body, _constants, _read, _views
from graphkit._rename import RenamingIndex
from graphkit.errors import GraphkitError
from graphkit.model import Model
from graphkit.node import Dim, Node, TensorType, make_info, type_of_info
from graphkit.weights import Weight, WeightStore, make_weight, moved_weight

if TYPE_CHECKING:
    import networkx

Gate = Callable[[str, str], bool]


def _open_gate(node: str, what: str) -> bool:
    return True


class Graph(RenamingIndex):
    """A graph, subgraph or local function, indexed; see the module's text.

    `model` is the model it came from, `parent` and `owner` the outer graph and the node that holds this one.
    The root's `gate(node, what)` is asked before every numbered rewrite; when it says no, nothing is done.
    """

    def __init__(self, model: Model, *, gate: Gate = _open_gate) -> None:
        super().__init__()
        self.model = model
        self.gate = gate
        self.doc: GraphProto | None = None  # documentation, annotations and sparse weights are written back
        self.function: FunctionProto | None = None
        self.opsets: dict[str, int] = {}
        self.functions: dict[tuple[str, str, str], Graph] = {}
        self._names: set[str] | None = None
        self._counter = 0

    @classmethod
    def of(cls, model: Model) -> Graph:
        """Index a model. Raises ModelError when its graph is not valid (cycles, names defined twice)."""
        graph = cls(model)
        _read.read_model(graph, model.proto)
        return graph

    # -- looking ------------------------------------------------------------------------------------------

    @property
    def root(self) -> Graph:
        """The outermost graph."""
        graph: Graph = self
        while graph.parent is not None:
            graph = graph.parent
        return graph

    @property
    def store(self) -> WeightStore:
        """Buffers that lazy weights point into."""
        return self.model.store

    def opset(self, domain: str = "") -> int:
        """Version of an operator set that this model imports, 0 when it does not."""
        return self.root.opsets.get(domain, 0)

    def walk(self) -> Iterator[Graph]:
        """This graph and all graphs inside it, outer ones first."""
        yield self
        for node in self.holders():
            if node.alive:
                for sub in node.subgraphs.values():
                    yield from sub.walk()

    def total(self) -> int:
        """Number of nodes here and in all graphs inside."""
        return sum(len(graph) for graph in self.walk())

    def type(self, value: str) -> TensorType | None:
        """Type of a value as far as it is known: from graph inputs, weights and shape inference.

        Shapes that a file merely declares for inner values and outputs are not believed.
        """
        found = self._types.get(value)
        if found is not None:
            return found
        weight = self.initializers.get(value)
        if weight is not None:
            found = TensorType(weight.data_type, weight.dims)
        elif value in self.input_infos:
            found = type_of_info(self.input_infos[value])
        elif value in self.inferred:
            found = self.inferred[value]
        elif self.parent is not None and not self.defines(value):
            return self.parent.type(value)
        if found is not None:
            self._types[value] = found
        return found

    def shape(self, value: str) -> tuple[Dim, ...] | None:
        """Shape of a value, None when its rank is unknown."""
        found = self.type(value)
        return found.shape if found else None

    def rank(self, value: str) -> int | None:
        """Rank of a value, None when unknown."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def dtype(self, value: str) -> int:
        """ONNX element type of a value, 0 when unknown."""
        found = self.type(value)
        return found.dtype if found else 0

    def weight(self, value: str) -> Weight | None:
        """The initializer of this name here or in an outer graph, unless a graph input can override it."""
        weight = self.initializers.get(value)
        if weight is not None:
            return None if value in self.input_infos else weight
        if self.parent is not None and not self.defines(value):
            return self.parent.weight(value)
        return None

    def is_constant(self, value: str) -> bool:
        """True for initializers and outputs of Constant nodes, here or in an outer graph."""
        if value in self.initializers:
            return value not in self.input_infos
        producer = self._producer.get(value)
        if producer is not None:
            return producer.op_type == "Constant" and not producer.domain
        return self.parent is not None and value not in self.input_infos and self.parent.is_constant(value)

    def constant(self, value: str) -> np.ndarray | None:
        """Values of a constant (read-only array), None when it is not one."""
        weight = self.weight(value)
        if weight is not None:
            return weight.array()
        producer = self._producer.get(value)
        if producer is not None:
            return _constants.constant_node_value(producer, self.store)
        if self.parent is not None and value and not self.defines(value):
            return self.parent.constant(value)
        return None

    def scalar(self, value: str) -> float | None:
        """Value of a constant with one element, as a float; None otherwise."""
        weight = self.weight(value)
        if weight is not None and any(dim != 1 for dim in weight.dims):
            return None
        array = weight.array() if weight is not None else self.constant(value)
        if array is None or array.size != 1 or array.dtype.kind in "OUS":
            return None
        return float(array.reshape(-1)[0])

    def sole_consumer(self, value: str) -> Node | None:
        """The node that uses the value, when it is used once in all and is not a graph output."""
        uses = self._uses.get(value)
        if uses is None or len(uses) != 1 or value in self.output_set:
            return None
        node, count = next(iter(uses.items()))
        return node if count == 1 else None

    # -- changing -----------------------------------------------------------------------------------------

    def allows(self, node: Node, what: str) -> bool:
        """Ask the gate for leave to do one numbered rewrite at `node`; `what` says in a few words which."""
        return self.root.gate(node.label, what)

    def build_subgraphs(self, node: Node) -> None:
        """Index the graph attributes of a new node; names that shadow outer ones are renamed."""
        _read.read_subgraphs(node, self)

    def settle(self, node: Node) -> None:
        """Keep value names unique and known after a node came in."""
        inner = [graph for sub in node.subgraphs.values() for graph in sub.walk()]
        for graph in inner:
            _read.unshadow(graph)
        names = self.root._names
        if names is not None:
            names.update(node.outputs)
            names.update(name for graph in inner for name in graph.all_names())

    def new_name(self, hint: str) -> str:
        """A value name not used anywhere in the model, made from `hint`."""
        root = self.root
        if root._names is None:
            root._names = {name for graph in root.walk() for name in graph.all_names()}
        name = hint
        while not name or name in root._names:
            root._counter += 1
            name = f"{hint}_{root._counter}"
        root._names.add(name)
        return name

    def put_initializer(self, name: str, weight: Weight) -> None:
        """Add or replace an initializer, also one of another model.

        Raises GraphkitError when a node or an outer graph defines the name, and in a local function, which
        has no initializers (see `add_constant`).
        """
        if self.is_function:
            raise GraphkitError(f"function '{self.name}' cannot have an initializer", tensor=name)
        super().put_initializer(name, moved_weight(weight, self.store))
        names = self.root._names
        if names is not None:
            names.add(name)

    def set_initializer(self, name: str, array: np.ndarray) -> str:
        """Add or replace an initializer of this graph; returns the name."""
        self.put_initializer(name, make_weight(name, array, self.store))
        return name

    def add_constant(self, array: np.ndarray, hint: str = "const") -> str:
        """Add a constant under a new name: an initializer, or in a subgraph or function a Constant node.

        MNN and the checker know subgraphs without initializers best, hence the difference.
        """
        name = self.new_name(hint)
        self.define_constant(name, array)
        return name

    def define_constant(self, name: str, array: np.ndarray) -> None:
        """Make `name`, which nothing defines now, a constant."""
        if self.parent is None and not self.is_function:
            self.set_initializer(name, array)
            return
        proto = _constants.constant_proto(make_weight(name, array, self.store))
        self.insert(proto, before=next(iter(self.nodes), None))

    def bypass(self, old: str, new: str) -> str:
        """Let the value `new` stand wherever `old` did; the node that makes `old` must be removed already.

        Names of graph outputs are kept: then the producer of `new` takes the name, and where that cannot be
        (graph inputs, constants, other outputs) an Identity makes it. Returns what `new` is called now.
        """
        self.replace_all_uses(old, new)
        if old not in self.output_set:
            return new
        if self.producer(new) is not None and new not in self.output_set:
            self.rename(new, old)
            return old
        self.insert(NodeProto(op_type="Identity", input=[new], output=[old], name=self.new_name(old)))
        return new

    def remove_dead(self, nodes: Iterable[Node]) -> list[Node]:
        """Remove those of `nodes` whose outputs nobody uses, then what only they used; returns what went."""
        stack, removed = [node for node in nodes if node.graph is self], []
        while stack:
            node = stack.pop()
            if self.contains(node) and not any(self.is_used(out) for out in node.outputs):
                feeders = {p for v in self.values_used_by(node) if (p := self.producer(v)) is not None}
                self.remove(node)
                removed.append(node)
                stack.extend(feeders)
        return removed

    def set_type(self, value: str, type_: TensorType) -> None:
        """Record the type of an inner value."""
        self.inferred[value] = type_
        self._types[value] = type_

    def set_inferred(self, types: Mapping[str, TensorType]) -> None:
        """Replace all inferred types of this graph."""
        self.inferred = dict(types)
        self._types.clear()

    def set_input_type(self, value: str, type_: TensorType) -> None:
        """Change the declared type of a graph input; what was inferred from it is forgotten."""
        info = ValueInfoProto()
        info.CopyFrom(self.input_infos[value])
        info.type.CopyFrom(make_info(value, type_).type)
        self.input_infos[value] = info
        for graph in self.root.walk():
            graph.set_inferred({})

    # -- as a whole ---------------------------------------------------------------------------------------

    def snapshot(self) -> _body.Snapshot:
        """The state of this root graph, for `restore`; cheap, for nodes and weights are shared."""
        return _body.snapshot(self)

    def restore(self, state: _body.Snapshot) -> None:
        """Return to a snapshot. Node objects from before are no longer part of the graph."""
        _read.restore(self, state)

    def check(self) -> None:
        """Raise GraphkitError when a value is undefined, defined twice or used before it is made."""
        problem = _body.find_problem(self)
        if problem:
            raise GraphkitError(problem)

    def to_proto(self) -> GraphProto:
        """This graph as a protobuf (large weights as references, see `Model`)."""
        return _body.write_graph(self)

    def to_model(self) -> Model:
        """The whole model, with this graph in it; weights stay shared."""
        return Model(_body.write_model(self), self.store, self.model.path)

    def replace_with(self, model: Model) -> None:
        """Take over another model's graph in place of this one (for passes that rebuild everything)."""
        self.model = model
        _read.read_model(self, model.proto)

    def to_graphsurgeon(self) -> Any:
        """This model as an `onnx_graphsurgeon.Graph`. Needs the extra `graphsurgeon`; reads all weights."""
        return _views.to_graphsurgeon(self.to_model().materialized())

    def from_graphsurgeon(self, graph: Any) -> None:
        """Take over an `onnx_graphsurgeon.Graph` in place of this graph's contents."""
        self.replace_with(Model.from_proto(_views.from_graphsurgeon(graph, self.model.proto)))

    def to_networkx(self) -> networkx.MultiDiGraph[Node]:
        """Nodes as a networkx graph: keys are `Node` objects, each edge has its value's name as key."""
        return _views.to_networkx(self)


__all__ = ["Dim", "Graph", "Node", "TensorType"]
