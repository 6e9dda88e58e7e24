"""Codes into an ONNX graph: INT8 or INT4 initializers and a DequantizeLinear in place of the float weight.

onnxruntime then computes with exactly the numbers that `Codes.values` gives. Four forms, the first that fits:

- one scale a row, rows along one axis: codes in the weight's shape, DequantizeLinear along that axis;
- blocks, operator set 21 and later, kernel of one element: codes in the weight's shape, DequantizeLinear with
  `block_size`;
- blocks, operator set 21 and later: codes as the matrix [rows, columns] with `block_size`, then Reshape, Transpose;
- blocks below operator set 21: codes as [rows · blocks, columns of a block], one scale a row, then the same.

Codes of 2 to 4 bits are INT4 from operator set 21 (IR version 10), else INT8. The operator set is never raised: below
13, where ONNX has no DequantizeLinear with an axis, onnxruntime's of the same name is used (com.microsoft). Zero points
are whole numbers that fit the codes' type.
Source: ONNX Operators, DequantizeLinear (opset 10, 13, 21).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from graphkit._constants import constant_proto
from graphkit.errors import GraphkitError
from graphkit.graph import Graph, Node
from graphkit.quant._forms import BLOCKS_FROM, form_of, pack_int4, whole_zeros
from graphkit.quant._spill import Spill
from graphkit.quant._views import Views
from graphkit.quant.codes import Array, Codes
from graphkit.quant.layers import Layer
from graphkit.weights import Weight, make_weight

AXIS_FROM = 13  # operator set with an axis
_SHOWN = 4096  # elements by which equal constants are looked for
_INT4_IR = 10
_MICROSOFT = "com.microsoft"


@dataclass
class Writer:
    """Writes the codes of layers into a graph, one after another; `spill` takes large arrays, default is memory."""

    graph: Graph
    spill: Spill | None = None
    _ranks: dict[Graph, dict[Node, int]] = field(default_factory=dict)
    _known: dict[bytes, str] = field(default_factory=dict)

    def write(self, layer: Layer, codes: Codes) -> str:
        """Put codes in the place of a layer's weight, for all nodes of the layer; returns the value that has it now.

        The float weight goes when nothing else uses it. Raises GraphkitError when codes and layer do not fit, and for
        zero points that are no codes.
        """
        if codes.codes.shape != (layer.rows, layer.columns):
            raise GraphkitError(
                f"codes of shape {list(codes.codes.shape)} for a weight of {layer.rows} × {layer.columns}",
                node=layer.name,
            )
        if not whole_zeros(codes):
            raise GraphkitError("zero points that are no codes have no form in ONNX", node=layer.name)
        home = self.home(layer)
        users = self.users(layer)
        first = self._first(home, users)
        value = _Nodes(self, home, layer.weight, first).weight(layer, codes)
        views = Views(layer.weight, value, first)
        for node in users:
            views.redirect(node, 1)
        self.drop(home, layer.weight, views.replaced)
        return value

    def home(self, layer: Layer) -> Graph:
        """The graph that defines a layer's weight. Raises GraphkitError when none does."""
        home = next(itertools.islice(self.graph.walk(), layer.home, None), None)
        if home is None or not home.defines(layer.weight):
            raise GraphkitError("the graph has no such value", node=layer.name, tensor=layer.weight)
        return home

    def users(self, layer: Layer) -> list[Node]:
        """The nodes of a layer. Raises GraphkitError when they are not all there."""
        graphs = list(self.graph.walk())
        places = [place for place in layer.places if place < len(graphs)]
        found = [graphs[place].producer(out) for place, out in zip(places, layer.outputs, strict=False)]
        users = [node for node in found if node is not None]
        if len(users) != len(layer.outputs):
            raise GraphkitError("the layer's nodes are not in this graph", node=layer.name)
        return users

    def constant(self, home: Graph, hint: str, array: Array, data_type: int, *, share: bool = False) -> str:
        """Define a constant of this ONNX type in a graph; returns its name.

        array: the values, int8 also for INT4, which is packed here. share: an equal one that is there already serves.
        """
        key = b""
        if share and home.parent is None:
            key = _some_of(array) + f"{data_type} {array.shape}".encode()
            known = self._known.get(key)
            if known is not None and _holds(home, known, array):
                return known
        name = home.new_name(hint)
        weight = self._weight(name, array, data_type, home)
        if home.parent is None and not home.is_function:
            home.put_initializer(name, weight)
        else:
            home.insert(constant_proto(weight), before=next(iter(home.nodes), None))
        if key:
            self._known[key] = name
        return name

    def _weight(self, name: str, array: Array, data_type: int, home: Graph) -> Weight:
        stored = pack_int4(array) if data_type == TensorProto.INT4 else array
        if self.spill is not None:
            return self.spill.weight(name, stored, data_type, array.shape)
        if data_type != TensorProto.INT4:
            return make_weight(name, array, home.store)
        return Spill(home.store, 0).weight(name, stored, data_type, array.shape)

    def _first(self, home: Graph, users: Sequence[Node]) -> Node:
        """The first of the nodes of `home` that are, or hold, these users."""
        if home not in self._ranks:
            self._ranks[home] = {node: index for index, node in enumerate(home.nodes)}
        ranks = self._ranks[home]
        return min((_holder(home, node) for node in users), key=lambda node: ranks.get(node, -1))

    def drop(self, home: Graph, weight: str, views: Sequence[Node]) -> None:
        """Remove what nobody uses any more: views of the weight, then the weight itself."""
        for view in views:
            if view.alive:
                view.graph.remove_dead([view])
        if home.is_used(weight):
            return
        if weight in home.initializers:
            home.remove_initializer(weight)
        elif (node := home.producer(weight)) is not None:
            home.remove_dead([node])


