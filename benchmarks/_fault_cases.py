"""What is planted in each model by `benchmarks/planted.py`."""

from __future__ import annotations

import numpy as np

from benchmarks._faults import MATMUL, At, Case, Feeds, Subject, noise, plants, scaled, three, value, wrong_scale
from fixtures import chains, exports, fetch, naturals
from graphkit.model import Model

LAYER = "/bert/encoder/layer"
HEAD = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2"
THEN, ELSE = "If_0_then_branch__Inline_0_", "If_0_else_branch__Inline_0_"


# -- the 400-node chain -----------------------------------------------------------------------------------------------


def _chain() -> Model:
    """Its second dim left open, so that there are two shapes."""
    proto = chains.chain(400)
    for end in (*proto.graph.input, *proto.graph.output):
        end.type.tensor_type.shape.dim[1].dim_param = "S"
    return Model.from_proto(proto)


def _chain_feeds() -> list[Feeds]:
    return [{"x": noise(1, length, chains.HIDDEN, seed=length)} for length in (1, 4)]


def _chain_cases(model: Model) -> list[Case]:
    norm, gelu, dense = "block2/Add_76_out", "block5/Mul_194_out", f"block7/Add_243_out{MATMUL}"
    residual, before, other = "block4/Add_164_out", "block3/Add_131_out", "block1/Add_65_out"
    gamma = (plants.scaled(norm, "gamma", 1.01), At(norm, "Add"))
    return [
        Case("weights changed", "gamma of a LayerNorm × 1.01", [gamma[0]], [gamma[1]]),
        Case(
            "attribute changed",
            "epsilon of a LayerNorm 0.1",
            [plants.changed(norm, "epsilon", np.float32(0.1))],
            [At(norm, "Add")],
        ),
        Case("wrong fusion", "Gelu with tanh for that with erf", [plants.unary(gelu, "GELU")], [At(gelu, "Mul")]),
        wrong_scale(dense, "MatMul"),
        Case(
            "swapped input",
            "a residual Add reads another block's",
            [plants.rewired(residual, 0, other)],
            [At(residual, "Add")],
        ),
        three(
            "gamma × 1.01, Gelu made Sin, weights × 1.05",
            gamma,
            (plants.unary(gelu, "SIN"), At(gelu, "Mul")),
            (plants.scaled(dense, "weight", 1.05), At(dense, "MatMul")),
        ),
        Case(
            "only at the second shape",
            "a residual is the first sample's constant",
            [plants.frozen(residual, 0, value(model, _chain_feeds()[0], before))],
            [At(residual, "Add")],
            unseen=1,
        ),
    ]


# -- minilm -----------------------------------------------------------------------------------------------------------


def _minilm_cases(model: Model) -> list[Case]:
    norm, softmax = (
        f"{LAYER}.2/output/LayerNorm/LayerNormalization_output_0",
        f"{LAYER}.0/attention/self/Softmax_output_0",
    )
    dense, gelu = (
        f"{LAYER}.3/intermediate/dense/Add_output_0{MATMUL}",
        f"{LAYER}.4/intermediate/intermediate_act_fn/Mul_1_output_0",
    )
    residual, position = (
        f"{LAYER}.1/attention/output/Add_output_0",
        "/bert/embeddings/position_embeddings/Gather_output_0",
    )
    length = naturals.natural("minilm")[0]["input_ids"].shape[1]
    return [
        scaled(dense, "MatMul", 1.01),
        Case("attribute changed", "axis of a Softmax", [plants.changed(softmax, "axis", 2)], [At(softmax, "Softmax")]),
        Case("wrong fusion", "Gelu with tanh for that with erf", [plants.unary(gelu, "GELU")], [At(gelu, "Mul")]),
        wrong_scale(dense, "MatMul"),
        Case(
            "swapped input",
            "a residual Add reads another layer's",
            [plants.rewired(residual, 1, "/bert/embeddings/LayerNorm/LayerNormalization_output_0")],
            [At(residual, "Add")],
        ),
        Case(
            "wrong mask",
            "what masks is 0, not -3.4e38",
            [plants.constant_scaled("/bert/Constant_29_output_0", 0)],
            [At("/bert/Where_1_output_0", "Where")],
        ),
        three(
            "gamma × 1.01, one channel × 1.5, Gelu made Tanh",
            (plants.scaled(norm, "gamma", 1.01), At(norm, "LayerNormalization")),
            (plants.one_channel(dense, 5, 1.5), At(dense, "MatMul")),
            (plants.unary(gelu, "TANH"), At(gelu, "Mul")),
        ),
        Case(
            "only at the second shape",
            f"positions from {length} on are empty",
            [plants.rows_emptied("bert.embeddings.position_embeddings.weight", length)],
            [At(position, "Gather")],
            unseen=1,
        ),
    ]


# -- ppocr4_rec -------------------------------------------------------------------------------------------------------


def _lines() -> list[Feeds]:
    picture = naturals.natural("ppocr4_rec")[0]["x"]
    return [{"x": picture[..., :width]} for width in (96, 128)]


