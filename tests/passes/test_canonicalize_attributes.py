"""`canonicalize`: attributes written out, padding as numbers, axes."""

from __future__ import annotations

import pytest

from graphkit.graph import Graph
from graphkit.passes.canonicalize import Canonicalize
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of

PASS = Canonicalize()


def run(text: str, opset: int = 18) -> Graph:
    """The graph after the pass, structurally checked."""
    graph = graph_of(text, opset=opset)
    PASS.run(graph)
    graph.check()
    return graph


def attributes(op: str, inputs: str = "float[1,2,8,8] x", opset: int = 18, **weights: str) -> dict[str, object]:
    """Attributes of the one node of a model after the pass."""
    constants = ", ".join(weights.values())
    graph = run(f"agraph ({inputs}) => (y) {f'<{constants}>' if constants else ''} {{ y = {op} }}", opset)
    return next(iter(graph.nodes)).attrs


def test_pools_get_strides() -> None:
    found = attributes("MaxPool<kernel_shape = [2, 3]>(x)")
    assert found["strides"] == found["dilations"] == [1, 1]
    assert found["pads"] == [0, 0, 0, 0]
    assert found["ceil_mode"] == 0
    assert "dilations" not in attributes("AveragePool<kernel_shape = [2, 2]>(x)", opset=18)
    assert attributes("AveragePool<kernel_shape = [2, 2]>(x)", opset=19)["dilations"] == [1, 1]


def test_pools_still_compute_the_same() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n,2,8,8] x) => (float[n,2,7,6] y) { y = MaxPool<kernel_shape = [2, 3]>(x) }",
        """agraph (float[n,2,8,8] x) => (float[n,2,7,6] y) { y = MaxPool<kernel_shape = [2, 3], ceil_mode = 0,
        strides = [1, 1], dilations = [1, 1], pads = [0, 0, 0, 0]>(x) }""",
    )


def test_conv_attributes_come_from_the_weight() -> None:
    found = attributes("Conv(x, w)", "float[1,2,8,8] x, float[3,2,3,5] w")
    assert found == {
        "kernel_shape": [3, 5],
        "group": 1,
        "strides": [1, 1],
        "dilations": [1, 1],
        "pads": [0, 0, 0, 0],
    }
    assert "kernel_shape" not in attributes("Conv(x, w)", "float[1,2,8,8] x, float[3,2,k,5] w")


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "Conv"])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("window", [(3, 3), (3, 2), (5, 1), (4, 3)])
def test_auto_pad_as_numbers_computes_the_same(op: str, mode: str, window: tuple[int, int]) -> None:
    size, stride = window
    inputs = "x, w" if op == "Conv" else "x"
    sizes = f"kernel_shape = [{size}, {size}], strides = [{stride}, {stride}]"
    call = f'{op}<{sizes}, auto_pad = "{mode}">({inputs})'
    graph = graph_of(f"agraph (float[1,2,9,10] x, float[2,2,{size},{size}] w) => (float[a,b,c,d] y) {{ y = {call} }}")
    before = graph.to_model()
    PASS.run(graph)
    assert "auto_pad" not in next(iter(graph.nodes)).attrs
    assert_equal_outputs(before, graph.to_model())


def test_same_padding_of_an_unknown_size() -> None:
    found = attributes('MaxPool<kernel_shape = [3, 3], auto_pad = "SAME_UPPER">(x)', "float[1,2,h,w] x")
    assert found["pads"] == [1, 1, 1, 1]
    strided = attributes(
        'MaxPool<kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER">(x)', "float[1,2,h,w] x"
    )
    assert strided["auto_pad"] == "SAME_UPPER"
    assert "pads" not in strided


def test_layer_norm_over_the_last_axis() -> None:
    weights = "float[a,b,4] x, float[4] w"
    assert attributes("LayerNormalization<axis = 2>(x, w)", weights)["axis"] == -1
    assert attributes("LayerNormalization<axis = 1>(x, v)", "float[a,3,4] x, float[3,4] v")["axis"] == 1
    assert attributes("LayerNormalization(x, w)", weights)["axis"] == -1


def test_softmax_default_depends_on_the_opset() -> None:
    assert attributes("Softmax(x)", "float[2,3,4] x", opset=12)["axis"] == 1
    assert attributes("Softmax(x)", "float[2,3,4] x", opset=13)["axis"] == -1


def test_transpose_says_its_order() -> None:
    assert attributes("Transpose(x)", "float[2,3,4] x")["perm"] == [2, 1, 0]


def test_axes_count_from_the_front() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n,4] x) => (float[n,4,1] y) <int64[1] k = {-1}> { y = Unsqueeze(x, k) }",
        "agraph (float[n,4] x) => (float[n,4,1] y) <int64[1] k = {2}> { y = Unsqueeze(x, k) }",
    )
    assert attributes("Squeeze<axes = [-2]>(x)", "float[n,1,4] x", opset=11)["axes"] == [1]
    assert_rewrites(
        PASS,
        "agraph (float[1,4,1] x) => (float[4] y) { y = Squeeze(x) }",
        "agraph (float[1,4,1] x) => (float[4] y) <int64[2] k = {0, 2}> { y = Squeeze(x, k) }",
    )
    assert_unchanged(PASS, "agraph (float[n,4,1] x) => (y) { y = Squeeze(x) }")


def test_allowzero_goes_when_there_is_no_zero() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n,4] x) => (y) <int64[2] s = {-1, 2}> { y = Reshape<allowzero = 1>(x, s) }".replace(
            "(y)", "(float[m,2] y)"
        ),
        "agraph (float[n,4] x) => (float[m,2] y) <int64[2] s = {-1, 2}> { y = Reshape(x, s) }",
    )
    assert_unchanged(PASS, "agraph (float[0,4] x) => (y) <int64[2] s = {0, 2}> { y = Reshape<allowzero = 1>(x, s) }")


def test_sum_of_two_is_add() -> None:
    assert_rewrites(
        PASS,
        "agraph (float16[n,4] x, float16[4] z) => (float16[n,4] y) { y = Sum(x, z) }",
        "agraph (float16[n,4] x, float16[4] z) => (float16[n,4] y) { y = Add(x, z) }",
    )
    assert_unchanged(PASS, "agraph (float[n] x, float[n] z) => (y) { y = Sum(x, z, x) }")
