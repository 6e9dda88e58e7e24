"""fuse-conv-bn: BatchNormalization and per-channel arithmetic go into weights, or it is said why not."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.graph import Graph
from graphkit.passes.fuse_conv_bn import FuseConvBn
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, graph_of, parse

STATS = "float[4] s = {1, 2, 0.5, 3}, float[4] t = {1, 0, -1, 2}, float[4] m = {0.1, 0.2, 0.3, 0.4}, " + (
    "float[4] v = {1, 2, 0.5, 4}, float[4] b = {1, 2, 3, 4}"
)
BN = "BatchNormalization<epsilon = 0.001>"


def numbers(*shape: int) -> str:
    """A float initializer's value of this shape: small numbers, all different."""
    listing = ", ".join(f"{np.sin(i):.3f}" for i in range(int(np.prod(shape))))
    return f"{{{listing}}}"


LAYERS = {
    "Conv": ("[1,3,6,6]", "[4,3,3,3]", "Conv(x, w, b)", 18),
    "Conv without bias": ("[1,3,6,6]", "[4,3,3,3]", "Conv(x, w)", 18),
    "Conv of groups": ("[1,4,6,6]", "[4,2,3,3]", "Conv<group = 2, strides = [2, 2]>(x, w, b)", 18),
    "Conv of one axis": ("[1,3,6]", "[4,3,3]", "Conv(x, w, b)", 18),
    "ConvTranspose": ("[1,3,6,6]", "[3,4,2,2]", "ConvTranspose<strides = [2, 2]>(x, w, b)", 18),
    "ConvTranspose of groups": ("[1,6,6,6]", "[6,2,2,2]", "ConvTranspose<group = 2>(x, w)", 18),
    "Gemm": ("[5,3]", "[3,4]", "Gemm(x, w, b)", 18),
    "Gemm with all": ("[3,5]", "[4,3]", "Gemm<transA = 1, transB = 1, alpha = 0.5, beta = 2.0>(x, w, b)", 18),
    "MatMul": ("[5,3]", "[3,4]", "MatMul(x, w)", 18),
    "opset 11": ("[1,3,6,6]", "[4,3,3,3]", "Conv(x, w, b)", 11),
}


def layer(name: str, tail: str, constants: str = "", outputs: str = "float[] y") -> tuple[str, int]:
    """A model of one layer and what follows it."""
    x, w, call, opset = LAYERS[name]
    outputs = outputs.replace("[]", f"[{','.join('abcd'[: x.count(',') + 1])}]")
    axes = [int(dim) for dim in w.strip("[]").split(",")]
    head = f"g (float{x} x) => ({outputs}) <float{w} w = {numbers(*axes)}, {STATS}{constants}>"
    return f"{head} {{ c = {call} {tail} }}", opset


def run(text: str, opset: int) -> Graph:
    """The graph after the pass, which must compute what it did before."""
    graph = graph_of(text, opset=opset)
    assert FuseConvBn().run(graph).modified
    assert_equal_outputs(parse(text, opset=opset), graph.to_model())
    return graph


@pytest.mark.parametrize("name", LAYERS)
def test_batch_normalization_goes_into_the_layer(name: str) -> None:
    graph = run(*layer(name, f"y = {BN}(c, s, t, m, v)"))
    wanted = name.split()[0].replace("MatMul", "Gemm") if name != "opset 11" else "Conv"
    assert graph.op_counts() == {wanted: 1}
    assert len(next(graph.nodes).inputs) == 3


@pytest.mark.parametrize("name", ["Conv", "Conv without bias", "Conv of groups", "ConvTranspose of groups"])
@pytest.mark.parametrize(
    "tail",
    [
        "y = Mul(c, k)",
        "y = Mul(k3, c)",
        "y = Div(c, k)",
        "y = Add(c, k)",
        "y = Sub(c, k3)",
        "y = Sub(k, c)",
        "y = Mul(c, two)",
        "z = Mul(c, k) y = Add(k3, z)",
        f"z = {BN}(c, s, t, m, v) u = Mul(z, k) y = Add(u, k)",
    ],
)
def test_arithmetic_goes_into_the_convolution(name: str, tail: str) -> None:
    constants = ", float[1,4,1,1] k = {1, 2, 3, 4}, float[4,1,1] k3 = {4, 3, 2, 1}, float two = {2}"
    graph = run(*layer(name, tail, constants))
    assert graph.op_counts() == {name.split()[0]: 1}


def test_exact_weights() -> None:
    head = "g (float[1,1,2,2] x) => (float[1,2,2,2] y) <float[2,1,1,1] w = {1, 2}, float[2] one = {1, 1}"
    stats = "float[2] s = {2, 4}, float[2] t = {1, 2}, float[2] m = {3, 4}, float[2] v = {4, 1}"
    before = f"{head}, {stats}> {{ c = Conv(x, w, one) y = BatchNormalization<epsilon = 0.0>(c, s, t, m, v) }}"
    after = f"{head}, float[2,1,1,1] u = {{1, 8}}, float[2] b = {{-1, -10}}> {{ y = Conv(x, u, b) }}"
    result = assert_rewrites(FuseConvBn(), before, after)
    assert result.counters == {"conv-bn": 1}


