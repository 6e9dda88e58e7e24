"""Faults of MNN 3.6.1 on the plain road, in real models: named without the passes that avoid them; and planted ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import converted, planted, scaled, wrong_scale

from fixtures.chains import chain
from fixtures.naturals import natural
from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.testing import parse
from graphkit.verification.bisect.answer import BisectResult
from graphkit.verification.bisect.locate_faults import bisect_layers

Paths = Callable[[str], Path]

IF = """
    g (float[2,4] x, bool b) => (float[2,4] y) <float[4,4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}> {
        z = Relu(x)
        [pick] q = If(b) <
            then_branch = t () => (float[2,4] p) { [inner] c = MatMul(z, w) p = Tanh(c) },
            else_branch = e () => (float[2,4] d) { d = Neg(z) }>
        y = Abs(q)
    }
"""


def _named(result: BisectResult) -> list[tuple[str, str, str]]:
    return [(fault.node, fault.op, fault.kind) for fault in result.faults]


# -- planted ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    return converted(Model.from_proto(chain(100)), tmp_path_factory.mktemp("chain"))


def test_a_clean_model_has_no_fault(blocks: tuple[Model, Path]) -> None:
    result = bisect_layers(*blocks)
    assert result.ok
    assert result.answer.startswith("no mismatch")
    assert result.anchors == result.agreeing > 15
    assert result.whole_conversions == result.small_conversions == 0


def test_a_weight_changed_in_the_file(blocks: tuple[Model, Path], tmp_path: Path) -> None:
    bad = planted(blocks[1], tmp_path / "bad.mnn", scaled("block1/Add_43_out", "gamma", 1.01))
    result = bisect_layers(blocks[0], bad)
    assert _named(result) == [("block1/Add_43", "Add", "file")]
    fault = result.faults[0]
    assert fault.found.alone == "right"
    assert "main.gamma differs by 1.0e-02" in fault.found.reason
    assert "model as shipped is right" in fault.rechecked
    assert fault.suggestion is not None
    assert fault.suggestion.works
    assert (result.whole_conversions, result.small_conversions) == (2, 1)


def test_three_at_once_are_three(blocks: tuple[Model, Path], tmp_path: Path) -> None:
    plants = [
        scaled("block0/Add_12_out__matmul_converted", "weight", 1.02),
        scaled("block1/Add_43_out", "gamma", 1.02),
        scaled("block1/Add_64_out__matmul_converted", "weight", 1.02),
    ]
    result = bisect_layers(blocks[0], planted(blocks[1], tmp_path / "bad.mnn", *plants), suggestions=False)
    assert [fault.node for fault in result.faults] == ["block0/MatMul_11", "block1/Add_43", "block1/MatMul_63"]
    assert {fault.kind for fault in result.faults} == {"file"}


def test_a_wrong_scale_of_a_quantized_layer(tmp_path: Path) -> None:
    model, good = converted(Model.from_proto(chain(100)), tmp_path, weightQuantBits=8)
    clean = bisect_layers(model, good)
    assert clean.ok
    assert "quantization alone" in clean.note
    bad = planted(good, tmp_path / "bad.mnn", wrong_scale("block0/Add_12_out__matmul_converted", 1.5))
    result = bisect_layers(model, bad)
    assert _named(result) == [("block0/MatMul_11", "MatMul", "quantization")]
    assert "1.5 times what it should be" in result.faults[0].found.reason
    assert result.faults[0].found.alone == "right"


def test_one_inside_an_if(tmp_path: Path) -> None:
    model, good = converted(parse(IF), tmp_path)
    bad = planted(good, tmp_path / "bad.mnn", scaled("c__matmul_converted", "weight", 1.05))
    result = bisect_layers(model, bad, suggestions=False)
    assert [(fault.node, fault.found.place, fault.kind) for fault in result.faults] == [
        ("inner", "pick/then_branch", "file")
    ]


def test_two_onnx_models() -> None:
    model = Model.from_proto(chain(100))
    graph = Graph.of(Model.from_proto(chain(100)))
    gamma = next(name for name in graph.initializers if name.startswith("block1/") and graph.weight(name) is not None)
    weight = graph.weight(gamma)
    assert weight is not None
    graph.set_initializer(gamma, weight.array() * np.float32(1.01))
    reader = graph.consumers(gamma)[0]
    result = bisect_layers(model, graph.to_model())
    assert [(fault.node, fault.kind) for fault in result.faults] == [(reader.label, "model")]
    assert result.whole_conversions == 0


def test_two_onnx_models_with_a_sequence_in_them() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[4,4] x) => (float[4,4] y)
        <float[4] w = {1.0, 1.0, 1.0, 1.0}> {
        [scale] a = Mul(x, w) s = SplitToSequence<axis = 0>(a) b = ConcatFromSequence<axis = 0>(s) y = Neg(b) }"""
    result = bisect_layers(parse(text), parse(text.replace("{1.0, 1.0", "{2.0, 1.0")))
    assert [(fault.node, fault.kind) for fault in result.faults] == [("scale", "model")]
    assert bisect_layers(parse(text), parse(text)).ok


def test_another_way_to_compute_the_same_is_no_fault() -> None:
    one = "g (float[64] x) => (float[64] y) <float k = {3.0}> { a = Sin(x) b = Mul(a, k) y = Neg(b) }"
    other = parse(one.replace("{3.0}", "{3.0001}"))  # off by 3e-5
    assert bisect_layers(parse(one), other).ok
    assert not bisect_layers(parse(one), parse(one.replace("{3.0}", "{3.001}"))).ok


