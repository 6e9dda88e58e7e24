"""The structural check after each pass: definitions, order, interface, and each new node by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx
from onnx import AttributeProto, NodeProto, TypeProto

from graphkit._body import Snapshot, find_problem, write_function, write_node
from graphkit.graph import Graph
from graphkit.node import GRAPH_KINDS, Node, TensorType, make_info, type_of_info

_MAX_DEPTH = 8  # new nodes in a row whose types are worked out
_TENSORS = (AttributeProto.TENSOR, AttributeProto.TENSORS, AttributeProto.SPARSE_TENSOR)


# -- has anything changed? --------------------------------------------------------------------------------


def differs(graph: Graph, before: Snapshot) -> bool:
    """True when nodes, weights, inputs, outputs, functions or operator sets are not those of the snapshot.

    Linear and cheap: what is shared is compared by identity. Types that were inferred do not count.
    """
    return (
        graph.model is not before.model
        or graph.opsets != before.opsets
        or list(graph.input_infos.items()) != list(before.inputs.items())
        or list(graph.output_infos.items()) != list(before.outputs.items())
        or not _same_objects(graph.initializers, before.initializers)
        or not _same_nodes(graph, before.nodes)
        or [write_function(function) for function in graph.functions.values()] != before.functions
    )


def _same_objects(now: Mapping[str, object], then: Mapping[str, object]) -> bool:
    return now.keys() == then.keys() and all(now[name] is then[name] for name in now)


def _same_nodes(graph: Graph, then: list[NodeProto]) -> bool:
    nodes = list(graph.nodes)
    if len(nodes) != len(then):
        return False
    others = [pair for pair in zip(nodes, then, strict=True) if pair[0].proto is not pair[1]]
    return all(node.subgraphs and _equal(_untyped(write_node(node)), _untyped(proto)) for node, proto in others)


def _untyped(proto: NodeProto) -> NodeProto:
    """A node with subgraphs, without the types of the values inside."""
    copy = NodeProto()
    copy.CopyFrom(proto)
    for attribute in copy.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.type in GRAPH_KINDS else ():
            del graph.value_info[:]
            nodes = [_untyped(node) for node in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return copy


def _equal(one: NodeProto, other: NodeProto) -> bool:
    return one == other or one.SerializeToString() == other.SerializeToString()  # NaN is not equal to itself


# -- is it still a valid graph with the same interface? ---------------------------------------------------


def find_fault(graph: Graph, before: Snapshot) -> str | None:
    """What a pass broke, in words, None when nothing: values undefined or defined twice, outputs renamed or
    retyped, new inputs, and nodes that the ONNX checker refuses though it accepted what stood there before.
    """
    fresh, in_order = _survey(graph, set(map(id, before.nodes)))
    return (
        _interface_fault(graph, before)
        or (None if in_order else find_problem(graph))
        or next(filter(None, map(find_problem, graph.functions.values())), None)
        or _checker_fault(graph, before, fresh)
        or _type_fault(graph, before, {id(node.proto) for node in fresh})
    )


def _survey(graph: Graph, old: set[int]) -> tuple[list[Node], bool]:
    """Nodes whose protobufs are new (ids not in `old`), and a quick answer to "is all defined, in order?".

    One loop, for it runs over every node after every pass; where the answer is no, `find_problem` finds out.
    """
    fresh: list[Node] = []
    in_order = True
    known = {"", *graph.input_infos, *graph.initializers}
    for node in graph.nodes:
        if node.subgraphs:
            in_order = False  # what they capture is for find_problem
            fresh.extend(inner for inner in _inside(node) if id(inner.proto) not in old)
        if id(node.proto) not in old:
            fresh.append(node)
        if not known.issuperset(node.inputs):
            in_order = False
        known.update(node.outputs)
    return fresh, in_order and known.issuperset(graph.output_infos)


def _inside(node: Node) -> Iterator[Node]:
    for sub in node.subgraphs.values():
        for inner in sub.nodes:
            yield inner
            yield from _inside(inner)


def _interface_fault(graph: Graph, before: Snapshot) -> str | None:
    if list(before.outputs) != graph.outputs:
        return f"the model's outputs changed from {list(before.outputs)} to {graph.outputs}"
    added = [name for name in graph.inputs if name not in before.inputs]
    return f"the model has new inputs: {added}" if added else None


def _checker_fault(graph: Graph, before: Snapshot, fresh: list[Node]) -> str | None:
    check = _Checker(graph)
    failed_before: set[str] | None = None
    for node in fresh:
        problem = None if node.subgraphs else check.problem(node)
        if problem is None:
            continue
        if failed_before is None:
            old = (Node(proto, graph) for proto in _all_protos(before.nodes))
            failed_before = {node.outputs[0] for node in old if node.outputs and check.problem(node)}
        if not node.outputs or node.outputs[0] not in failed_before:
            return f"node '{node.label}' ({node.op}) is not valid ONNX: {problem}"
    return None


def invalid_node(graph: Graph) -> str | None:
    """The first node of a model that the ONNX checker refuses, and why; None when there is none.

    Operators that ONNX does not know at all may be known to somebody else: these are no fault.
    """
    check = _Checker(graph)
    for inner in graph.walk():
        for node in inner.nodes:
            known = onnx.defs.has(node.op_type, node.domain) and not node.subgraphs
            problem = check.problem(node) if known else None
            if problem is not None:
                return f"node '{node.label}' ({node.op}): {problem}"
    return None


def _all_protos(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    for node in nodes:
        inner = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
        inner += [g for a in node.attribute if a.type == AttributeProto.GRAPHS for g in a.graphs]
        if not inner:
            yield node
        for graph in inner:
            yield from _all_protos(graph.node)


class _Checker:
    """ONNX's check of single nodes. Nodes that differ in names and numbers only are checked once."""

    def __init__(self, graph: Graph) -> None:
        self._context = onnx.checker.C.CheckerContext()
        self._context.ir_version = min(max(graph.model.proto.ir_version, 3), onnx.IR_VERSION)
        self._context.opset_imports = graph.opsets
        self._known: dict[object, str | None] = {}

    def problem(self, node: Node) -> str | None:
        """Why the node by itself is not valid, None when it is (or holds a lazy tensor, whose data are elsewhere)."""
        if any(a.type == AttributeProto.TENSOR and a.t.data_location for a in node.proto.attribute):
            return None
        key = _signature(node)
        if key is None:
            return self._check(node.proto)
        if key not in self._known:
            self._known[key] = self._check(node.proto)
        return self._known[key]

    def _check(self, proto: NodeProto) -> str | None:
        try:
            onnx.checker.check_node(proto, self._context)
        except onnx.checker.ValidationError as error:
            return str(error).strip().splitlines()[0]
        return None


