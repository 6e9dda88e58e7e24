"""Inside an If, Loop or Scan that is wrong: its body as a model of its own, on what it is given in the first round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.cutting import body_region, cut, feeds_of

Array = npt.NDArray[Any]


def entered(graph: Graph, node: Node, truth: Truth) -> tuple[str, Graph | None, Mapping[str, Array]]:
    """The subgraph of a node that runs (first), its name, and the values it is given and takes from outside.

    No graph for a node that has none.
    """
    if node.op not in ("If", "Loop", "Scan"):
        return "", None, {}
    given: dict[str, Array] = {}
    if node.op == "If":
        branch = "then_branch" if bool(np.any(_known(graph, node.inputs[0], truth))) else "else_branch"
    else:
        branch, given = "body", _first_round(graph, node, truth)
    body = node.subgraphs[branch]
    outer = [name for name in body.captures() if not body.is_constant(name)]
    return branch, body, {**given, **{name: _known(graph, name, truth) for name in outer}}


def _first_round(graph: Graph, node: Node, truth: Truth) -> dict[str, Array]:
    """What the body of a Loop or Scan reads in its first round."""
    body = node.subgraphs["body"]
    if node.op == "Loop":
        states = [_known(graph, name, truth) for name in node.inputs[2:]]
        return dict(zip(body.inputs, [np.array(0, np.int64), np.array(True), *states], strict=True))
    values = [_known(graph, name, truth) for name in node.inputs]
    scanned = int(node.attr("num_scan_inputs", 0))
    axes = node.attr("scan_input_axes", [0] * scanned)
    backward = node.attr("scan_input_directions", [0] * scanned)
    states, sequences = values[: len(values) - scanned], values[len(values) - scanned :]
    slices = [
        np.take(array, -1 if back else 0, axis) for array, axis, back in zip(sequences, axes, backward, strict=True)
    ]
    return dict(zip(body.inputs, [*states, *slices], strict=True))


def _known(graph: Graph, name: str, truth: Truth) -> Array:
    constant = graph.constant(name) if graph.is_constant(name) else None
    return np.asarray(constant) if constant is not None else truth.of([name])[name]


def body_truth(body: Graph, values: Mapping[str, Array]) -> Truth:
    """Reference values inside a body that is given these."""
    region = body_region(body)
    return Truth(cut(region, values), feeds_of(region, values))
