"""`canonicalize`: casts, broadcasts, constants, conditions, sequences, attributes and operator-set drift."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from graphkit.graph import Graph
from graphkit.passes._canonical_values import lossless
from graphkit.passes.canonicalize import Canonicalize
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, canonical, graph_of

PASS = Canonicalize()


def run(text: str, opset: int = 18) -> Graph:
    """The graph after the pass, structurally checked."""
    graph = graph_of(text, opset=opset)
    PASS.run(graph)
    graph.check()
    return graph


# -- casts and broadcasts ---------------------------------------------------------------------------------


def test_cast_like_becomes_cast() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n] x, float16[m] z) => (float16[n] y) { a = CastLike(x, z) y = Neg(a) }",
        "agraph (float[n] x, float16[m] z) => (float16[n] y) { a = Cast<to = 10>(x) y = Neg(a) }",
    )


def test_cast_like_to_its_own_type_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[n] x, float[m] z) => (float[n] y) { a = CastLike(x, z) y = Neg(a) }",
        "agraph (float[n] x, float[m] z) => (float[n] y) { y = Neg(x) }",
    )


def test_cast_like_to_an_unknown_type_is_refused() -> None:
    graph = graph_of("agraph (float[n] x, float[m] z) => (float[n] y) { a = CastLike(x, z) y = Neg(a) }")
    graph = graph_of(
        """<ir_version: 8, opset_import: ["": 18, "other": 1]>
        agraph (float[n] x) => (float[n] y) { u = other.Make(x) a = CastLike(x, u) y = Neg(a) }"""
    )
    result = PASS.run(graph)
    assert "is not known" in result.refusals[0].reason
    assert not result.modified


def test_cast_like_in_a_subgraph() -> None:
    graph = run(
        """agraph (bool c, float[2] x, float16[2] z) => (float16[2] y) {
            y = If (c) <then_branch = t () => (p) { p = CastLike(x, z) },
                        else_branch = e () => (q) { q = Neg(z) }>
        }"""
    )
    branch = next(iter(graph.nodes)).subgraphs["then_branch"]
    assert [node.op for node in branch.nodes] == ["Cast"]


@pytest.mark.parametrize("target", ["s = Shape(x)", "s = Constant<value_ints = [1, 4]>()"])
def test_expand_to_the_same_shape_goes(target: str) -> None:
    assert_rewrites(
        PASS,
        f"agraph (float[n,4] x) => (float[n,4] y) {{ {target} a = Expand(x, s) y = Neg(a) }}",
        "agraph (float[n,4] x) => (float[n,4] y) { y = Neg(x) }",
    )


def test_expand_before_a_broadcast_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (float[4] b, float[n,4] x) => (float[n,4] y) { s = Shape(x) e = Expand(b, s) y = Add(x, e) }",
        "agraph (float[4] b, float[n,4] x) => (float[n,4] y) { y = Add(x, b) }",
    )


@pytest.mark.parametrize(
    "use",
    [
        "y = Neg(a)",
        "y = Add(b, a)",
        "y = MatMul(x, a)",
        "y = Identity(a)",
    ],
)
def test_expand_that_is_needed_stays(use: str) -> None:
    assert_unchanged(
        PASS, f"agraph (float[1,4] b, float[4,4] x) => (y) {{ s = Shape(x) a = Expand(b, s) {use} }}"
    )


def test_expand_of_both_operands_keeps_one() -> None:
    graph = run(
        """agraph (float[1,4] b, float[n,1] c, float[n,4] x) => (float[n,4] y)
        { s = Shape(x) p = Expand(b, s) q = Expand(c, s) y = Add(p, q) }"""
    )
    assert graph.op_counts() == {"Shape": 1, "Expand": 1, "Add": 1}


def test_lossless_cast_before_a_cast_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (float16[n] x) => (int32[n] y) { a = Cast<to = 1>(x) y = Cast<to = 6>(a) }",
        "agraph (float16[n] x) => (int32[n] y) { y = Cast<to = 6>(x) }",
    )
    assert_rewrites(
        PASS,
        "agraph (int32[n] x) => (int32[n] y) { a = Cast<to = 7>(x) b = Cast<to = 6>(a) y = Add(b, x) }",
        "agraph (int32[n] x) => (int32[n] y) { y = Add(x, x) }",
    )


def test_lossy_cast_stays() -> None:
    assert_unchanged(PASS, "agraph (float[n] x) => (y) { a = Cast<to = 10>(x) y = Cast<to = 1>(a) }")
    assert_unchanged(PASS, "agraph (int32[n] x) => (y) { a = Cast<to = 1>(x) y = Cast<to = 6>(a) }")


@pytest.mark.parametrize(
    ("source", "target"),
    [(a, b) for a in (1, 2, 3, 5, 6, 7, 9, 10, 11) for b in (1, 2, 3, 5, 6, 7, 9, 10, 11)],
)
def test_lossless_means_there_and_back_is_exact(source: int, target: int) -> None:
    one, two = (onnx.helper.tensor_dtype_to_np_dtype(dtype) for dtype in (source, target))
    if one == np.bool_:
        values = np.array([False, True])
    elif one.kind in "iu":
        limits = np.iinfo(one)
        values = np.array([limits.min, limits.max, limits.max // 3 * 2 + 1], dtype=one)
    else:
        values = np.array([np.finfo(one).max, np.finfo(one).tiny, 1 / 3], dtype=one)
    with np.errstate(all="ignore"):
        exact = bool((values.astype(two).astype(one) == values).all())
    if lossless(source, target):
        assert exact


# -- conditions -------------------------------------------------------------------------------------------


def test_double_not_goes() -> None:
    assert_rewrites(
        PASS,
        "agraph (bool[n] x, bool[n] z) => (bool[n] y) { a = Not(x) b = Not(a) y = And(b, z) }",
        "agraph (bool[n] x, bool[n] z) => (bool[n] y) { y = And(x, z) }",
    )


def test_not_of_an_integer_comparison() -> None:
    assert_rewrites(
        PASS,
        "agraph (int64[n] x, int64[n] z) => (bool[n] y) { a = Greater(x, z) y = Not(a) }",
        "agraph (int64[n] x, int64[n] z) => (bool[n] y) { y = LessOrEqual(x, z) }",
    )


def test_not_of_a_float_comparison_is_refused() -> None:
    assert_unchanged(
        PASS, "agraph (float[n] x, float[n] z) => (y) { a = Less(x, z) y = Not(a) }", refuses="NaN"
    )


def test_where_with_a_constant_condition() -> None:
    head = "agraph (float[n,2] x, float[1,2] z) => (float[n,2] y)"
    assert_rewrites(
        PASS,
        f"{head} {{ c = Constant<value = bool[1,2] {{1, 1}}>() a = Where(c, x, z) y = Neg(a) }}",
        f"{head} {{ y = Neg(x) }}",
    )
    graph = graph_of(f"{head} {{ c = Constant<value = bool {{0}}>() a = Where(c, x, z) y = Neg(a) }}")
    assert "may be larger" in PASS.run(graph).refusals[0].reason
    assert len(graph.by_op("Where")) == 1


IF = """agraph (float[n] x) => (float[n] y, float[n] z) <bool c = {%d}> {
    a = Relu(x)
    b, z = If (c) <
        then_branch = t () => (p, o) { k = Constant<value_float = 2.0>() p = Mul(a, k) o = Identity(a) },
        else_branch = e () => (q, q2) <float[1] w = {3.0}> { q = Add(a, w) q2 = Identity(q) }
    >
    y = Neg(b)
}"""


def test_if_with_a_constant_condition_gives_way_to_its_branch() -> None:
    assert_rewrites(
        PASS,
        IF % 1,
        """agraph (float[n] x) => (float[n] y, float[n] z) <float k = {2.0}>
        { a = Relu(x) b = Mul(a, k) z = Identity(a) y = Neg(b) }""",
    )
    assert_rewrites(
        PASS,
        IF % 0,
        """agraph (float[n] x) => (float[n] y, float[n] z) <float[1] w = {3.0}>
        { a = Relu(x) q = Add(a, w) z = Identity(q) y = Neg(q) }""",
    )


def test_nested_constant_if_and_a_sibling_with_the_same_names() -> None:
    text = """agraph (bool d, float[2] x) => (float[2] y) <bool c = {1}> {
        b = If (c) <
            then_branch = t () => (p) { p = If (c) <
                then_branch = t2 () => (r) { r = Exp(x) }, else_branch = e2 () => (r) { r = Sin(x) }> },
            else_branch = e () => (p) { p = Neg(x) }>
        g = If (d) <then_branch = t3 () => (p) { p = Abs(b) }, else_branch = e3 () => (p) { p = Cos(b) }>
        y = Neg(g)
    }"""
    graph = run(text)
    assert graph.op_counts() == {"Exp": 1, "If": 1, "Neg": 1}
    onnx.checker.check_model(graph.to_model().proto)


# -- constants --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "dtype", "shape"),
    [
        ("value_int = 3", np.int64, ()),
        ("value_ints = [1, 2]", np.int64, (2,)),
        ("value_float = 0.5", np.float32, ()),
        ("value_floats = [0.5, 1.5]", np.float32, (2,)),
        ("value = float[2] {1.0, 2.0}", np.float32, (2,)),
    ],
)
def test_constant_becomes_an_initializer(form: str, dtype: type, shape: tuple[int, ...]) -> None:
    graph = run(f"agraph (float[2] x) => (y) {{ c = Constant<{form}>() d = Cast<to = 1>(c) y = Mul(x, d) }}")
    array = graph.initializers["c"].array()
    assert (array.dtype, array.shape) == (dtype, shape)
    assert not graph.by_op("Constant")


@pytest.mark.parametrize(("attribute", "dtype"), [("value_ints", np.int64), ("value_floats", np.float32)])
def test_empty_constants_keep_their_type(attribute: str, dtype: type) -> None:
    """Peers make an empty value_ints a double."""
    node = onnx.NodeProto(op_type="Constant", output=["c"])
    kind = onnx.AttributeProto.INTS if attribute == "value_ints" else onnx.AttributeProto.FLOATS
    node.attribute.add(name=attribute, type=kind)
    graph = graph_of("agraph (float[2] x) => (y) { y = Identity(x) }")
    graph.insert(node)
    PASS.run(graph)
    assert graph.initializers["c"].array().dtype == dtype
    assert graph.initializers["c"].dims == (0,)


def test_constants_in_subgraphs_become_tensors_and_outputs_stay_nodes() -> None:
    graph = run(
        """agraph (bool c, float[2] x) => (float[2] y, int64 z) {
            z = Constant<value_int = 4>()
            y = If (c) <then_branch = t () => (p) { k = Constant<value_float = 2.0>() p = Mul(x, k) },
                        else_branch = e () => (q) { q = Neg(x) }>
        }"""
    )
    constant, conditional = graph.by_op("Constant"), graph.by_op("If")
    assert list(constant[0].attrs) == ["value"]
    assert list(conditional[0].subgraphs["then_branch"].by_op("Constant")[0].attrs) == ["value"]


# -- attributes -------------------------------------------------------------------------------------------


def attributes(
    op: str, inputs: str = "float[1,2,8,8] x", opset: int = 18, **weights: str
) -> dict[str, object]:
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
    graph = graph_of(
        f"agraph (float[1,2,9,10] x, float[2,2,{size},{size}] w) => (float[a,b,c,d] y) {{ y = {call} }}"
    )
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
    assert_unchanged(
        PASS, "agraph (float[0,4] x) => (y) <int64[2] s = {0, 2}> { y = Reshape<allowzero = 1>(x, s) }"
    )


def test_sum_of_two_is_add() -> None:
    assert_rewrites(
        PASS,
        "agraph (float16[n,4] x, float16[4] z) => (float16[n,4] y) { y = Sum(x, z) }",
        "agraph (float16[n,4] x, float16[4] z) => (float16[n,4] y) { y = Add(x, z) }",
    )
    assert_unchanged(PASS, "agraph (float[n] x, float[n] z) => (y) { y = Sum(x, z, x) }")


# -- sequences --------------------------------------------------------------------------------------------


def test_concat_of_a_sequence() -> None:
    head = "agraph (float[n,2] x, float[n,2] z)"
    assert_rewrites(
        PASS,
        f"{head} => (float[n,4] y) {{ s = SequenceConstruct(x, z) y = ConcatFromSequence<axis = 1>(s) }}",
        f"{head} => (float[n,4] y) {{ y = Concat<axis = 1>(x, z) }}",
    )
    assert_rewrites(
        PASS,
        f"""{head} => (float[n,2,2] y)
        {{ s = SequenceConstruct(x, z) y = ConcatFromSequence<axis = -1, new_axis = 1>(s) }}""",
        f"""{head} => (float[n,2,2] y) <int64[1] k = {{2}}>
        {{ a = Unsqueeze(x, k) b = Unsqueeze(z, k) y = Concat<axis = -1>(a, b) }}""",
    )


SPLIT = """agraph (float[n,5] x) => (float[n,2] y) <int64 i = {0}, int64 j = {-2}%s> {
    s = SplitToSequence<axis = 1>(x%s) a = SequenceAt(s, i) b = SequenceAt(s, j) y = Add(a, b)
}"""


@pytest.mark.parametrize("sizes", ["int64 z = {2}", "int64[3] z = {2, 2, 1}"])
def test_split_to_sequence_becomes_split(sizes: str) -> None:
    assert_rewrites(
        PASS,
        SPLIT % (f", {sizes}", ", z"),
        """agraph (float[n,5] x) => (float[n,2] y) <int64[3] z = {2, 2, 1}>
        { a, b, c = Split<axis = 1>(x, z) y = Add(a, b) }""",
    )


def test_split_to_sequence_of_single_slices() -> None:
    graph = run(
        """agraph (float[n,3] x) => (float[n] y) <int64 i = {2}>
        { s = SplitToSequence<axis = 1, keepdims = 0>(x) a = SequenceAt(s, i) y = Neg(a) }"""
    )
    assert graph.op_counts() == {"Split": 1, "Squeeze": 1, "Neg": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = SequenceAt(s, i) y = Neg(a)", "used by SequenceAt"),
        ("q = SequenceErase(s) a = ConcatFromSequence<axis = 0>(q) y = Neg(a)", "used by SequenceErase"),
    ],
)
def test_sequences_with_other_uses_are_refused(text: str, reason: str) -> None:
    assert_unchanged(
        PASS,
        f"agraph (float[4,n] x, int64 i) => (y) <int64 z = {{2}}> {{ s = SplitToSequence(x, z) {text} }}",
        refuses=reason,
    )


def test_split_of_an_unknown_size_is_refused() -> None:
    assert_unchanged(
        PASS,
        """agraph (float[n] x) => (y) <int64 z = {2}, int64 i = {0}>
        { s = SplitToSequence(x, z) y = SequenceAt(s, i) }""",
        refuses="is not known",
    )


def test_sequence_length_and_elements() -> None:
    assert_rewrites(
        PASS,
        """agraph (float[n] x, float[n] z) => (float[n] y, int64 k) <int64 i = {1}>
        { s = SequenceConstruct(x, z) a = SequenceAt(s, i) y = Neg(a) l = SequenceLength(s) k = Neg(l) }""",
        """agraph (float[n] x, float[n] z) => (float[n] y, int64 k) <int64 l = {2}>
        { y = Neg(z) k = Neg(l) }""",
    )


# -- operator-set drift -----------------------------------------------------------------------------------


def drifted(text: str, opset: int) -> Graph:
    """The graph of an invalid model after the pass has put it right."""
    graph = graph_of(text, opset=opset, infer=False)
    PASS.run(graph)
    return graph


@pytest.mark.parametrize(
    ("op", "opset", "expected"),
    [
        ("ReduceSum<axes = [1], keepdims = 1>(x)", 13, ("ReduceSum", ["int64[1][1]"])),
        ("ReduceMean<axes = [1], keepdims = 1>(x)", 18, ("ReduceMean", ["int64[1][1]"])),
        ("Unsqueeze<axes = [0]>(x)", 13, ("Unsqueeze", ["int64[1][0]"])),
        ("Clip<min = 0.0, max = 6.0>(x)", 11, ("Clip", ["float32[]0.", "float32[]6."])),
        ("Clip<max = 6.0>(x)", 11, ("Clip", ["-", "float32[]6."])),
        ("Slice<starts = [1], ends = [2]>(x)", 10, ("Slice", ["int64[1][1]", "int64[1][2]"])),
    ],
)
def test_attributes_that_became_inputs(op: str, opset: int, expected: tuple[str, list[str]]) -> None:
    graph = drifted(f"agraph (float[2,3] x) => (y) {{ y = {op} }}", opset)
    line = next(line for line in canonical(graph) if line.startswith("%"))
    assert f"{expected[0]}(input x, {', '.join(expected[1])})" in line
    assert not {"axes", "min", "max", "starts"} & set(next(iter(graph.nodes)).attrs)


@pytest.mark.parametrize(
    ("op", "opset", "name", "value"),
    [
        ("ReduceMean<keepdims = 1>(x, k)", 13, "axes", [1]),
        ("Squeeze(x, k)", 11, "axes", [1]),
        ("Clip(x, f)", 6, "min", 0.5),
        ("TopK(x, k)", 9, "k", 1),
    ],
)
def test_inputs_that_are_still_attributes(op: str, opset: int, name: str, value: object) -> None:
    graph = drifted(
        f"agraph (float[2,1] x) => (y) <int64[1] k = {{1}}, float f = {{0.5}}> {{ y = {op} }}", opset
    )
    node = next(iter(graph.nodes))
    assert node.attr(name) == value
    assert node.inputs == ("x",)


def test_an_input_that_cannot_be_an_attribute_is_refused() -> None:
    graph = graph_of("agraph (float[2,1] x, int64[1] k) => (y) { y = Squeeze(x, k) }", opset=11, infer=False)
    assert "takes no input 'axes'" in PASS.run(graph).refusals[0].reason


# -- as a whole -------------------------------------------------------------------------------------------


def test_second_run_changes_nothing() -> None:
    graph = run(IF % 1)
    assert not PASS.run(graph).modified


def test_every_change_asks_the_gate() -> None:
    text = SPLIT % (", int64 z = {2}", ", z")
    total = len(PASS.run(graph_of(text)).changes)
    for limit in range(total + 1):
        graph, asked = graph_of(text), []
        graph.gate = lambda node, what, asked=asked, limit=limit: asked.append(what) or len(asked) <= limit
        assert len(PASS.run(graph).changes) == limit
        graph.check()
