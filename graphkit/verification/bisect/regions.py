"""Parts of a graph: what lies between values that are known to be right and one that is not.

A region is judged by feeding its inputs and looking at its outputs, so it must hold every node on the way from the
one to the other. Where a region is long, dominators split it: values that everything on the way goes through, so that
each piece has one input that varies. Source: Cooper, Harvey and Kennedy 2001, "A Simple, Fast Dominance Algorithm",
as networkx has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.node import Node

_UPSTREAM = 8  # layers of nodes in front of one that are added until it fails as it does in the model
_SOURCE = ""  # in front of all that goes into a region; no value has this name


@dataclass(frozen=True)
class Region:
    """Nodes of one graph, each behind those that it reads; `inputs` are the values they read that are neither made here
    nor constant, `outputs` those that are looked at."""

    graph: Graph
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @cached_property
    def made(self) -> frozenset[str]:
        """All values that the nodes make."""
        return frozenset(out for node in self.nodes for out in node.outputs if out)

    @property
    def inner(self) -> tuple[str, ...]:
        """Values that the nodes make and somebody reads, in order; values of Constant nodes are left out."""
        return tuple(
            out
            for node in self.nodes
            if node.op_type != "Constant"
            for out in node.outputs
            if out and (self.graph.is_used(out) or out in self.outputs)
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """What messages call the nodes, without Constant nodes."""
        return tuple(node.label for node in self.nodes if node.op_type != "Constant")


def between(graph: Graph, outputs: Sequence[str], anchors: Collection[str] = ()) -> Region:
    """What computes `outputs` from `anchors`, graph inputs and constants.

    An anchor that is an output is computed, not fed. Raises UsageError when an output is no value of a node of this
    graph.
    """
    for name in outputs:
        if graph.producer(name) is None:
            raise UsageError(f"no node makes '{name}'", tensor=name, hint="name an inner value or an output")
    found: set[Node] = set()
    waiting = list(outputs)
    first = set(outputs)
    while waiting:
        name = waiting.pop()
        node = graph.producer(name)
        if node is None or node in found or (name in anchors and name not in first):
            continue
        found.add(node)
        waiting.extend(graph.values_used_by(node))
    return of_nodes(graph, found, outputs)


def of_nodes(graph: Graph, nodes: Collection[Node], outputs: Sequence[str] | None = None) -> Region:
    """The region of these nodes; its outputs, unless given, are what others read of it."""
    chosen = set(nodes)
    ordered = tuple(node for node in graph.nodes if node in chosen)
    made = {out for node in ordered for out in node.outputs if out}
    needed = dict.fromkeys(name for node in ordered for name in sorted(graph.values_used_by(node)))
    inputs = tuple(name for name in needed if name not in made and not graph.is_constant(name))
    return Region(graph, ordered, inputs, tuple(outputs) if outputs is not None else _leaving(graph, ordered, chosen))


def _leaving(graph: Graph, ordered: Sequence[Node], chosen: Collection[Node]) -> tuple[str, ...]:
    """Values that nodes outside read, or that are outputs of the graph."""
    return tuple(
        out
        for node in ordered
        for out in node.outputs
        if out and (graph.is_output(out) or any(user not in chosen for user in graph.consumers(out)))
    )


def around(region: Region, steps: int) -> Region:
    """The region with `steps` more layers of nodes on both sides; its outputs and what else leaves it are looked at.

    Nodes that compute from constants alone come along without counting as a step.
    """
    graph, chosen = region.graph, set(region.nodes)
    edge = set(chosen)
    for _ in range(steps):
        edge = {near for node in edge for near in _neighbours(graph, node)} - chosen
        chosen |= edge
    chosen |= _constant_makers(graph, chosen)
    outputs = dict.fromkeys((*region.outputs, *_leaving(graph, [n for n in graph.nodes if n in chosen], chosen)))
    return of_nodes(graph, chosen, tuple(outputs))


def _neighbours(graph: Graph, node: Node) -> Iterator[Node]:
    for name in graph.values_used_by(node):
        maker = graph.producer(name)
        if maker is not None:
            yield maker
    for out in node.outputs:
        yield from graph.consumers(out) if out else ()


def _constant_makers(graph: Graph, chosen: Collection[Node]) -> set[Node]:
    """Nodes that compute what the chosen ones read, from nothing that varies."""
    fixed = constant_nodes(graph)
    waiting, found = list(chosen), set[Node]()
    while waiting:
        for name in graph.values_used_by(waiting.pop()):
            maker = graph.producer(name)
            if maker is not None and maker in fixed and maker not in found:
                found.add(maker)
                waiting.append(maker)
    return found


def constant_nodes(graph: Graph) -> set[Node]:
    """Nodes that compute the same for all inputs: from constants, from types alone, from shapes that are known."""
    fixed: set[Node] = set()

    def is_fixed(name: str) -> bool:
        return graph.is_constant(name) or graph.producer(name) in fixed

    for node in graph.nodes:
        used = graph.values_used_by(node)
        if node.op == "CastLike":
            used = {node.inputs[0]}
        known = node.op in ("Shape", "Size") and _is_static(graph, node.inputs[0])
        if known or all(is_fixed(name) for name in used):
            fixed.add(node)
    return fixed


def _is_static(graph: Graph, name: str) -> bool:
    type_ = graph.type(name)
    return type_ is not None and type_.static


def upstream(
    graph: Graph, node: Node, within: Collection[Node], output: str, fixed: Collection[Node]
) -> Iterator[Region]:
    """The node alone, then with what feeds it from constants alone, then with all that feeds it, one, two, … layers up.

    Never leaves `within`.
    """
    outputs = [output] if output else [out for out in node.outputs if out and graph.is_used(out)]
    yield of_nodes(graph, {node}, outputs)
    chosen = {node}
    while more := {maker for maker in _makers(graph, chosen) if maker in fixed and maker in within} - chosen:
        chosen |= more
    yield of_nodes(graph, chosen, outputs)
    for _ in range(_UPSTREAM):
        chosen = chosen | {maker for maker in _makers(graph, chosen) if maker in within}
        yield of_nodes(graph, chosen, outputs)


def _makers(graph: Graph, nodes: Collection[Node]) -> set[Node]:
    found = {graph.producer(name) for node in nodes for name in graph.values_used_by(node)}
    return {node for node in found if node is not None}


def dominators(region: Region, output: str) -> tuple[str, ...]:
    """Inner values that every way from the region's inputs to `output` goes through, in order; constants aside.

    Raises UsageError when the region does not make `output`.
    """
    if output not in region.made:
        raise UsageError(f"the region does not make '{output}'", tensor=output)
    flow = networkx.DiGraph()
    fixed = constant_nodes(region.graph)
    for node in region.nodes:
        if node in fixed:
            continue
        reads = [name for name in region.graph.values_used_by(node) if name in region.made or name in region.inputs]
        for name in reads:
            for out in node.outputs:
                flow.add_edge(name, out) if out else None
    for name in region.inputs:
        if name in flow:
            flow.add_edge(_SOURCE, name)
    if output not in flow or _SOURCE not in flow:
        return ()
    above = networkx.immediate_dominators(flow, _SOURCE)
    chain: list[str] = []
    name = above.get(output, _SOURCE)
    while name != _SOURCE:
        chain.append(name)
        name = above.get(name, _SOURCE)
    return tuple(name for name in reversed(chain) if name in region.made)


def places(root: Graph) -> Iterator[tuple[str, Graph]]:
    """All graphs of a model by their place, outer ones first."""
    yield "", root
    for node in root.holders():
        for branch, inner in node.subgraphs.items():
            for name, graph in places(inner):
                yield "/".join(part for part in (node.label, branch, name) if part), graph
