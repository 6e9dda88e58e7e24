"""Small models for what the backend tests lack: contrib operators, and facts about MNN that need a witness.

Expected outputs are onnxruntime's. Each probe runs down the roads like a backend test, and its nodes teach the table
of operators; the figures of `docs/conformance.md` leave probes out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from conformance.cases import Array, Case
from graphkit.testing import parse, random_feeds, run

PREFIX = "probe_"
_MS = {"com.microsoft": 1}
_RTOL, _ATOL = 1e-3, 1e-4

# name: a graph in ONNX text; inputs are standard normal, integers 0 to 2.
_ONNX = {
    "constant_of_shape_scalar": "(float[2] x) => (float[2] y) <int64[0] s = {}>"
    " { c = ConstantOfShape(s) y = Add(x, c) }",
    "less": "(float[64] x, float[64] z) => (bool[64] y) { y = Less(x, z) }",
    "less_int": "(int32[64] x, int32[64] z) => (bool[64] y) { a = Neg(x) b = Neg(z) y = Less(a, b) }",
    "less_or_equal": "(float[64] x, float[64] z) => (bool[64] y) { y = LessOrEqual(x, z) }",
    "greater": "(float[64] x, float[64] z) => (bool[64] y) { y = Greater(x, z) }",
    "greater_or_equal": "(float[64] x, float[64] z) => (bool[64] y) { y = GreaterOrEqual(x, z) }",
    "less_nonnegative": "(float[64] x, float[64] z) => (bool[64] y) { a = Abs(x) b = Abs(z) y = Less(a, b) }",
    "less_constant": "(float[64] x) => (bool[64] y) <float c = {0.5}> { y = Less(x, c) }",
    "less_negative_constant": "(float[64] x) => (bool[64] y) <float c = {-0.5}> { y = Less(x, c) }",
    "round": "(float[6] x) => (float[6] y) <float c = {0.5}> { f = Floor(x) h = Add(f, c) y = Round(h) }",
    "slice_to_the_end": "(float[4, 6] x) => (float[4, 4] y) <int64[1] s = {2}, int64[1] e = {9223372036854775807},"
    " int64[1] a = {1}> { y = Slice(x, s, e, a) }",
    "huge_integer": "(int64[4] x) => (int64[4] y) <int64[1] c = {1500000000}> { y = Add(x, c) }",
    "loop_of_fixed_shape": "(float[3] x) => (float[3] y) <int64 n = {4}, bool t = {1}> { y = Loop(n, t, x) <body = b"
    " (int64 i, bool c, float[3] v) => (bool d, float[3] w) { d = Identity(c) w = Add(v, v) }> }",
    "loop_that_grows": "(float[1] x) => (float[K] y) <int64 n = {4}, bool t = {1}> { y = Loop(n, t, x) <body = b"
    " (int64 i, bool c, float[L] v) => (bool d, float[M] w) { d = Identity(c) w = Concat<axis = 0>(v, x) }> }",
    "nonzero": "(float[3, 4] x) => (int64[2, K] y) { r = Relu(x) y = NonZero(r) }",
    "scatternd_partial": "(float[3, 4, 2] x, float[2, 2] u) => (float[3, 4, 2] y) <int64[2, 2] i = {0, 1, 2, 3}>"
    " { y = ScatterND(x, i, u) }",
    "gathernd_partial": "(float[3, 4, 2] x) => (float[2, 2] y) <int64[2, 2] i = {0, 1, 2, 3}> { y = GatherND(x, i) }",
    "gather_negative": "(float[3, 4] x) => (float[2, 4] y) <int64[2] i = {-1, 0}> { y = Gather(x, i) }",
    "dynamic_matmul": "(float[N, S, 4] x) => (float[N, S, 3] y) <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3}>"
    " { y = MatMul(x, w) }",
    "dynamic_softmax": "(float[N, S] x) => (float[N, S] y) { y = Softmax<axis = 1>(x) }",
    "dynamic_reshape": "(float[N, S, 4] x) => (float[N, M] y) <int64[2] s = {0, -1}> { y = Reshape(x, s) }",
    "dynamic_pool": "(float[N, 2, H, W] x) => (float[N, 2, P, Q] y)"
    " { y = MaxPool<kernel_shape = [2, 2], strides = [1, 1]>(x) }",
    "dynamic_expand": "(float[N, 1] x, float[N, S] z) => (float[N, S] y) { s = Shape(z) y = Expand(x, s) }",
    "batch_norm": "(float[N, 2, 4, 4] x) => (float[N, 2, 4, 4] y) <float[2] s = {1, 2}, float[2] b = {0, 1},"
    " float[2] m = {0.5, 0.2}, float[2] v = {1, 2}> { y = BatchNormalization(x, s, b, m, v) }",
    "conv": "(float[N, 1, H, W] x) => (float[N, 1, P, Q] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}, float[1] b = {0.5}>"
    " { c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c) }",
    "conv_1d": "(float[1, 1, 9] x) => (float[1, 1, 8] y) <float[1, 1, 2] w = {1, 2}> { y = Conv(x, w) }",
    "conv_dilated": "(float[1, 1, 9, 9] x) => (float[1, 1, 7, 7] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}>"
    " { y = Conv<dilations = [2, 2]>(x, w) }",
    "conv_transpose": "(float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) <float[1, 1, 2, 2] w = {1, 2, 3, 4}>"
    " { y = ConvTranspose<strides = [2, 2]>(x, w) }",
    "resize_nearest": "(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) <float[4] s = {1, 1, 2, 2}>"
    ' { y = Resize<coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(x, , s) }',
    "resize_linear": "(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) <float[4] s = {1, 1, 2, 2}>"
    ' { y = Resize<mode = "linear">(x, , s) }',
    "resize_linear_sizes": "(float[1, 2, 4, 4] x) => (float[1, 2, 6, 9] y) <int64[4] s = {1, 2, 6, 9}>"
    ' { y = Resize<mode = "linear">(x, , , s) }',
    "resize_corners": "(float[1, 2, 4, 4] x) => (float[1, 2, 7, 7] y) <int64[4] s = {1, 2, 7, 7}>"
    ' { y = Resize<mode = "linear", coordinate_transformation_mode = "align_corners">(x, , , s) }',
    "average_pool": "(float[N, 2, 6, 6] x) => (float[N, 2, 3, 3] y)"
    " { y = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x) }",
    "pad": "(float[1, 2, 4, 4] x) => (float[1, 2, 6, 5] y) <int64[8] p = {0, 0, 1, 0, 0, 0, 1, 1}> { y = Pad(x, p) }",
    "pad_value": "(float[1, 2, 4] x) => (float[1, 2, 6] y) <int64[6] p = {0, 0, 1, 0, 0, 1}, float v = {2}>"
    " { y = Pad(x, p, v) }",
    "pad_reflect": "(float[1, 2, 4, 4] x) => (float[1, 2, 6, 6] y) <int64[8] p = {0, 0, 1, 1, 0, 0, 1, 1}>"
    ' { y = Pad<mode = "reflect">(x, p) }',
    "split": "(float[2, 6] x) => (float[2, 3] y, float[2, 3] z) { y, z = Split<axis = 1, num_outputs = 2>(x) }",
    "split_sizes": "(float[N, 6] x) => (float[N, 2] y, float[N, 4] z) <int64[2] s = {2, 4}>"
    " { y, z = Split<axis = 1>(x, s) }",
    "where": "(float[N, S] x, float[N, S] z) => (float[N, S] y) { c = Greater(x, z) y = Where(c, x, z) }",
    "power": "(float[N, S] x) => (float[N, S] y) <float p = {2}> { y = Pow(x, p) }",
    "square_root": "(float[N, S] x) => (float[N, S] y) <float p = {0.5}> { a = Abs(x) y = Pow(a, p) }",
    "modulo": "(int64[N] x) => (int64[N] y) <int64 m = {2}> { y = Mod(x, m) }",
    "reduce_mean": "(float[N, S, 4] x) => (float[N, S, 1] y) <int64[1] a = {-1}> { y = ReduceMean(x, a) }",
    "reduce_sum": "(float[N, S, 4] x) => (float[N, 4] y) <int64[1] a = {1}> { y = ReduceSum<keepdims = 0>(x, a) }",
    "reduce_l2": "(float[N, S, 4] x) => (float[N, S, 1] y) <int64[1] a = {-1}> { y = ReduceL2(x, a) }",
    "reduce_max_all": "(float[2, 3] x) => (float y) { y = ReduceMax<keepdims = 0>(x) }",
    "layer_norm": "(float[N, S, 4] x, float[4] g, float[4] b) => (float[N, S, 4] y)"
    " { y = LayerNormalization(x, g, b) }",
    "gemm": "(float[N, 2] x) => (float[N, 2] y) <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {1, 2}>"
    " { y = Gemm<transB = 1>(x, w, b) }",
    "top_k": "(float[2, 9] x) => (float[2, 3] y, int64[2, 3] i) <int64[1] k = {3}> { y, i = TopK(x, k) }",
    "arg_max": "(float[2, 9] x) => (int64[2] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }",
    "cumulative_sum": "(float[2, 9] x) => (float[2, 9] y) <int64 a = {1}> { y = CumSum(x, a) }",
    "einsum": "(float[2, 3, 4] x, float[2, 4, 5] z) => (float[2, 3, 5] y)"
    ' { y = Einsum<equation = "bij,bjk->bik">(x, z) }',
    "range": "(float[N, S] x) => (int64[K] y) <int64 z = {0}, int64 one = {1}, int64[1] i = {1}> { s = Shape(x)"
    " n = Gather(s, i) m = Squeeze(n) y = Range(z, m, one) }",
    "range_dynamic": "(int64 n) => (int64[K] y) <int64 z = {0}, int64 one = {1}> { y = Range(z, n, one) }",
    "scalars": "(float x, float z) => (float y) { a = Add(x, z) y = Mul(a, z) }",
    "clip": "(float[N, S] x) => (float[N, S] y) <float l = {0}, float h = {6}> { y = Clip(x, l, h) }",
    "not": "(bool[N] x, bool[N] z) => (bool[N] y) { n = Not(x) y = And(n, z) }",
    "cast": "(float[N] x) => (int64[N] y) { y = Cast<to = 7>(x) }",
    "gather_rows": "(float[9, 4] x, int64[N, S] i) => (float[N, S, 4] y) { y = Gather(x, i) }",
    "gather_elements": "(float[3, 4] x) => (float[3, 2] y) <int64[3, 2] i = {0, 1, 2, 3, 1, 0}>"
    " { y = GatherElements<axis = 1>(x, i) }",
    "scatter_elements": "(float[3, 4] x, float[3, 2] u) => (float[3, 4] y) <int64[3, 2] i = {0, 1, 2, 3, 1, 0}>"
    " { y = ScatterElements<axis = 1>(x, i, u) }",
    "scatternd_full": "(float[3, 4] x, float[2] u) => (float[3, 4] y) <int64[2, 2] i = {0, 1, 2, 3}>"
    " { y = ScatterND(x, i, u) }",
    "matmul_batched": "(float[N, H, S, 4] x, float[N, H, 4, S] z) => (float[N, H, S, S] y) { y = MatMul(x, z) }",
    "nine_dims": "(float[1, 2, 1, 2, 1, 2, 1, 2] x) => (float[1, 1, 2, 1, 2, 1, 2, 1, 2] y) <int64[1] a = {0}>"
    " { y = Unsqueeze(x, a) }",
    "quantize_dequantize": "(float[4, 6] x) => (float[4, 6] y) <float s = {0.05}, uint8 z = {128}>"
    " { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
    "greater_both_broadcast": "(float[1, 8] x, float[8, 1] z) => (bool[8, 8] y) { y = Greater(x, z) }",
    "less_or_equal_both_broadcast": "(float[1, 8] x, float[8, 1] z) => (bool[8, 8] y) { y = LessOrEqual(x, z) }",
    "equal_minus_zero": "(float[8] x) => (bool[8] y) <float z = {0}> { m = Mul(x, z) y = Equal(m, z) }",
    "less_computed_int8": "(float[8] x, float[8] z) => (bool[8] y)"
    " { a = Cast<to = 3>(x) b = Cast<to = 3>(z) y = Less(a, b) }",
    "max_computed_int8": "(float[8] x, float[8] z) => (int8[8] y)"
    " { a = Cast<to = 3>(x) b = Cast<to = 3>(z) y = Max(a, b) }",
    "max_pool_int8": "(float[1, 2, 6, 6] x) => (int8[1, 2, 5, 5] y) <float c = {-9}> { m = Add(x, c)"
    " q = Cast<to = 3>(m) y = MaxPool<kernel_shape = [2, 2], strides = [1, 1]>(q) }",
    "max_pool_uint8": "(float[1, 2, 6, 6] x) => (uint8[1, 2, 5, 5] y) <float a = {40}, float c = {128}>"
    " { s = Mul(x, a) m = Add(s, c) q = Cast<to = 2>(m) y = MaxPool<kernel_shape = [2, 2], strides = [1, 1]>(q) }",
    "max_pool_positions_dynamic": "(float[1, C, 4, 4] x) => (float[1, C, 2, 2] y, int64[1, C, 2, 2] i)"
    " { y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x) }",
    "conv_computed_bias": "(float[1, 1, 5, 5] x, float[1] b) => (float[1, 1, 4, 4] y)"
    " <float[1, 1, 2, 2] w = {1, 2, 3, 4}> { y = Conv(x, w, b) }",
    "conv_transpose_computed_bias": "(float[1, 1, 4, 4] x, float[1] b) => (float[1, 1, 5, 5] y)"
    " <float[1, 1, 2, 2] w = {1, 2, 3, 4}> { y = ConvTranspose(x, w, b) }",
    "lrn_odd": "(float[1, 6, 4, 4] x) => (float[1, 6, 4, 4] y) { y = LRN<size = 3>(x) }",
    "nms_center": "(float[1, 24, 4] x, float[1, 1, 24] z) => (int64[K, 3] y) <int64 m = {9}, float u = {0.2},"
    " float t = {0.1}> { b = Abs(x) s = Abs(z) y = NonMaxSuppression<center_point_box = 1>(b, s, m, u, t) }",
    "unique": "(float[6] x) => (float[K] y) { y = Unique(x) }",
    "slice_from_before": "(float[N, 4] x) => (float[M, 4] y) <int64[1] s = {-9}, int64[1] e = {2}, int64[1] a = {0}>"
    " { y = Slice(x, s, e, a) }",
    "slice_backward": "(float[4, 6] x) => (float[4, 6] y) <int64[1] s = {-1}, int64[1] e = {-99}, int64[1] a = {1},"
    " int64[1] t = {-1}> { y = Slice(x, s, e, a, t) }",
    "slice_backward_batch": "(float[2, 3, 4, 6] x) => (float[2, 3, 4, 6] y) <int64[1] s = {-1}, int64[1] e = {-99},"
    " int64[1] a = {3}, int64[1] t = {-1}> { y = Slice(x, s, e, a, t) }",
    "scatter_elements_axis_last": "(float[3, 4] x, float[3, 2] u) => (float[3, 4] y)"
    ' <int64[3, 2] i = {0, 1, 2, 3, 1, 0}> { y = ScatterElements<reduction = "none", axis = 1>(x, i, u) }',
    "einsum_swapped": "(float[2, 3, 4] x, float[2, 4, 5] z) => (float[3, 2, 5] y)"
    ' { y = Einsum<equation = "bij,bjk->ibk">(x, z) }',
    "resize_linear_1d": "(float[1, 2, 4] x) => (float[1, 2, 8] y) <float[3] s = {1, 1, 2}>"
    ' { y = Resize<mode = "linear">(x, , s) }',
    "conv_3d": "(float[1, 1, 4, 4, 4] x) => (float[1, 1, 3, 3, 3] y)"
    " <float[1, 1, 2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = Conv(x, w) }",
    "conv_3d_relu": "(float[1, 1, 4, 4, 4] x) => (float[1, 1, 3, 3, 3] y)"
    " <float[1, 1, 2, 2, 2] w = {1, -2, 3, -4, 5, -6, 7, -8}> { c = Conv(x, w) y = Relu(c) }",
    "conv_transpose_3d": "(float[1, 1, 3, 3, 3] x) => (float[1, 1, 4, 4, 4] y)"
    " <float[1, 1, 2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = ConvTranspose(x, w) }",
    "conv_transpose_3d_bias": "(float[1, 1, 3, 3, 3] x) => (float[1, 1, 4, 4, 4] y) <float[1] b = {3},"
    " float[1, 1, 2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = ConvTranspose(x, w, b) }",
    "center_crop_pad_dynamic": "(float[N, 6] x, int64[2] s) => (float[P, Q] y) { y = CenterCropPad(x, s) }",
    "average_pool_ceil_and_pads": "(float[1, 2, 7, 7] x) => (float[1, 2, 4, 4] y) { y = AveragePool<ceil_mode = 1,"
    " count_include_pad = 1, kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(x) }",
    "average_pool_pads": "(float[1, 2, 6, 6] x) => (float[1, 2, 3, 3] y)"
    " { y = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 0, 0], strides = [2, 2]>(x) }",
    "max_pool_ceil": "(float[1, 2, 7, 7] x) => (float[1, 2, 4, 4] y)"
    " { y = MaxPool<ceil_mode = 1, kernel_shape = [2, 2], strides = [2, 2]>(x) }",
    "one_hot": "(int64[N] x) => (float[N, 4] y) <int64 d = {4}, float[2] v = {0, 1}> { y = OneHot(x, d, v) }",
    "trilu_dynamic": "(float[N, S, S] x) => (float[N, S, S] y) { y = Trilu<upper = 0>(x) }",
    "dequantized_weight": "(float[2, 3] x) => (float[2, 2] y) <int8[3, 2] w = {1, -2, 3, -4, 5, -6},"
    " float[2] s = {0.5, 0.25}, int8[2] z = {0, 1}> { d = DequantizeLinear<axis = 1>(w, s, z) y = MatMul(x, d) }",
}

_CONTRIB = {
    "gelu": "(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = com.microsoft.Gelu(x) }",
    "fast_gelu": "(float[2, 3, 4] x, float[4] b) => (float[2, 3, 4] y) { y = com.microsoft.FastGelu(x, b) }",
    "bias_gelu": "(float[2, 3, 4] x, float[4] b) => (float[2, 3, 4] y) { y = com.microsoft.BiasGelu(x, b) }",
    "quick_gelu": "(float[2, 3, 4] x) => (float[2, 3, 4] y) { y = com.microsoft.QuickGelu<alpha = 1.702>(x) }",
    "fused_matmul": "(float[2, 4, 3] x, float[2, 4, 5] z) => (float[2, 3, 5] y)"
    " { y = com.microsoft.FusedMatMul<transA = 1, alpha = 0.5>(x, z) }",
    "skip_layer_norm": "(float[2, 3, 4] x, float[2, 3, 4] s, float[4] g) => (float[2, 3, 4] y)"
    " { y = com.microsoft.SkipLayerNormalization<epsilon = 0.001>(x, s, g) }",
    "skip_rms_norm": "(float[2, 3, 4] x, float[2, 3, 4] s, float[4] g) => (float[2, 3, 4] y)"
    " { y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.001>(x, s, g) }",
    "multi_head_attention": "(float[1, 3, 8] q, float[1, 3, 8] k, float[1, 3, 8] v) => (float[1, 3, 8] y)"
    " { y = com.microsoft.MultiHeadAttention<num_heads = 2>(q, k, v) }",
    "attention": "(float[1, 3, 8] x, float[8, 24] w, float[24] b) => (float[1, 3, 8] y)"
    " { y = com.microsoft.Attention<num_heads = 2>(x, w, b) }",
}


@functools.cache
def probes() -> tuple[Case, ...]:
    """All probes, in a fixed order."""
    return tuple(_probes())


def _probes() -> Iterator[Case]:
    for name, text in _ONNX.items():
        yield probe(name, text, {})
    for name, text in _CONTRIB.items():
        yield probe(name, text, _MS)
    for op, gates, states in (("RNN", 1, 1), ("GRU", 3, 1), ("LSTM", 4, 2)):
        for outputs in range(1, 2 ** (states + 1)):
            yield _recurrent(op, gates, [f"{'yhc'[i]}" if outputs >> i & 1 else "" for i in range(states + 1)])


def probe(name: str, text: str, imports: dict[str, int]) -> Case:
    """A test from ONNX text: random inputs, onnxruntime's outputs."""
    model = parse(f"g {text}", imports=imports)
    feeds: dict[str, Array] = random_feeds(model, size=3)
    if name == "huge_integer":
        feeds["x"] = np.array([0, 1, 2, 3])
    return Case(PREFIX + name, "probe", model.proto.SerializeToString(), feeds, run(model, feeds), _RTOL, _ATOL)


def _recurrent(op: str, gates: int, outputs: list[str]) -> Case:
    """A recurrent layer (4 steps, batch 1, 3 features, hidden 2) of which only some outputs are wanted."""
    shapes = {"y": "4, 1, 1, 2", "h": "1, 1, 2", "c": "1, 1, 2"}
    rng = np.random.default_rng(0)
    weights = ", ".join(
        f"float[1, {gates * 2}, {n}] {name} = {{{_numbers(rng.standard_normal(gates * 2 * n))}}}"
        for name, n in (("w", 3), ("r", 2))
    )
    declared = ", ".join(f"float[{shapes[name]}] {name}" for name in outputs if name)
    while not outputs[-1]:
        outputs.pop()
    wanted = ", ".join(outputs)
    text = f"(float[4, 1, 3] x) => ({declared}) <{weights}> {{ {wanted} = {op}<hidden_size = 2>(x, w, r) }}"
    return probe(f"{op.lower()}_{''.join(outputs)}", text, {})


def _numbers(values: npt.NDArray[np.float64]) -> str:
    return ", ".join(f"{value:.4f}" for value in values)
