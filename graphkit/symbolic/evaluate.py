"""Abstract evaluation of a whole model: types, symbolic shapes and small integer values in one linear sweep.

Each node is looked at once, in order. What its outputs are depends on its operator, attributes and what is
known about its inputs, so equal cases (the layers of a transformer) are computed once. Operators without a
transfer function of ours go to ONNX's own inference, one node at a time. Nothing that a file declares is
believed except the types of graph inputs.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TypeProto
from onnx.shape_inference import InferenceError, infer_function_output_types, infer_node_outputs

from graphkit.graph import Graph
from graphkit.node import Dim, Node, TensorType, make_info, type_of_info
from graphkit.symbolic import control
from graphkit.symbolic.contrib import CONTRIB
from graphkit.symbolic.pools import POOLS, trim_pooled
from graphkit.symbolic.state import ITEM_TYPES, UNKNOWN, State, of_constant
from graphkit.symbolic.symbols import Symbols
from graphkit.symbolic.transfer import TRANSFER

_Key = tuple[object, ...]
_READS_FLOATS = frozenset(("Resize", "Upsample", "Range", "ConstantOfShape"))

_INFERENCE_ERRORS = (
    InferenceError,
    onnx.checker.ValidationError,
    onnx.defs.SchemaError,
    RuntimeError,
    ValueError,
    TypeError,
)


class Scope:
    """What is known about the values of one graph; values of outer graphs are looked up in `parent`."""

    def __init__(self, graph: Graph, parent: Scope | None = None) -> None:
        self.graph = graph
        self.parent = parent
        self.states: dict[str, State] = {"": UNKNOWN}
        self.protos: dict[str, TypeProto] = {}  # sequences and optionals
        self.inner: dict[int, Scope] = {}  # by id of the subgraph

    def __getitem__(self, value: str) -> State:
        state = self.states.get(value)
        if state is None:
            state = self.states[value] = self._find(value)
        return state

    def _find(self, value: str) -> State:
        graph = self.graph
        weight = graph.initializers.get(value)
        if weight is not None and value not in graph.input_infos:
            return of_constant(weight.data_type, weight.dims, weight.array)
        if self.parent is not None and not graph.defines(value):
            return self.parent[value]
        array = graph.constant(value)
        return UNKNOWN if array is None else of_array_constant(array)

    def proto(self, value: str) -> TypeProto | None:
        """Type of a value that is no tensor, None when it is one or nothing is known."""
        found = self.protos.get(value)
        return found or (self.parent.proto(value) if self.parent is not None else None)


class Evaluator:
    """Evaluates a root graph and the graphs inside it. `root` holds the result after `run`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.symbols = Symbols()
        self.root = Scope(graph)
        self._memo: dict[_Key, tuple[State, ...]] = {}
        self._type_protos: dict[tuple[int, object], TypeProto] = {}
        self._opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in graph.root.opsets.items()]

    def run(self) -> Scope:
        """Evaluate everything; returns the scope of the root graph."""
        infos = self.graph.input_infos
        declared = {name: type_of_info(info) for name, info in infos.items()}
        for type_ in declared.values():
            for dim in type_.shape or () if type_ else ():
                if isinstance(dim, str):
                    self.symbols.name(dim)
        for name, type_ in declared.items():
            if type_ is not None:
                self.bind(self.root, name, State(type_.dtype, type_.shape))
            else:
                self.root.protos[name] = infos[name].type
        self.sweep(self.root)
        return self.root

    def bind(self, scope: Scope, value: str, state: State) -> None:
        """Record what is known about a value; unknown sizes get names of their own."""
        shape = state.shape
        if shape is not None and None in shape:
            graph = id(scope.graph)
            prefix = f"{scope.graph.owner.label}/" if scope.graph.owner is not None else ""
            named = (
                self.symbols.fresh((graph, value, axis), f"{prefix}{value}[{axis}]") if dim is None else dim
                for axis, dim in enumerate(shape)
            )
            state = State(state.dtype, tuple(named), state.items)
        scope.states[value] = state

    def sweep(self, scope: Scope) -> None:
        """Evaluate the nodes of one graph in order."""
        states = scope.states
        for node in scope.graph.nodes:
            ins = [states[v] if v in states else scope[v] for v in node.inputs]
            outs = self.node(scope, node, ins)
            for value, state in zip(node.outputs, outs, strict=False):
                if value:
                    if state.shape is not None and None in state.shape:
                        self.bind(scope, value, state)
                    else:
                        states[value] = state

    def node(self, scope: Scope, node: Node, ins: list[State]) -> tuple[State, ...]:
        """What is known about the outputs of one node; unknown sizes are None here."""
        if node.subgraphs:
            return control.evaluate(self, scope, node, ins)
        if node.op_type == "Constant" and not node.domain:
            return (_constant(scope, node),)
        if UNKNOWN in ins:  # sequences, which states do not tell apart, and omitted inputs
            return self._transfer(scope, node, ins)
        attributes = node.proto.attribute
        plain = node.domain or node.op_type not in _READS_FLOATS
        key = (
            node.op,
            len(node.outputs),
            tuple([a.SerializeToString() for a in attributes]) if attributes else None,
            *ins,
            *(() if plain else node.inputs),
        )
        outs = self._memo.get(key)
        if outs is None:
            outs = self._transfer(scope, node, ins)
            if scope.protos.keys().isdisjoint(node.outputs):
                self._memo[key] = outs
        return outs

    def _transfer(self, scope: Scope, node: Node, ins: list[State]) -> tuple[State, ...]:
        rule = CONTRIB.get(node.op) if node.domain else TRANSFER.get(node.op_type) or CONTRIB.get(node.op_type)
        if rule is not None and ins:
            try:
                outs = rule(node, ins, self.symbols)
            except (IndexError, ValueError):  # ranks, axes or counts that do not fit: an invalid node
                outs = None
            if outs is not None:
                return outs
        return self._onnx(scope, node, ins)

    # -- ONNX's inference of one node ----------------------------------------------------------------------

    def _onnx(self, scope: Scope, node: Node, ins: list[State]) -> tuple[State, ...]:
        function = scope.graph.root.functions.get((node.domain, node.op_type, node.proto.overload))
        types = {value: self._type_proto(scope, value, state) for value, state in self._visible(node, ins)}
        try:
            if function is not None and function.function is not None:
                listed = infer_function_output_types(
                    function.function, [types[v] for v in node.inputs if v], list(node.proto.attribute)
                )
                found = dict(zip(node.outputs, listed, strict=True))
            else:
                schema = onnx.defs.get_schema(node.op_type, scope.graph.opset(node.domain), node.domain)
                found = infer_node_outputs(
                    schema, node.proto, types, self._data(scope, node, ins), opset_imports=self._opsets
                )
        except _INFERENCE_ERRORS:
            # An operator that is unknown or that inference chokes on must not keep the others from theirs.
            return tuple(UNKNOWN for _ in node.outputs)
        outs = tuple(self._take(scope, value, found.get(value)) for value in node.outputs)
        return tuple(trim_pooled(node, ins[0], out) for out in outs) if node.op_type in POOLS else outs

    def _visible(self, node: Node, ins: list[State]) -> list[tuple[str, State]]:
        return [(value, state) for value, state in zip(node.inputs, ins, strict=True) if value]

    def _type_proto(self, scope: Scope, value: str, state: State) -> TypeProto:
        if state.dtype == 0:
            return scope.proto(value) or TypeProto()
        key = (state.dtype, state.shape)
        if key not in self._type_protos:
            self._type_protos[key] = make_info("", TensorType(state.dtype, state.shape)).type
        return self._type_protos[key]

    def _data(self, scope: Scope, node: Node, ins: list[State]) -> dict[str, onnx.TensorProto]:
        data = {}
        for value, state in self._visible(node, ins):
            array: np.ndarray | None = None
            if state.known:
                array = values_of(state)
            elif node.op_type in _READS_FLOATS:
                weight = scope.graph.constant(value) if scope.graph.is_constant(value) else None
                array = weight if weight is not None and weight.size <= 64 else None
            if array is not None:
                data[value] = onnx.numpy_helper.from_array(array, value)
        return data

    def _take(self, scope: Scope, value: str, proto: TypeProto | None) -> State:
        if proto is None:
            return UNKNOWN
        if not proto.HasField("tensor_type"):
            scope.protos[value] = proto
            return UNKNOWN
        type_ = type_of_info(onnx.ValueInfoProto(type=proto))
        if type_ is None:
            return UNKNOWN
        return State(type_.dtype, self._known(type_.shape))

    def _known(self, shape: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
        """A shape without names that are none of ours: elements of a sequence may differ in what shares a name."""
        if shape is None:
            return None
        return tuple(dim if isinstance(dim, int) or dim in self.symbols else None for dim in shape)


def _constant(scope: Scope, node: Node) -> State:
    """The state of a Constant node; floating-point values are not read."""
    attribute = node.proto.attribute[0] if node.proto.attribute else None
    if attribute is not None and attribute.name == "value" and attribute.t.data_type not in ITEM_TYPES:
        return State(attribute.t.data_type, tuple(attribute.t.dims))
    array = scope.graph.constant(node.outputs[0])
    return UNKNOWN if array is None else of_array_constant(array)


def of_array_constant(array: np.ndarray) -> State:
    """The state of a constant given by its values."""
    if array.dtype.kind in "OUS":
        return State(onnx.TensorProto.STRING, array.shape)
    return of_constant(onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, lambda: array)


def values_of(state: State) -> np.ndarray:
    """The values of a state that is known in full."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(state.dtype)
    return np.array(state.ints(), dtype=dtype).reshape(state.sizes() or ())


def evaluate(graph: Graph) -> Evaluator:
    """Evaluate a root graph; returns the evaluator with its result."""
    evaluator = Evaluator(graph)
    evaluator.run()
    return evaluator


__all__ = ["Evaluator", "Scope", "evaluate"]
