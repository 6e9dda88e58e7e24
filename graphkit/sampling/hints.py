"""What a graph and the names in it tell about the values its inputs may take.

An input is followed through operators that move values without changing them, to the operators that read
them: a Gather bounds its indices by the table's size, an Equal names the constants that matter, a Conv
fixes the number of channels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from graphkit.graph import Graph
from graphkit.node import Dim, Node

# Operators whose output holds the values of these inputs; None means of all inputs.
_MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Cast", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Slice", "Flatten"), (0,)),
    **dict.fromkeys(("Transpose", "Expand", "Split", "Tile", "Clip", "Pad", "Gather", "GatherND"), (0,)),
    "GatherElements": (0,),
    "Where": (1, 2),
    "Concat": None,
}
_ELEMENTWISE = ("Cast", "Identity", "Add", "Sub", "Mul", "Div", "Pad", "Relu", "Neg", "Sqrt", "Clip", "Pow")
_LIMIT = 4000  # visited uses; the hints are heuristics and must stay cheap


@dataclass(frozen=True)
class Hints:
    """What is known about one input.

    bounds: (size, offset): value + offset must be below size, where size may be a symbolic dimension;
    constants: scalars it is compared with by Equal; flipped: read as `1 - x` or by a logical operator;
    sizes: dimensions that a weight fixes, by axis (negative from the end).
    """

    bounds: tuple[tuple[Dim, int], ...] = ()
    constants: tuple[float, ...] = ()
    flipped: bool = False
    sizes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class _Use:
    graph: Graph
    node: Node
    index: int
    offset: int


def hints_for(graph: Graph, name: str) -> Hints:
    """Look at all uses of a graph input, in subgraphs too."""
    bounds: dict[tuple[Dim, int], None] = {}
    constants: dict[float, None] = {}
    flipped = False
    for use in _uses_of(graph, name):
        bounds.update(dict.fromkeys((size, use.offset) for size in _table_sizes(use)))
        if use.node.op_type == "Equal":
            constants.update(dict.fromkeys(_other_scalar(use)))
        flipped |= _is_flip(use)
    return Hints(tuple(bounds), tuple(constants), flipped, tuple(_fixed_sizes(graph, name).items()))


def _uses_of(graph: Graph, name: str) -> Iterator[_Use]:
    """Uses of a value and of the values it is moved to, breadth first."""
    queue = deque([(graph, name, 0)])
    seen = {(id(graph), name, 0)}
    while queue and len(seen) < _LIMIT:
        here, value, offset = queue.popleft()
        for use in _direct_uses(here, value, offset):
            yield use
            for target in _moved_to(use):
                key = (id(target[0]), target[1], target[2])
                if key not in seen:
                    seen.add(key)
                    queue.append(target)


def _direct_uses(graph: Graph, value: str, offset: int) -> Iterator[_Use]:
    for node in graph.consumers(value):
        for index, name in enumerate(node.inputs):
            if name == value:
                yield _Use(graph, node, index, offset)
        for sub in node.subgraphs.values():
            if not sub.defines(value):
                yield from _direct_uses(sub, value, offset)


def _moved_to(use: _Use) -> Iterator[tuple[Graph, str, int]]:
    node = use.node
    body = node.subgraphs.get("body")
    if body is not None:
        # Loop and Scan hand input i to input i of their body.
        if use.index < len(body.inputs):
            yield body, body.inputs[use.index], use.offset
        return
    offset = use.offset
    if node.op_type in ("Add", "Sub") and use.index == 0:
        step = use.graph.scalar(node.inputs[1])
        if step is None or step != int(step):
            return
        offset += int(step) if node.op_type == "Add" else -int(step)
    else:
        moved = _MOVES.get(node.op_type, ())
        if moved is not None and use.index not in moved:
            return
    for output in node.outputs:
        if output:
            yield use.graph, output, offset


def _table_sizes(use: _Use) -> Iterator[Dim]:
    """Sizes of the tables that this use looks up."""
    node, graph = use.node, use.graph
    if node.op_type in ("Gather", "GatherElements") and use.index == 1:
        shape, axis = graph.shape(node.inputs[0]), int(node.attr("axis", 0))
        if shape and -len(shape) <= axis < len(shape) and shape[axis] is not None:
            yield shape[axis]
    elif node.op_type == "OneHot" and use.index == 0:
        depth = graph.scalar(node.inputs[1])
        if depth is not None:
            yield int(depth)
    elif node.op_type == "Equal":
        # A one-hot encoding spelled as a comparison with 0, 1, 2, …
        codes = use.graph.constant(node.inputs[1 - use.index])
        if codes is not None and codes.size > 1 and codes.dtype.kind in "iu":
            yield int(codes.max()) + 1
    elif node.op_type == "EmbedLayerNormalization" and use.index in (0, 1):
        shape = graph.shape(node.input(2 if use.index == 0 else 4))
        if shape and shape[0] is not None:
            yield shape[0]


def _other_scalar(use: _Use) -> list[float]:
    other = use.graph.scalar(use.node.inputs[1 - use.index])
    return [] if other is None else [other]


def _is_flip(use: _Use) -> bool:
    node = use.node
    if node.op_type in ("Not", "And", "Or", "Xor") or (node.op_type == "Where" and use.index == 0):
        return True
    return node.op_type == "Sub" and use.index == 1 and use.graph.scalar(node.inputs[0]) == 1.0


def _fixed_sizes(graph: Graph, name: str) -> dict[int, int]:
    """Dimensions of an input that the first weights it meets fix, by axis."""
    found: dict[int, int] = {}
    queue, seen = deque([name]), {name}
    while queue and len(seen) < _LIMIT:
        value = queue.popleft()
        for node in graph.consumers(value):
            for axis, size in _weight_sizes(graph, node, value):
                found.setdefault(axis, size)
            if node.op_type in _ELEMENTWISE:
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                queue.extend(fresh)
    return found


def _weight_sizes(graph: Graph, node: Node, value: str) -> Iterator[tuple[int, int]]:
    if node.input(0) != value or len(node.inputs) < 2:
        return
    shape = graph.shape(node.inputs[1])
    if not shape or not all(isinstance(size, int) for size in shape):
        return
    sizes = [size for size in shape if isinstance(size, int)]
    if node.op_type == "Conv" and len(sizes) > 1:
        yield 1, sizes[1] * int(node.attr("group", 1))
    elif node.op_type in ("ConvTranspose", "BatchNormalization", "InstanceNormalization"):
        yield 1, sizes[0]
    elif node.op_type == "MatMul" and graph.is_constant(node.inputs[1]) and len(sizes) > 1:
        yield -1, sizes[-2]
    elif node.op_type == "Gemm" and len(sizes) == 2 and not node.attr("transA", 0):
        yield -1, sizes[1] if node.attr("transB", 0) else sizes[0]
    elif node.op_type in ("LSTM", "GRU", "RNN") and len(sizes) == 3:
        yield -1, sizes[2]