def _ppocr_cases(model: Model) -> list[Case]:
    first, depthwise, fused, clip = "batch_norm_2.tmp_2", "p2o.Add.35", "conv2d_196.tmp_0", "p2o.Clip.7"
    residual = "p2o.Add.251"
    sizes = [
        {"x": feeds["x"][..., :height, :width]}
        for feeds, (height, width) in zip(_lines(), ((47, 95), (48, 96)), strict=True)
    ]
    unfused = (plants.changed(fused, "common.relu", False), At(fused, "Conv"))
    return [
        scaled(depthwise, "Conv", 1.01),
        Case(
            "attribute changed",
            "Clip to 5, not 6",
            [plants.changed(clip, "maxValue", np.float32(5))],
            [At(clip, "Clip")],
        ),
        Case("wrong fusion", "a Relu lost", [unfused[0]], [unfused[1]]),
        wrong_scale("p2o.Add.27", "Conv"),
        Case(
            "swapped input",
            "a residual Add reads another layer's",
            [plants.rewired(residual, 0, "p2o.Add.235")],
            [At(residual, "Add")],
        ),
        three(
            "a Relu lost, weights × 1.02, Clip to 5",
            unfused,
            (plants.scaled(depthwise, "weight", 1.02), At(depthwise, "Conv")),
            (plants.changed(clip, "maxValue", np.float32(5)), At(clip, "Clip")),
        ),
        Case(
            "only at the second shape",
            "SAME padding for 1 on each side: equal for odd sizes",
            [plants.changed(first, "common.padMode", 2)],
            [At(first, "Conv")],
            sizes,
            unseen=1,
        ),
    ]


# -- silero_vad -------------------------------------------------------------------------------------------------------


def _silero_cases(model: Model) -> list[Case]:
    conv, power = f"{THEN}_/encoder/1/reparam_conv/Conv_output_0", f"{THEN}_/stft/Add_output_0"
    root, last = f"{THEN}_/stft/Sqrt_output_0", f"{THEN}_/decoder/decoder/2/Conv_output_0"
    other = conv.replace(THEN, ELSE)
    unfused = (
        plants.changed(f"{THEN}_/encoder/2/reparam_conv/Conv_output_0", "common.relu", False),
        At(f"{THEN}_/encoder/2/reparam_conv/Conv_output_0", "Conv"),
    )
    return [
        scaled(conv, "Conv", 1.01),
        Case("attribute changed", "Sqrt made Square", [plants.unary(root, "SQUARE")], [At(root, "Sqrt")]),
        Case("wrong fusion", "a Relu lost", [unfused[0]], [unfused[1]]),
        wrong_scale(conv, "Conv"),
        Case(
            "swapped input",
            "the power adds the real part twice",
            [plants.rewired(power, 1, f"{THEN}_/stft/Pow_output_0")],
            [At(power, "Add")],
        ),
        three(
            "Sqrt made Square, weights × 1.5, a Relu lost",
            (plants.unary(root, "SQUARE"), At(root, "Sqrt")),
            (plants.scaled(conv, "weight", 1.5), At(conv, "Conv")),
            unfused,
        ),
        Case("inside an If", "the last weights × 1.1", [plants.scaled(last, "weight", 1.1)], [At(last, "Conv")]),
        Case(
            "only at the second shape",
            "weights of the branch for 8 kHz × 1.5",
            [plants.scaled(other, "weight", 1.5)],
            [At(other, "Conv")],
            unseen=1,
        ),
    ]


# -- magika -----------------------------------------------------------------------------------------------------------


def _magika_cases(model: Model) -> list[Case]:
    difference, conv, pool = f"{HEAD}/LayerNorm_0/Sub_1:0", f"{HEAD}/Conv_0/Conv2D:0", f"{HEAD}/Max:0"
    dense, sigmoid = f"{HEAD}/Dense_0/AddV2:0{MATMUL}", f"{HEAD}/ApplyActivation_0/Tanh/Sigmoid_out"
    last, mean = f"{HEAD}/LayerNorm_1/Sub_1:0", f"{HEAD}/LayerNorm_1/Reshape:0"
    swapped = (plants.swapped(difference), At(difference, "Sub"))
    return [
        scaled(conv, "Conv", 1.01),
        Case("attribute changed", "mean for maximum", [plants.changed(pool, "type", 1)], [At(pool, "GlobalMaxPool")]),
        Case(
            "wrong fusion", "a Relu that is not there", [plants.changed(conv, "common.relu", True)], [At(conv, "Conv")]
        ),
        wrong_scale(dense, "MatMul"),
        Case("swapped input", "of a Sub", [swapped[0]], [swapped[1]]),
        three(
            "a Sub swapped, one channel × 1.3, Sigmoid made Tanh",
            swapped,
            (plants.one_channel(conv, 7, 1.3), At(conv, "Conv")),
            (plants.unary(sigmoid, "TANH"), At(sigmoid, "Sigmoid")),
        ),
        Case(
            "only at the second shape",
            "a mean is the first sample's constant",
            [plants.frozen(last, 1, value(model, naturals.natural("magika")[0], mean))],
            [At(last, "Sub")],
            unseen=1,
        ),
    ]


SUBJECTS = (
    Subject(
        "minilm", lambda: Model.load(exports.export("minilm_eager_ts")), "mnn", lambda: _named("minilm"), _minilm_cases
    ),
    Subject("ppocr4_rec", lambda: Model.load(fetch.fetch("ppocr4_rec")), "mnn", _lines, _ppocr_cases),
    Subject(
        "silero_vad", lambda: Model.load(fetch.fetch("silero_vad")), "mnn", lambda: _named("silero_vad"), _silero_cases
    ),
    Subject("magika", lambda: Model.load(fetch.fetch("magika")), "mnn", lambda: _named("magika"), _magika_cases),
    Subject("chain of 400", _chain, None, _chain_feeds, _chain_cases),
)


def _named(name: str) -> list[Feeds]:
    return [dict(feeds) for feeds in naturals.natural(name)]
