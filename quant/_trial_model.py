"""A model whose weights can be replaced from run to run: each layer reads its own, which a feed may override.

One onnxruntime session then serves every trial; a session a trial would cost more than the trial.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import TensorType, make_info
from graphkit.quant._views import Views
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
    homes = {layer.where: writer.home(layer) for layer in layers}
    for layer in layers:
        names[layer.name] = _separate(graph, writer, layer)
    for (_, weight), home in homes.items():
        writer.drop(home, weight, ())
    return graph.to_model(), names


def _separate(graph: Graph, writer: Writer, layer: Layer) -> str:
    """Let the layer's nodes read an initializer of their own; returns its name."""
    name = graph.new_name(f"{layer.weight}_trial")
    graph.put_initializer(name, renamed_weight(_stored(writer.home(layer), layer.weight), name))
    graph.input_infos[name] = make_info(name, TensorType(layer.dtype, layer.shape))
    views = Views(layer.weight, name)
    for node in writer.users(layer):
        views.redirect(node, 0 if layer.kind == "Embedding" else 1)
    for view in views.replaced:
        if view.alive:
            view.graph.remove_dead([view])
    return name


def _stored(home: Graph, value: str) -> Weight:
    """A constant of a graph. Raises GraphkitError when it is none."""
    weight = home.initializers.get(value)
    node = home.producer(value)
    if weight is None and node is not None and node.op == "Constant":
        tensors = [attribute.t for attribute in node.proto.attribute if attribute.name == "value"]
        weight = next((Weight(tensor, home.store) for tensor in tensors), None)
    if weight is None:
        raise GraphkitError("the graph has no such weight", tensor=value)
    return weight