def test_shared_weight_stays_for_the_others() -> None:
    tail = f"y = {BN}(c, s, t, m, v) z = Conv(x, w, b)"
    graph = run(*layer("Conv", tail, outputs="float[] y, float[] z"))
    assert graph.op_counts() == {"Conv": 2}
    assert graph.is_constant("w")


def test_half_precision() -> None:
    text, opset = layer("Conv of one axis", f"y = {BN}(c, s, t, m, v)")
    graph = graph_of(_halved(text), opset=opset)
    assert FuseConvBn().run(graph).modified
    (node,) = graph.nodes
    assert [str(graph.constant(value).dtype) for value in node.inputs[1:]] == ["float16"] * 2  # type: ignore[union-attr]


def _halved(text: str) -> str:
    """The same model in float16: initializers are written by their bits there."""
    import re

    def bits(found: re.Match[str]) -> str:
        values = np.array([float(v) for v in found[1].split(",")], np.float16).view(np.uint16)
        return "= {" + ", ".join(map(str, values)) + "}"

    return re.sub(r"= \{([^}]*)\}", bits, text).replace("float[", "float16[")


def test_inside_a_subgraph() -> None:
    stats = STATS + f", float[4,1,1,1] w = {numbers(4, 1, 1, 1)}"
    branch = f"t () => (float[a,b,c,d] y) {{ e = Conv(x, w) y = {BN}(e, s, t, m, v) }}"
    other = "l () => (float[a,b,c,d] u) { u = Conv(x, w) }"
    text = f"g (bool i, float[1,1,2,2] x) => (float[a,b,c,d] z) <{stats}> " + (
        f"{{ z = If(i) <then_branch = {branch}, else_branch = {other}> }}"
    )
    graph = run(text, 18)
    assert all(sub.op_counts().get("Conv") == 1 for sub in list(graph.walk())[1:])


@pytest.mark.parametrize(
    ("tail", "outputs", "reason"),
    [
        ("y, p, q = BatchNormalization<training_mode = 1>(c, s, t, m, v)", "float[] y", "training mode"),
        ("z = BatchNormalization(c, s, t, m, v) y = Add(z, c)", "float[] y", "is used elsewhere too"),
        ("y = BatchNormalization(c, s, t, m, v)", "float[] y, float[] c", "is used elsewhere too"),
        ("y = BatchNormalization(c, u, t, m, v)", "float[] y", "are not constant"),
        ("y = Add(c, wide)", "float[] y", "not one number a channel"),
        ("y = Add(c, low)", "float[] y", "not one number a channel"),
        ("y = Add(c, high)", "float[] y", "not one number a channel"),
        ("y = BatchNormalization<epsilon = 0.0>(c, s, t, m, none)", "float[] y", "would not be finite"),
    ],
)
def test_near_misses_say_why(tail: str, outputs: str, reason: str) -> None:
    constants = (
        ", float[1,4,4,4] wide = "
        + numbers(1, 4, 4, 4)
        + ", float[4] low = {1, 2, 3, 4}, "
        + ("float[1,1,4,1,1] high = {1, 2, 3, 4}, float[4] none = {0, 1, 1, 1}")
    )
    text, opset = layer("Conv", tail, constants, outputs)
    if "high" in tail:
        text = text.replace("(float[a,b,c,d] y)", "(float[a,b,c,d,e] y)")
    text = text.replace("x) =>", "x, float[4] u) =>", 1)
    assert_unchanged(FuseConvBn(), text, refuses=reason, opset=opset)


def test_weight_from_an_input_is_refused() -> None:
    text = f"g (float[1,3,6,6] x, float[4,3,3,3] w) => (float[a,b,c,d] y) <{STATS}> " + (
        f"{{ e = Conv(x, w, b) y = {BN}(e, s, t, m, v) }}"
    )
    assert_unchanged(FuseConvBn(), text, refuses="the weight of 'e' is not a constant")


def test_matmul_of_rank_3_is_refused() -> None:
    stats = STATS + f", float[3,4] w = {numbers(3, 4)}"
    text = f"g (float[2,4,3] x) => (float[2,4,4] y) <{stats}> {{ e = MatMul(x, w) y = {BN}(e, s, t, m, v) }}"
    assert_unchanged(FuseConvBn(), text, refuses="rank 2")


@pytest.mark.parametrize("tail", ["y = Div(k, c)", "y = Relu(c)", f"z = Relu(c) y = {BN}(z, s, t, m, v)"])
def test_others_are_left_without_a_word(tail: str) -> None:
    text, opset = layer("Conv", tail, ", float[1,4,1,1] k = {1, 2, 3, 4}")
    assert not assert_unchanged(FuseConvBn(), text, opset=opset).refusals
