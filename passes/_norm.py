"""LayerNorm and RMSNorm recognised in the spellings of exporters.

Both are v / √(mean(v²) + ε) over some axes: with v = x − mean(x) the one, with v = x the other (Ba et al.,
"Layer Normalization", 2016; Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019). The search
starts at the root, which is a Sqrt or a Pow, and goes both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match
from graphkit.rewrite import Builder


@dataclass(frozen=True)
class NormMatch:
    """A normalization without its scale and bias: from `x` to `output` over `axes` (negative, ascending).

    `value` is what is squared and divided: x itself, or x minus its mean when `centred`.
    """

    x: str
    value: str
    output: str
    centred: bool
    axes: tuple[int, ...]
    epsilon: float
    nodes: tuple[Node, ...]

    @property
    def trailing(self) -> bool:
        """True when the axes are the last ones, as the operators need them."""
        return self.axes == tuple(range(-len(self.axes), 0))


@dataclass(frozen=True)
class Affine:
    """Constants that follow a normalization, in the shape of the normalized axes; None where missing.

    `names` are the values that hold scale and bias in just this shape, None where a new constant is needed.
    """

    scale: np.ndarray | None
    bias: np.ndarray | None
    output: str
    nodes: tuple[Node, ...]
    names: tuple[str | None, str | None] = (None, None)

    def scale_in(self, build: Builder, default: np.ndarray) -> str:
        """The scale as an input of a new node; `default` where there is none."""
        return self.names[0] or build.const(default if self.scale is None else self.scale, "scale")

    def bias_in(self, build: Builder) -> str | None:
        """The bias as an input of a new node, None where there is none."""
        if self.bias is None:
            return None
        return self.names[1] or build.const(self.bias, "bias")


@dataclass(frozen=True)
class _Head:
    """What stands before the root: mean(value²) + ε."""

    value: str
    axes: tuple[int, ...]
    epsilon: float
    nodes: tuple[Node, ...]


def find_norm(graph: Graph, root: Node) -> NormMatch | str | None:
    """The normalization around a Sqrt or Pow node, a reason when most of one is there, else None."""
    head = _find_head(graph, root)
    if head is None or isinstance(head, str):
        return head
    centre = _centred(graph, head.value, head.axes)
    tail = _find_tail(graph, root, head, centre)
    if tail is None or isinstance(tail, str):
        return tail
    output, tail_nodes = tail
    before, x = centre if centre else ((), head.value)
    nodes = tuple(dict.fromkeys((*before, *head.nodes, root, *tail_nodes)))
    inside = _match.used_outside(graph, nodes, [output])
    if inside is not None:
        return f"'{inside}' inside the normalization is used elsewhere"
    return NormMatch(x, head.value, output, centre is not None, head.axes, head.epsilon, nodes)


def _find_head(graph: Graph, root: Node) -> _Head | str | None:
    if root.op_type == "Pow" and _root_exponent(graph, root) is None:
        return None
    add = _match.made_by(graph, root.inputs[0], "Add")
    scaled = _match.with_scalar(graph, add) if add is not None else None
    if add is None or scaled is None:
        return None
    mean = _match.made_by(graph, scaled[0], "ReduceMean")
    square = _match.made_by(graph, mean.inputs[0], "Pow", "Mul") if mean is not None else None
    if mean is None or square is None or not _is_square(graph, square):
        return None
    value = square.inputs[0]
    axes = _match.axes_of(graph, mean, graph.rank(value))
    if axes is None:
        return "the axes are not constant, or need the rank of the input, which is unknown"
    if not mean.attr("keepdims", 1):
        return f"'{mean.label}' does not keep the reduced axes"
    return _Head(value, axes, scaled[1], (square, mean, add))


def _root_exponent(graph: Graph, node: Node) -> float | None:
    exponent = _match.scalar_beside(graph, node.inputs[1], node.inputs[0])
    return exponent if exponent in (0.5, -0.5) else None


def _is_square(graph: Graph, node: Node) -> bool:
    if node.op_type == "Mul":
        return node.inputs[0] == node.inputs[1]
    return _match.scalar_beside(graph, node.inputs[1], node.inputs[0]) == 2.0


def _centred(graph: Graph, value: str, axes: tuple[int, ...]) -> tuple[tuple[Node, ...], str] | None:
    """Nodes of value = x − mean(x), and x; a Cast may follow (TorchScript subtracts in half, then casts)."""
    casts: tuple[Node, ...] = ()
    cast = _match.made_by(graph, value, "Cast")
    if cast is not None:
        casts, value = (cast,), cast.inputs[0]
    sub = _match.made_by(graph, value, "Sub")
    mean = _match.made_by(graph, sub.inputs[1], "ReduceMean") if sub is not None else None
    if sub is None or mean is None or mean.inputs[0] != sub.inputs[0] or not mean.attr("keepdims", 1):
        return None
    if _match.axes_of(graph, mean, graph.rank(sub.inputs[0])) != axes:
        return None
    return (mean, sub, *casts), sub.inputs[0]


def _find_tail(
    graph: Graph, root: Node, head: _Head, centre: tuple[tuple[Node, ...], str] | None
) -> tuple[str, tuple[Node, ...]] | str | None:
    """The result and the nodes behind the root: value / root, value · (1 / root), value · root^-½."""
    nodes: list[Node] = []
    inverse = root.op_type == "Pow" and _root_exponent(graph, root) == -0.5
    current = root.outputs[0]
    node = _match.next_op(graph, current, "Reciprocal", "Div", "Mul")
    if node is not None and not inverse and _is_reciprocal(graph, node, current):
        nodes.append(node)
        inverse, current = True, node.outputs[0]
        node = _match.next_op(graph, current, "Mul")
    if node is None or node.op_type != ("Mul" if inverse else "Div"):
        return _why_shared(graph, current)
    if node.op_type == "Div" and node.inputs[1] != current:
        return None
    other = node.inputs[1] if node.inputs[0] == current else node.inputs[0]
    if other != head.value:
        again = _centred(graph, other, head.axes)
        if centre is None or again is None or again[1] != centre[1]:
            return None
        nodes.extend(again[0])
    return node.outputs[0], (*nodes, node)


def _why_shared(graph: Graph, value: str) -> str | None:
    uses = {user.op_type for user in graph.consumers(value)}
    if {"Div", "Mul", "Reciprocal"} & uses and graph.use_count(value) > 1:
        return f"'{value}' inside the normalization is used elsewhere"
    return None


def _is_reciprocal(graph: Graph, node: Node, value: str) -> bool:
    if node.op_type == "Reciprocal":
        return True
    return node.op_type == "Div" and node.inputs[1] == value and graph.scalar(node.inputs[0]) == 1.0


def op_source(graph: Graph, found: NormMatch) -> tuple[str, str] | str:
    """Input and result of an operator for this match, with Casts around it taken in; a reason when types mix.

    The operator computes in float32 whatever its type is (`stash_type` 1), so Casts to float32 or double
    before and back to the type of x after are part of it.
    """
    cast = _match.next_op(graph, found.output, "Cast")
    before = _match.made_by(graph, found.x, "Cast")
    types = {graph.dtype(found.x), graph.dtype(found.value), graph.dtype(found.output)}
    if cast is not None:
        to = cast.attr("to")
        if before is not None and graph.dtype(before.inputs[0]) == to and to in _match.FLOATS:
            return before.inputs[0], cast.outputs[0]
        if graph.dtype(found.x) == to:
            return found.x, cast.outputs[0]
    if len(types) > 1:
        return "the input and the result are of different types"
    return found.x, found.output


def find_affine(graph: Graph, output: str, shape: tuple[int, ...], rank: int | None, *, bias: bool = True) -> Affine:
    """Constant scale (Mul) and bias (Add) of the normalized `shape` that directly follow `output`."""
    scale, mul, scale_name = _constant_after(graph, output, "Mul", shape, rank)
    nodes = [mul] if mul is not None else []
    output = mul.outputs[0] if mul is not None else output
    none = (None, None, None)
    shift, add, shift_name = _constant_after(graph, output, "Add", shape, rank) if bias else none
    if add is not None:
        nodes.append(add)
        output = add.outputs[0]
    return Affine(scale, shift, output, tuple(nodes), (scale_name, shift_name))


def _constant_after(
    graph: Graph, value: str, op_type: str, shape: tuple[int, ...], rank: int | None
) -> tuple[np.ndarray | None, Node | None, str | None]:
    node = _match.next_op(graph, value, op_type)
    operands = _match.with_constant(graph, node) if node is not None else None
    if node is None or operands is None or operands[0] != value:
        return None, None, None
    constant = graph.constant(operands[1])
    array = fit(constant, shape, rank)
    if array is None or constant is None:
        return None, None, None
    return array, node, operands[1] if constant.shape == shape else None


def fit(array: np.ndarray | None, shape: tuple[int, ...], rank: int | None) -> np.ndarray | None:
    """A constant in the shape of the normalized axes; None when it has other axes or would add some."""
    if array is None or array.ndim > (len(shape) if rank is None else rank):
        return None
    extra = max(array.ndim - len(shape), 0)
    if any(dim != 1 for dim in array.shape[:extra]):
        return None
    try:
        return np.broadcast_to(array.reshape(array.shape[extra:]), shape)
    except ValueError:
        return None


def normalized_shape(graph: Graph, value: str, axes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Sizes of trailing axes of a value, None when one is unknown, or 0: the operators want elements there."""
    shape = graph.shape(value)
    if shape is None or len(shape) < len(axes):
        return None
    dims = tuple(dim for dim in shape[-len(axes) :] if isinstance(dim, int) and dim)
    return dims if len(dims) == len(axes) else None
