"""A model whose weights can be replaced from run to run: each layer reads its own, which a feed may override.

One onnxruntime session then serves every trial; a session a trial would cost more than the trial.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import GraphkitError
from graphkit.graph import Graph, Node
from graphkit.model import Model
from graphkit.node import TensorType, make_info, with_inputs
from graphkit.quant.layers import Layer
from graphkit.quant.write import Writer
from graphkit.weights import Weight, renamed_weight


def overridable(model: Model, layers: Sequence[Layer]) -> tuple[Model, dict[str, str]]:
    """The model with one overridable initializer a layer, and their names by the names of the layers.

    They have the shape, the type and the values of the weights as stored. Layers that share a weight (a table that a
    product multiplies with, too) get one each. Weights are shared with `model`, which is not changed.
    """
    graph = Graph.of(Model(model.proto, model.store, model.path))
    writer, names = Writer(graph), {}
    for layer in layers:
        names[layer.name] = _separate(graph, writer, layer)
    for layer in layers:
        if any(inner.defines(layer.weight) for inner in graph.walk()):
            writer.drop(writer.home(layer.weight), layer.weight, ())
    return graph.to_model(), names


def stored_weight(graph: Graph, value: str) -> Weight:
    """The constant of this name, wherever in the graph it is defined. Raises GraphkitError when there is none."""
    for inner in graph.walk():
        weight = inner.initializers.get(value)
        if weight is not None:
            return weight
        node = inner.producer(value)
        if node is not None and node.op == "Constant":
            for attribute in node.proto.attribute:
                if attribute.name == "value":
                    return Weight(attribute.t, inner.store)
    raise GraphkitError("the graph has no such weight", tensor=value)


def _separate(graph: Graph, writer: Writer, layer: Layer) -> str:
    """Let the layer's nodes read an initializer of their own; returns its name."""
    name = graph.new_name(f"{layer.weight}_trial")
    graph.put_initializer(name, renamed_weight(stored_weight(graph, layer.weight), name))
    graph.input_infos[name] = make_info(name, TensorType(layer.dtype, layer.shape))
    index = 0 if layer.kind == "Embedding" else 1
    views: dict[str, str] = {}
    for node in writer.users(layer):
        old = node.inputs[index]
        node.graph.set_input(node, index, _through_views(node, old, layer.weight, name, views))
    old_views = [(inner, view) for value in views for inner in graph.walk() if (view := inner.producer(value))]
    for inner, view in old_views:
        inner.remove_dead([view])
    return name


def _through_views(user: Node, value: str, old: str, new: str, views: dict[str, str]) -> str:
    """What stands for `value` when `old`, which it is a view of (Transpose, Identity), becomes `new`."""
    if value == old:
        return new
    view = _maker(user.graph, value)
    copy = with_inputs(view.proto, [_through_views(user, view.inputs[0], old, new, views)])
    copy.name = user.graph.new_name(f"{value}_trial")
    del copy.output[:]
    copy.output.append(copy.name)
    user.graph.insert(copy, user)
    views[value] = copy.name
    return copy.name


def _maker(graph: Graph | None, value: str) -> Node:
    """The node that makes a value of this graph or of one around it."""
    while graph is not None:
        node = graph.producer(value)
        if node is not None:
            return node
        graph = graph.parent
    raise GraphkitError("no node makes this value", tensor=value)
