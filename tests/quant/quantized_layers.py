"""Weights of layers as matrices, and exceptions as options, for tests."""

from __future__ import annotations

from typing import Any

from graphkit.graph import Graph
from graphkit.quant.codes import Array
from graphkit.quant.layers import Layer
from graphkit.quant.options import QuantizeOptions, parse_layers
from graphkit.quant.write import Writer


def weight_matrix(graph: Graph, layer: Layer) -> Array:
    """The weights of a layer, float32 [rows, columns]."""
    array = Writer(graph).home(layer).constant(layer.weight)
    assert array is not None
    return layer.matrix(array)


def options_of(*texts: str, **options: Any) -> QuantizeOptions:
    """Options with exceptions from texts."""
    return QuantizeOptions(**options, layers=parse_layers(texts))