def test_two_onnx_models_in_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphkit.verification.bisect import _onnx_candidate

    most = [0]
    alive: list[weakref.ref[np.ndarray]] = []
    compute = _onnx_candidate.compute

    def counted(*args: Any) -> dict[str, np.ndarray]:
        most[0] = max(most[0], sum(ref() is not None for ref in alive))
        made = {name: np.array(array) for name, array in compute(*args).items()}
        alive.extend(weakref.ref(array) for array in made.values())
        return made

    monkeypatch.setattr(_onnx_candidate, "compute", counted)
    chain = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(12))
    model = parse(f"g (float[1000] v0) => (float[1000] v12) {{ {chain} }}")
    assert bisect_layers(model, model, memory=8000).ok
    assert len(alive) >= 12
    assert most[0] <= 1


def test_two_onnx_models_without_a_common_value() -> None:
    with pytest.raises(UsageError, match="no inner value of the same name"):
        bisect_layers(
            parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"),
            parse("g (float[2] x) => (float[2] z) { z = Neg(x) }"),
        )


# -- natural, small -----------------------------------------------------------------------------------------------


def test_scatternd_of_partial_depth() -> None:
    result = bisect_layers(
        parse("""
            g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> {
                a = Relu(x) [scatter] b = ScatterND(a, i, u) y = Neg(b)
            }
        """)
    )
    assert _named(result) == [("scatter", "ScatterND", "operator")]
    assert "alone it is wrong too → operator fault in MNN" in result.answer
    assert "as shipped is right" in result.faults[0].rechecked


def test_refused_nodes_are_all_named() -> None:
    text = "g (float[4] x) => (bool[4] y, bool[4] z) { a = Relu(x) [n] y = IsNaN(a) b = Neg(x) [m] z = IsInf(b) }"
    result = bisect_layers(parse(text), suggestions=False)
    assert _named(result) == [("n", "IsNaN", "refused"), ("m", "IsInf", "refused")]
    assert result.answer.startswith("first failure: node 'n' (IsNaN): MNN has no such operator")


# -- natural, real models ----------------------------------------------------------------------------------------


def test_minilm_eager_torchscript(export_path: Paths) -> None:
    path = export_path("minilm_eager_ts")
    inputs = list(Graph.of(Model.load(path)).inputs)
    feeds = [{name: sample[name] for name in inputs} for sample in natural("minilm")[:1]]
    result = bisect_layers(path, inputs=feeds)
    assert _named(result) == [("/bert/ConstantOfShape", "ConstantOfShape", "operator")]
    suggestion = result.faults[0].suggestion
    assert suggestion is not None
    assert (suggestion.passes, suggestion.works) == ("fold-constants", True)
    assert result.answer.startswith("first mismatch: node '/bert/ConstantOfShape' (ConstantOfShape): expected [True]")
    assert result.faults[0].rechecked


def test_raw_dynamo_export_crashes_at_computed_biases(export_path: Paths) -> None:
    result = bisect_layers(export_path("mbv3_dyn"))
    assert _named(result) == [("node_conv2d", "Conv", "crash")]
    reason = result.faults[0].found.reason
    assert "SIGSEGV" in reason
    assert "node_Expand_6" in reason
    assert "33 more nodes are made alike" in result.faults[0].found.note
    assert result.instead is not None
    assert result.instead.works


def test_silero_seq(model_path: Paths) -> None:
    result = bisect_layers(model_path("silero_seq"))
    assert _named(result) == [("/recurrent/LSTM", "LSTM", "operator")]
    assert result.faults[0].suggestion is not None
    assert result.faults[0].suggestion.works


def test_smart_turn_aborts(model_path: Paths) -> None:
    result = bisect_layers(model_path("smart_turn"))
    assert _named(result) == [("node_linear_26", "Gemm", "crash")]
    assert "SIGABRT" in result.faults[0].found.reason
    assert "inner.classifier.0.weight_DequantizeLinear" in result.faults[0].found.nodes
    assert result.instead is not None
    assert result.instead.works


def test_ppocr4_det_at_eight_bits(model_path: Paths) -> None:
    """Its BatchNorm divides by variances of 1e7: what MNN quantizes then has scales under 1e-6, which count as 0."""
    options = ConverterOptions.of(weightQuantBits=8)
    result = bisect_layers(model_path("ppocr4_det"), inputs=natural("ppocr4_det")[:1], options=options)
    assert _named(result) == [("p2o.Conv.61", "Conv", "quantization")]
    assert "16 of 24 rows have only zeros" in result.faults[0].found.reason
    suggestion = result.faults[0].suggestion
    assert suggestion is not None
    assert (suggestion.excluded, suggestion.works) == (("conv2d_497.tmp_0",), True)


def test_magika_reads_one_value_in_the_wrong_order(model_path: Paths) -> None:
    result = bisect_layers(model_path("magika"))
    assert [(fault.node.rsplit("/", 2)[-2:], fault.kind) for fault in result.faults] == [
        (["ApplyActivation_1", "AddV2_1"], "layout")
    ]
    assert "right values in other places" in result.faults[0].found.reason
    assert "as shipped is right" in result.faults[0].rechecked


@pytest.mark.parametrize("name", ["dtln1", "silero_vad"])
def test_nothing_is_invented(model_path: Paths, name: str) -> None:
    result = bisect_layers(model_path(name))
    assert result.ok, result.lines()
