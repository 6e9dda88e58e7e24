"""MatMul and Gemm in the forms that MNN 3.6 computes wrong, cannot run or crashes on."""

from __future__ import annotations

from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.rewrite import Outcome, Refusal, Rule, rule

_INTEGERS = (TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64)
_LARGEST = 1 << 24  # elements of the products before they are summed


@rule("Gemm", name="gemm-transposed")
def gemm_transposed(graph: Graph, node: Node) -> Outcome:
    """Gemm with transA and a constant B, which becomes a convolution that forgets transA: a Transpose of A."""
    if not node.attr("transA", 0) or not graph.is_constant(node.inputs[1]):
        return None
    emit = Emit(graph, node)
    attrs = {key: value for key, value in node.attrs.items() if key != "transA"}
    turned = emit.op("Transpose", node.inputs[0], perm=[1, 0])
    y = emit.op("Gemm", turned, *node.inputs[1:], **attrs)
    return emit.rewrite({node.outputs[0]: y}, "Gemm of a transposed A as Transpose and Gemm")


@rule("MatMul", name="matmul-of-vectors")
def matmul_of_vectors(graph: Graph, node: Node) -> Outcome:
    """MatMul by a vector: crashes when both are vectors, cannot run with a constant one beside three dims or more."""
    left, right = node.inputs
    ranks = graph.rank(left), graph.rank(right)
    emit = Emit(graph, node)
    if ranks == (1, 1):
        y = emit.reduce("ReduceSum", emit.op("Mul", left, right), [0], keepdims=False)
        return emit.rewrite({node.outputs[0]: y}, "product of two vectors as Mul and ReduceSum")
    if ranks[1] != 1 or ranks[0] is None or ranks[0] < 3 or not graph.is_constant(right):
        return None
    y = emit.op("MatMul", left, emit.unsqueeze(right, 1))
    return emit.rewrite({node.outputs[0]: emit.squeeze(y, ranks[0] - 1)}, "MatMul by a vector as by a matrix")


@rule("MatMul", name="matmul-of-integers")
def matmul_of_integers(graph: Graph, node: Node) -> Outcome:
    """MatMul of integers, whose bits MNN takes for floats: products (right up to 2²⁴ in MNN), then their sum."""
    left, right = node.inputs
    if graph.dtype(left) not in _INTEGERS or graph.rank(left) == graph.rank(right) == 1:
        return None
    shapes = graph.shape(left), graph.shape(right)
    if shapes[0] is None or shapes[1] is None or min(map(len, (shapes[0], shapes[1]))) < 2:
        return Refusal("matmul-of-integers", node.label, "a rank is unknown, or one of its inputs is a vector")
    size = 1
    for dim in (*shapes[0], shapes[1][-1]):
        size *= dim if isinstance(dim, int) else 1
    if size > _LARGEST:
        return Refusal("matmul-of-integers", node.label, f"its {size} products would take too much memory")
    emit = Emit(graph, node)
    ranks = len(shapes[0]), len(shapes[1])
    products = emit.op("Mul", emit.unsqueeze(left, ranks[0]), emit.unsqueeze(right, ranks[1] - 2))
    y = emit.reduce("ReduceSum", products, [max(ranks) - 1], keepdims=False)
    return emit.rewrite({node.outputs[0]: y}, "MatMul of integers as Mul and ReduceSum")


RULES: tuple[Rule, ...] = (gemm_transposed, matmul_of_vectors, matmul_of_integers)
