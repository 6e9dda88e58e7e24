"""Which ONNX tensor an MNN operator's output is, by names and structure."""

from __future__ import annotations

import pytest

from graphkit.graph import Graph
from graphkit.mnn.fileinfo import FileOp
from graphkit.testing import graph_of
from graphkit.verification.bisect.alignment import Alignment, align, main_node, region

CONV = """g (float[1,2,4,4] x, float[2,2,1,1] w, float[2] s) => (float[1,2,4,4] y) {
    c = Conv(x, w) b = BatchNormalization(c, s, s, s, s) r = Relu(b) n = Neg(r) y = Abs(n) }"""


def op(kind: str, name: str, reads: str, writes: str = "") -> FileOp:
    """One operator; tensors are separated by spaces."""
    return FileOp(kind, name, tuple(reads.split()), tuple((writes or name).split()))


def only(graph: Graph, ops: list[FileOp], name: str, *outputs: str) -> Alignment:
    """How the operator of this name is aligned."""
    found = [item for item in align(graph, ops, outputs) if item.op.name == name]
    assert len(found) == 1
    return found[0]


def test_an_operator_holds_the_tensor_it_writes_when_more_was_fused_into_it() -> None:
    item = only(graph_of(CONV), [op("Convolution", "c", "x", "r"), op("UnaryOp", "n", "r")], "c")
    assert (item.start, item.tensors[0], item.sure) == ("c", "r", True)


def test_values_of_another_size_fall_back_along_the_chain() -> None:
    item = only(graph_of(CONV), [op("Convolution", "c", "x", "r"), op("UnaryOp", "n", "r")], "c")
    assert item.tensors == ("r", "b", "c")


def test_what_the_readers_read_decides_when_the_names_do_not() -> None:
    item = only(graph_of(CONV), [op("Convolution", "c", "x", "t9"), op("UnaryOp", "n", "t9")], "c")
    assert (item.tensors[0], item.sure) == ("r", True)


def test_readers_are_found_behind_layout_changes() -> None:
    ops = [op("Convolution", "c", "x", "t9"), op("ConvertTensor", "t10", "t9"), op("UnaryOp", "n", "t10")]
    item = only(graph_of(CONV), ops, "c")
    assert (item.tensors[0], item.sure) == ("r", True)


def test_a_fused_operator_that_is_an_output_holds_the_output() -> None:
    graph = graph_of("g (float[1,2,4,4] x, float[2,2,1,1] w) => (float[1,2,4,4] r) { c = Conv(x, w) r = Relu(c) }")
    item = only(graph, [op("Convolution", "c", "x", "r")], "c", "r")
    assert item.tensors[0] == "r"


def test_without_readers_the_values_decide() -> None:
    item = only(graph_of(CONV), [op("Convolution", "c", "x", "t9"), op("UnaryOp", "t12", "t9")], "c")
    assert item.sure is False
    assert item.tensors == ("c", "b", "r")


def test_a_tensor_that_another_operator_is_named_after_was_not_fused() -> None:
    ops = [op("Convolution", "c", "x", "t9"), op("Mystery", "t12", "t9"), op("Scale", "b", "t12")]
    item = only(graph_of(CONV), ops, "c")
    assert (item.tensors, item.sure) == (("c",), True)


def test_a_matrix_product_is_named_after_the_sum_behind_it() -> None:
    graph = graph_of("g (float[2,3] x, float[3,4] w, float[4] b) => (float[2,4] y) { m = MatMul(x, w) y = Add(m, b) }")
    item = only(graph, [op("Convolution", "y__matmul_converted", "x")], "y__matmul_converted")
    assert item.tensors == ("y",)


def test_a_sum_does_not_take_in_the_root_that_its_reader_was_made_of() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { a = Add(x, x) s = Sqrt(a) y = Reciprocal(s) }")
    item = only(graph, [op("BinaryOp", "a", "x x"), op("UnaryOp", "y", "a")], "a")
    assert (item.tensors, item.sure) == (("a",), True)


def test_a_reshape_that_moved_behind_an_activation_holds_the_activation() -> None:
    graph = graph_of(
        """g (float[2,3] x, float[3,4] w, int64[2] s) => (float[4,2] z)
        { m = MatMul(x, w) r = Reshape(m, s) y = Sigmoid(r) z = Neg(y) }"""
    )
    ops = [
        op("Convolution", "r__matmul_converted", "x"),
        op("UnaryOp", "y", "r__matmul_converted", "t7"),
        op("Reshape", "r", "t7", "y"),
        op("UnaryOp", "z", "y"),
    ]
    assert only(graph, ops, "r").tensors[0] == "y"
    assert only(graph, ops, "y").tensors[0] == "y"
    assert only(graph, ops, "r__matmul_converted").tensors[0] == "r"


def test_parts_of_a_grouped_convolution_and_constants_have_no_counterpart() -> None:
    ops = [op("Convolution", "c__group__0", "x"), op("Const", "c", ""), op("UnaryOp", "UnaryOp7", "x")]
    assert align(graph_of(CONV), ops) == []


def test_every_output_of_an_operator_is_aligned() -> None:
    graph = graph_of("g (float[4] x) => (float[2] a, float[2] b) { a, b = Split<axis = 0, num_outputs = 2>(x) }")
    found = align(graph, [op("Slice", "a", "x", "a b")])
    assert [(item.slot, item.tensors) for item in found] == [(0, ("a",)), (1, ("b",))]


def test_a_region_ends_at_what_is_known() -> None:
    found = region(graph_of(CONV), "n", {"c"})
    assert found.inputs == ("c", "s")
    assert [node.op for node in found.nodes] == ["BatchNormalization", "Relu", "Neg"]


def test_a_region_puts_nodes_behind_what_they_read() -> None:
    graph = graph_of("g (float[2] x) => (float[2] y) { a = Neg(x) b = Abs(a) c = Exp(b) d = Add(a, c) y = Add(d, b) }")
    found = region(graph, "y", ())
    place = {name: number for number, node in enumerate(found.nodes) for name in node.outputs}
    assert found.inputs == ("x",)
    assert all(place[name] < place[node.outputs[0]] for node in found.nodes for name in node.inputs if name in place)


@pytest.mark.parametrize(("kind", "expected"), [("Convolution", "Conv"), ("UnaryOp", "Relu"), ("Squeeze", "Conv")])
def test_the_node_of_a_row_has_the_weights_where_the_operator_has_them(kind: str, expected: str) -> None:
    graph = graph_of(CONV)
    node = main_node(graph, "r", kind, region(graph, "r", ()).nodes)
    assert node is not None
    assert node.op == expected