def _signature(node: Node) -> object:
    """What the checker's answer depends on; None when it looks at the data of tensors too."""
    attributes = [(a.name, a.type, a.ref_attr_name) for a in node.proto.attribute]
    if any(kind in _TENSORS for _, kind, _ in attributes):
        return None
    given = (tuple(map(bool, node.inputs)), tuple(map(bool, node.outputs)))
    return (node.domain, node.op_type, *given, *attributes)


# -- types of outputs -------------------------------------------------------------------------------------


def _type_fault(graph: Graph, before: Snapshot, fresh: set[int]) -> str | None:
    """An output that new nodes make with another element type or rank than it had, where types are known."""
    for name, info in before.outputs.items():
        producer = graph.producer(name)
        if producer is None or id(producer.proto) not in fresh:
            continue
        now, declared = _type_of(graph, name, fresh, _MAX_DEPTH), type_of_info(info)
        known = before.inferred.get(name)
        if now is None:
            continue
        dtype = (declared.dtype if declared else 0) or (known.dtype if known else 0)
        if dtype and now.dtype and now.dtype != dtype:
            return f"output '{name}' changed its element type from {_word(dtype)} to {_word(now.dtype)}"
        if known is not None and None not in (known.rank, now.rank) and known.rank != now.rank:
            return f"output '{name}' changed its rank from {known.rank} to {now.rank}"
    return None


def _word(dtype: int) -> str:
    return str(onnx.TensorProto.DataType.Name(dtype).lower())


def _type_of(graph: Graph, value: str, fresh: set[int], depth: int) -> TensorType | None:
    """Type of a value; for what new nodes make, worked out from their inputs rather than looked up."""
    node = graph.producer(value)
    if node is None or id(node.proto) not in fresh or graph.is_constant(value):
        return graph.type(value)
    if depth == 0 or node.subgraphs:
        return None
    types: dict[str, TypeProto] = {}
    for name in filter(None, node.inputs):
        found = _type_of(graph, name, fresh, depth - 1)
        if found is None or not found.dtype:
            return None
        types[name] = make_info(name, found).type
    made = _infer(graph, node, types).get(value)
    return None if made is None else type_of_info(onnx.ValueInfoProto(name=value, type=made))


def _infer(graph: Graph, node: Node, types: dict[str, TypeProto]) -> dict[str, TypeProto]:
    weights = [w for name in node.inputs if (w := graph.weight(name)) is not None]
    data = {weight.name: weight.proto for weight in weights if weight.ref is None}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in graph.opsets.items()]
    try:
        schema = onnx.defs.get_schema(node.op_type, graph.opset(node.domain), node.domain)
        return dict(onnx.shape_inference.infer_node_outputs(schema, node.proto, types, data, opset_imports=opsets))
    except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, KeyError, RuntimeError, ValueError):
        return {}  # an operator that ONNX does not know: then nothing is known
    except onnx.checker.ValidationError:
        return {}  # element types that the operator does not take
