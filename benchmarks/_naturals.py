"""Faults that MNN 3.6.1 has by nature, in models as they come, and the answer that is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fixtures import exports, fetch, naturals
from graphkit.graph import Graph
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.testing import parse
from graphkit.verification.bisect.answer import BisectResult
from graphkit.verification.bisect.locate_faults import bisect_layers

SCATTER = """
    g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> {
        a = Relu(x) [scatter] b = ScatterND(a, i, u) y = Neg(b)
    }
"""
ACTIVATION = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2/ApplyActivation_1/AddV2_1"


@dataclass(frozen=True)
class Natural:
    """A model, how it is bisected, and the one fault that it has."""

    name: str
    bisect: Callable[[], BisectResult]
    node: str
    op: str
    kind: str


def _minilm() -> BisectResult:
    path = exports.export("minilm_eager_ts")
    inputs = list(Graph.of(Model.load(path)).inputs)
    feeds = [{name: sample[name] for name in inputs} for sample in naturals.natural("minilm")[:1]]
    return bisect_layers(path, inputs=feeds)


def _ppocr4_det() -> BisectResult:
    inputs = naturals.natural("ppocr4_det")[:1]
    return bisect_layers(fetch.fetch("ppocr4_det"), inputs=inputs, options=ConverterOptions.of(weightQuantBits=8))


NATURALS = (
    Natural("minilm, eager TorchScript", _minilm, "/bert/ConstantOfShape", "ConstantOfShape", "operator"),
    Natural("silero_seq", lambda: bisect_layers(fetch.fetch("silero_seq")), "/recurrent/LSTM", "LSTM", "operator"),
    Natural("ppocr4_det, W8", _ppocr4_det, "p2o.Conv.61", "Conv", "quantization"),
    Natural("smart_turn", lambda: bisect_layers(fetch.fetch("smart_turn")), "node_linear_26", "Gemm", "crash"),
    Natural(
        "MobileNetV3, raw dynamo", lambda: bisect_layers(exports.export("mbv3_dyn")), "node_conv2d", "Conv", "crash"
    ),
    Natural("ScatterND of partial depth", lambda: bisect_layers(parse(SCATTER)), "scatter", "ScatterND", "operator"),
    Natural("magika", lambda: bisect_layers(fetch.fetch("magika")), ACTIVATION, "Add", "layout"),
)
