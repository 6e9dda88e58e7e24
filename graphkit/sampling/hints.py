"""What a graph and the names in it tell about the values its inputs may take.

An input is followed through operators that move values without changing them, to the operators that read
them: a Gather bounds its indices by the table's size, an Equal names the constants that matter, a Conv
fixes the number of channels.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
# Operators that calculate with all their inputs, and those that do so with input 0 only (others say where or how).
_COMPUTING = frozenset(
    (
        "Abs", "Add", "And", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil",
        "Clip", "Concat", "Cos", "Div", "Equal", "Exp", "Floor", "Gemm", "Greater", "GreaterOrEqual", "Identity",
        "Less", "LessOrEqual", "MatMul", "MatMulInteger", "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "Or",
        "Relu", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt", "Sub", "Sum", "Tanh", "Where", "Xor",
    )
)  # fmt: skip
_COMPUTING_FIRST = frozenset(
    (
        "ArgMax", "ArgMin", "CumSum", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Pad", "ReduceL1",
        "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
        "ReduceSum", "ReduceSumSquare", "Reshape", "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Split",
        "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze",
    )
)  # fmt: skip
# Inputs that are steps of a quantization: something is divided by them.
_STEPS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1,)),
    **dict.fromkeys(("QLinearMatMul", "QLinearConv", "QLinearAdd", "QLinearMul"), (1, 4, 6)),
    **dict.fromkeys(("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearReduceMean"), (1, 3)),
    **dict.fromkeys(("QLinearAveragePool", "QLinearGlobalAveragePool"), (1, 3)),
    "QLinearConcat": tuple(range(64)),
    "QLinearWhere": (2, 5, 7),
    "QGemm": (1, 4, 7),
    "QAttention": (3, 4),
    "DynamicQuantizeMatMul": (2,),
    "MatMulIntegerToFloat": (2, 3),
}
_WRAPPING = ("GatherElements", "GatherND", "ScatterElements", "ScatterND", "Scatter")
_LIMIT = 4000  # visited uses; the hints are heuristics and must stay cheap


@dataclass(frozen=True)
class Hints:
    """What is known about one input.

    bounds: (size, offset): value + offset must be below size, where size may be a symbolic dimension;
    constants: scalars it is compared with by Equal; flipped: read as `1 - x` or by a logical operator;
    sizes: dimensions that a weight fixes, by axis (negative from the end); divisor: something is divided by it;
    step: it is the step of a quantization; scales: factors of a Resize; computed: only calculated with, never an
    index, a size or a position; wraps: an index as it is and may be negative, counted from the end (a Gather's may be
    too, but no tokens and labels are); distinct: places of which none comes twice; share: from 0 to 1, as scores, their
    thresholds and the sizes of boxes are (NonMaxSuppression keeps nothing where the threshold is beyond the scores).
    """

    bounds: tuple[tuple[Dim, int], ...] = ()
    constants: tuple[float, ...] = ()
    flipped: bool = False
    sizes: tuple[tuple[int, int], ...] = ()
    divisor: bool = False
    step: bool = False
    scales: bool = False
    computed: bool = False
    wraps: bool = False
    distinct: bool = False
    share: bool = False


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
    flipped = divisor = step = scales = wraps = distinct = share = False
    for use in _uses_of(graph, name):
        op, index = use.node.op_type, use.index
        divisor |= (op in ("Div", "Mod") and index == 1) or (op == "Range" and index == 2)
        distinct |= op == "MaxUnpool" and index == 1
        share |= op == "NonMaxSuppression" and index in (0, 1, 3, 4)
        step |= index in _STEPS.get(op, ())
        scales |= (op == "Resize" and index == 2) or (op == "Upsample" and index == 1)
        wraps |= op in _WRAPPING and index == 1 and use.node.inputs[1] == name
        bounds.update(dict.fromkeys((size, use.offset) for size in _table_sizes(use)))
        if use.node.op_type == "Equal":
            constants.update(dict.fromkeys(_other_scalar(use)))
        flipped |= _is_flip(use)
    sizes = tuple(_fixed_sizes(graph, name).items())
    computed = _only_computed(graph, name)
    return Hints(
        tuple(bounds), tuple(constants), flipped, sizes, divisor, step, scales, computed, wraps, distinct, share
    )


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
    find = _TABLES.get((use.node.op_type, use.index))
    return (size for size in find(use.graph, use.node) if size is not None) if find else iter(())


def _sizes_at_axis(graph: Graph, node: Node) -> Sequence[Dim]:
    shape, axis = graph.shape(node.inputs[0]), int(node.attr("axis", 0))
    return (shape[axis],) if shape and -len(shape) <= axis < len(shape) else ()


def _rows_at_axis(graph: Graph, node: Node) -> Sequence[Dim]:
    """GatherBlockQuantized: rows along an axis that is never packed."""
    shape, axis = graph.shape(node.inputs[0]), node.attr("gather_axis", 0)
    return (shape[axis],) if shape and isinstance(axis, int) and -len(shape) <= axis < len(shape) else ()


def _sizes_of_tuple(graph: Graph, node: Node) -> Sequence[Dim]:
    """GatherND and ScatterND: each index tuple walks along the first dimensions."""
    shape, where = graph.shape(node.inputs[0]), graph.shape(node.inputs[1])
    if not shape or not where or not isinstance(where[-1], int):
        return ()
    first = int(node.attr("batch_dims", 0))
    return shape[first : first + where[-1]]


def _classes(graph: Graph, node: Node) -> Sequence[Dim]:
    return (graph.shape(node.inputs[0]) or ())[1:2]


def _places(graph: Graph, node: Node) -> Sequence[Dim]:
    """MaxUnpool: places in what the windows cover, flat."""
    shape, kernel = graph.shape(node.inputs[0]) or (), node.attr("kernel_shape", [])
    rank = len(kernel)
    strides, pads = node.attr("strides") or [1] * rank, node.attr("pads") or [0] * (2 * rank)
    sizes = [size for size in shape if isinstance(size, int)]
    if len(sizes) != rank + 2:
        return ()
    covered = [(sizes[2 + i] - 1) * strides[i] - pads[i] - pads[i + rank] + kernel[i] for i in range(rank)]
    return (math.prod([*sizes[:2], *covered]),)


def _depth(graph: Graph, node: Node) -> Sequence[Dim]:
    depth = graph.scalar(node.inputs[1])
    return () if depth is None else (int(depth),)


def _codes(index: int) -> Callable[[Graph, Node], Sequence[Dim]]:
    """Equal: a one-hot encoding spelled as a comparison with 0, 1, 2, …"""

    def find(graph: Graph, node: Node) -> Sequence[Dim]:
        codes = graph.constant(node.inputs[1 - index])
        found = codes is not None and codes.size > 1 and codes.dtype.kind in "iu"
        return (int(codes.max()) + 1,) if codes is not None and found else ()

    return find


def _rows_of(table: int) -> Callable[[Graph, Node], Sequence[Dim]]:
    return lambda graph, node: (graph.shape(node.input(table)) or ())[:1]


# Operator and number of the input that holds indices → where the table's size is.
_TABLES: dict[tuple[str, int], Callable[[Graph, Node], Sequence[Dim]]] = {
    **{(op, 1): _sizes_at_axis for op in ("Gather", "GatherElements", "ScatterElements", "Scatter")},
    **{(op, 1): _sizes_of_tuple for op in ("GatherND", "ScatterND")},
    **{(op, 1): _classes for op in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")},
    ("GatherBlockQuantized", 1): _rows_at_axis,
    ("MaxUnpool", 1): _places,
    ("OneHot", 0): _depth,
    ("Equal", 0): _codes(0),
    ("Equal", 1): _codes(1),
    ("EmbedLayerNormalization", 0): _rows_of(2),
    ("EmbedLayerNormalization", 1): _rows_of(4),
}


def _only_computed(graph: Graph, name: str) -> bool:
    """True when whatever depends on the input is calculated with and chooses no place and no size."""
    queue, seen = deque([name]), {name}
    while queue and len(seen) < _LIMIT:
        value = queue.popleft()
        for node in graph.consumers(value):
            places = [index for index, other in enumerate(node.inputs) if other == value]
            first = node.op_type in _COMPUTING_FIRST and places == [0]
            updates = node.op_type in ("ScatterElements", "ScatterND") and 1 not in places
            if node.subgraphs or not (node.op_type in _COMPUTING or first or updates):
                return False
            fresh = [output for output in node.outputs if output and output not in seen]
            if node.op_type not in ("Shape", "Size"):
                seen.update(fresh)
                queue.extend(fresh)
    return len(seen) < _LIMIT


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
