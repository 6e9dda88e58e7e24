"""The table of layers on real models: no false alarm on files that are right, and planted faults found exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Plant, changed, converted, labels_of, one_channel, planted, scaled, swapped, unary, wrong_scale

from fixtures import chains
from graphkit.mnn.document import read
from graphkit.mnn.document.tree import Table
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.proof import Evidence
from graphkit.verification.bisect.layers import compare_layers
from graphkit.verification.bisect.types import LayersResult

Paths = Callable[[str], Path]

LAYER = "/bert/encoder/layer"
MAGIKA = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2"
SILERO = "If_0_then_branch__Inline_0_"


@dataclass(frozen=True)
class Made:
    """A real model as MNN's converter gets it, the file that comes out, and samples."""

    model: Model
    path: Path
    samples: list[Mapping[str, np.ndarray]]

    def clean(self) -> LayersResult:
        """The table of the file as it is."""
        return compare_layers(self.model, self.path, self.samples)

    def with_faults(self, folder: Path, *plants: Plant) -> LayersResult:
        """The table of the file with faults, on the first sample."""
        return compare_layers(self.model, planted(self.path, folder / "planted.mnn", *plants), self.samples[:1])

    def ops(self, kind: str) -> list[Table]:
        """Operators of a type in the main graph."""
        return [op for op in read(self.path).net.tables("oplists") if op.label("type") == kind]


def make(source: Path | Model, folder: Path, passes: str | None = "mnn", samples: int = 2, **options: Any) -> Made:
    """Convert a model; as many samples of its own random ones."""
    model = source if isinstance(source, Model) else Model.load(source)
    evidence = Evidence.gather(model)
    if passes is not None:
        model = optimize(model, passes, verify="none").model
    model, path = converted(model, folder, **options)
    return Made(model, path, [sample.feeds for sample in evidence.samples if not sample.probe][:samples])


def assert_blamed(result: LayersResult, expected: Mapping[str, str]) -> None:
    """Assert that the suspects are exactly these tensors, and their nodes of these types."""
    assert {row.tensor: row.op for row in result.suspects} == expected


@pytest.mark.parametrize(
    "name", ["orientation", "centerface", "magika", "dtln1", "silero_vad", "ppocr4_det", "ppocr4_rec"]
)
def test_no_false_alarm(model_path: Paths, tmp_path: Path, name: str) -> None:
    made = make(model_path(name), tmp_path)
    result = made.clean()
    assert result.suspects == ()
    assert result.ok
    assert result.forced


@pytest.mark.parametrize("kind", ["minilm_eager_ts", "minilm_eager_dyn"])
def test_no_false_alarm_on_exports(export_path: Paths, tmp_path: Path, kind: str) -> None:
    result = make(export_path(kind), tmp_path).clean()
    assert result.suspects == ()
    assert len(result.rows) > 150


def test_a_chain_of_four_hundred_nodes(tmp_path: Path) -> None:
    made = make(Model.from_proto(chains.chain(400)), tmp_path, None, 1)
    assert made.clean().suspects == ()
    norm, gelu = made.ops("LayerNorm")[2]["name"], made.ops("UnaryOp")[5]["name"]
    product = made.ops("Convolution")[7]["name"]
    result = made.with_faults(
        tmp_path, scaled(norm, "gamma", 1.01), unary(gelu, "SIN"), scaled(product, "weight", 1.05)
    )
    assert {row.mnn_op for row in result.suspects} == {norm, gelu, product}


def test_faults_in_minilm(export_path: Paths, tmp_path: Path) -> None:
    made = make(export_path("minilm_eager_ts"), tmp_path, samples=1)
    norm = f"{LAYER}.2/output/LayerNorm/LayerNormalization_output_0"
    dense = f"{LAYER}.3/intermediate/dense/Add_output_0"
    gelu = f"{LAYER}.4/intermediate/intermediate_act_fn/Mul_1_output_0"
    softmax = f"{LAYER}.0/attention/self/Softmax_output_0"
    assert_blamed(made.with_faults(tmp_path, scaled(norm, "gamma", 1.01)), {norm: "LayerNormalization"})
    assert_blamed(made.with_faults(tmp_path, changed(norm, "epsilon", np.float32(0.1))), {norm: "LayerNormalization"})
    assert_blamed(made.with_faults(tmp_path, changed(softmax, "axis", 2)), {softmax: "Softmax"})
    result = made.with_faults(
        tmp_path, scaled(norm, "gamma", 1.01), one_channel(f"{dense}__matmul_converted", 5, 1.5), unary(gelu, "TANH")
    )
    assert_blamed(result, {norm: "LayerNormalization", dense: "MatMul", gelu: "Mul"})