def _holds(home: Graph, name: str, array: Array) -> bool:
    """True when a constant has these values."""
    weight = home.weight(name)
    # Read apart from the weight, which would keep what it has read.
    return weight is not None and np.array_equal(Weight(weight.proto, weight.store).array().astype(array.dtype), array)


def _some_of(array: Array) -> bytes:
    """Bytes that equal arrays share, and others hardly."""
    return array.reshape(-1)[:: max(1, array.size // _SHOWN)].tobytes()


def _holder(home: Graph, node: Node) -> Node:
    """The node of `home` that is this node or has it inside a subgraph."""
    while node.graph is not home:
        owner = node.graph.owner
        assert owner is not None, "a weight is defined in a graph around its users"
        node = owner
    return node


class _Nodes:
    """Makes the nodes that stand for one weight."""

    def __init__(self, writer: Writer, home: Graph, weight: str, before: Node) -> None:
        self.writer, self.home, self.weight_name, self.before = writer, home, weight, before

    def weight(self, layer: Layer, codes: Codes) -> str:
        """All nodes from the codes to the weight in its shape and type; returns its name."""
        graph = self.home.root
        form = form_of(layer, codes, graph.opset())
        narrow = graph.opset() >= BLOCKS_FROM and graph.model.proto.ir_version >= _INT4_IR and codes.bits <= 4
        kind = TensorProto.INT4 if narrow else TensorProto.INT8
        inputs = [
            self.constant(form.codes, "quantized", kind),
            self.constant(form.scales, "scale", TensorProto.FLOAT),
        ]
        if form.zeros is not None:
            inputs.append(self.constant(form.zeros.astype(np.int8), "zero_point", kind))
        value = self.dequantize(inputs, form.axis, form.block)
        for step, sizes in form.steps:
            value = self.op("Transpose", value, perm=sizes) if step == "perm" else self.reshape(value, sizes)
        return value if layer.dtype == TensorProto.FLOAT else self.op("Cast", value, to=layer.dtype)

    def constant(self, array: Array, what: str, kind: int) -> str:
        """A constant beside the weight."""
        return self.writer.constant(self.home, f"{self.weight_name}_{what}", array, kind, share=what == "quantized")

    def dequantize(self, inputs: Sequence[str], axis: int, block: int) -> str:
        """DequantizeLinear of the operator set that has what is needed."""
        root = self.home.root
        domain = "" if root.opset() >= AXIS_FROM else _MICROSOFT
        if domain:
            root.opsets.setdefault(_MICROSOFT, 1)
        attrs = {"block_size": block} if block else {}
        return self.op("DequantizeLinear", *inputs, domain=domain, axis=axis, **attrs)

    def reshape(self, value: str, sizes: Sequence[int]) -> str:
        """Reshape to fixed sizes."""
        return self.op("Reshape", value, self.constant(np.array(sizes, np.int64), "shape", TensorProto.INT64))

    def op(self, op_type: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        """Insert a node before the users; returns its output."""
        value = self.home.new_name(f"{self.weight_name}/{op_type}")
        proto = onnx.helper.make_node(op_type, inputs, [value], name=value, domain=domain, **attrs)
        self.home.insert(proto, self.before)
        return value
