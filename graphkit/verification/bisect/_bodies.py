"""What runs inside an If or a Loop as a model of its own, fed with what it read in the reference run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.runtime import Session
from graphkit.verification.bisect._cuts import Cuts, Piece
from graphkit.verification.bisect._values import Array
from graphkit.verification.bisect.cutting import body_region, cut, feeds_of

_ITERATIONS = 3  # of a Loop that are looked at


def bodies(cuts: Cuts) -> Iterator[Piece]:
    """The branch that each If took, and the first iterations of each Loop, outer nodes in order.

    What cannot be computed is left out; other nodes with graphs inside them (Scan) are too.
    """
    for node in cuts.graph.holders():
        try:
            if node.op == "If":
                yield from _branch(cuts, node)
            elif node.op == "Loop":
                yield from _iterations(cuts, node)
        except GraphkitError:  # a value that is no tensor, or one that onnxruntime does not compute
            continue


def _branch(cuts: Cuts, node: Node) -> Iterator[Piece]:
    taken = bool(np.asarray(cuts.values[node.inputs[0]]).reshape(-1)[0])
    body = node.subgraphs["then_branch" if taken else "else_branch"]
    if len(body):
        yield _case(cuts, body, {})


def _iterations(cuts: Cuts, node: Node) -> Iterator[Piece]:
    body = node.subgraphs["body"]
    states = [cuts.values[name] for name in node.inputs[2:]]
    limit = int(np.asarray(cuts.values[node.inputs[0]]).reshape(-1)[0]) if node.input(0) else _ITERATIONS
    going = np.asarray(cuts.values[node.inputs[1]]).reshape(()) if node.input(1) else np.array(True)
    for count in range(min(limit, _ITERATIONS)):
        if not going:
            return
        given = dict(zip(body.inputs, [np.array(count), going, *states], strict=True))
        model, feeds = _case(cuts, body, given)
        yield model, feeds
        with Session(model) as session:
            made = session.run(feeds)
        known = [made[name] if name in made else _passed(cuts, body, name, given) for name in body.outputs]
        going, states = np.asarray(known[0]).reshape(()), known[1 : 1 + len(states)]


def _passed(cuts: Cuts, body: Graph, name: str, given: dict[str, Array]) -> Array:
    """An output of a body that none of its nodes makes."""
    constant = body.constant(name)
    return given[name] if name in given else np.asarray(constant) if constant is not None else cuts.values[name]


def _case(cuts: Cuts, body: Graph, given: dict[str, Array]) -> Piece:
    region = body_region(body)
    outer = [name for name in region.inputs if name not in given]
    cuts.values.fetch(outer)
    values = {**given, **{name: cuts.values[name] for name in outer}}
    return cut(region, values), feeds_of(region, values)