def test_a_wrong_scale_in_minilm(export_path: Paths, tmp_path: Path) -> None:
    made = make(export_path("minilm_eager_ts"), tmp_path, samples=1, weightQuantBits=4, weightQuantBlock=32,
                weightQuantAsymmetric=False)  # fmt: skip
    assert made.clean().suspects == ()
    dense = f"{LAYER}.3/intermediate/dense/Add_output_0"
    assert_blamed(made.with_faults(tmp_path, wrong_scale(f"{dense}__matmul_converted", 1.5)), {dense: "MatMul"})


def test_faults_in_ppocr4_rec(model_path: Paths, tmp_path: Path) -> None:
    made = make(model_path("ppocr4_rec"), tmp_path, samples=1)
    fused = next(op["name"] for op in made.ops("Convolution") if op["main"]["common"]["relu"])
    depthwise = made.ops("ConvolutionDepthwise")[5]["name"]
    clip = made.ops("ReLU6")[3]["name"]
    assert made.with_faults(tmp_path, changed(fused, "common.relu", False)).suspects[0].mnn_op == fused
    result = made.with_faults(
        tmp_path, changed(fused, "common.relu", False), scaled(depthwise, "weight", 1.02),
        changed(clip, "maxValue", np.float32(5)),
    )  # fmt: skip
    assert {row.mnn_op for row in result.suspects} == {fused, depthwise, clip}
    assert {row.op for row in result.suspects} == {"Conv", "Clip"}


def test_faults_in_magika(model_path: Paths, tmp_path: Path) -> None:
    made = make(model_path("magika"), tmp_path, samples=1)
    difference, conv = f"{MAGIKA}/LayerNorm_0/Sub_1:0", f"{MAGIKA}/Conv_0/Conv2D:0"
    assert_blamed(made.with_faults(tmp_path, swapped(difference)), {difference: "Sub"})
    result = made.with_faults(
        tmp_path, swapped(difference), one_channel(conv, 7, 1.3),
        unary(f"{MAGIKA}/ApplyActivation_0/Tanh/Sigmoid_out", "TANH"),
    )  # fmt: skip
    sigmoid = f"{MAGIKA}/ApplyActivation_0/Tanh/Sigmoid_out"
    assert_blamed(result, {difference: "Sub", conv: "Conv", sigmoid: "Sigmoid"})


def test_faults_inside_the_branches_of_silero_vad(model_path: Paths, tmp_path: Path) -> None:
    made = make(model_path("silero_vad"), tmp_path, samples=1)
    conv, relu = f"{SILERO}_/encoder/1/reparam_conv/Conv_output_0", f"{SILERO}_/encoder/1/activation/Relu_output_0"
    root = f"{SILERO}_/stft/Sqrt_output_0"
    result = made.with_faults(tmp_path, scaled(conv, "weight", 1.5), unary(root, "SQUARE"))
    assert_blamed(result, {relu: "Conv", root: "Sqrt"})
    assert {row.place for row in result.suspects} == {"If_0/then_branch"}
    other = made.with_faults(tmp_path, scaled(conv.replace("then", "else"), "weight", 1.5))
    assert other.suspects == ()


def test_two_lstms_are_told_apart(model_path: Paths, tmp_path: Path) -> None:
    made = make(model_path("dtln1"), tmp_path, samples=1)
    assert [row.node for row in made.with_faults(tmp_path, scaled("Convolution13", "weight", 1.1)).suspects] == [
        "lstm_4"
    ]
    both = made.with_faults(tmp_path, scaled("Convolution13", "weight", 1.1), unary("UnaryOp50", "SIGN"))
    assert [row.node for row in both.suspects] == ["lstm_4", "lstm_5"]


def test_magika_as_it_is_has_an_addition_that_mnn_gets_wrong(model_path: Paths, tmp_path: Path) -> None:
    """MNN 3.6.1 adds a constant of rank 3 to a value that lies by blocks of channels, and ends up beside it."""
    made = make(model_path("magika"), tmp_path, None, 1)
    assert_blamed(made.clean(), {f"{MAGIKA}/ApplyActivation_1/AddV2_1:0": "Add"})
    assert labels_of(made.model, f"{MAGIKA}/ApplyActivation_1/AddV2_1:0") in [row.node for row in made.clean().suspects]
