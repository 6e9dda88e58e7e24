"""Why a node was left to MNN: what the passes said stands beside what MNN says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from graphkit.compare import Tolerance
from graphkit.errors import MnnError, NodeFault
from graphkit.graph import Graph
from graphkit.manager import PassRecord
from graphkit.mnn._told import told
from graphkit.mnn.inquiry import REPLACE, halves
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.rewrite import Refusal
from tests.quantized_models import MS, model


def record(status: str = "unchanged", reason: str = "", refusals: tuple[Refusal, ...] = ()) -> PassRecord:
    return PassRecord(
        name="lower-for-mnn", text="lower-for-mnn", status=status, rewrites=0, nodes_before=1, nodes_after=1,
        seconds=0.0, rounds=(), numbers=(), counters={}, refusals=refusals, notes=(), changes=(), reason=reason,
    )  # fmt: skip


def error(hint: str = REPLACE) -> MnnError:
    return MnnError("MNN refused 1 node", faults=(NodeFault("n", "Op", "no such operator in MNN"),), hint=hint)


def test_a_refusal_is_the_reason_of_the_fault() -> None:
    found = told(error(), [record(refusals=(Refusal("rule", "n", "its scales do not fit"),))])
    assert found.faults[0].reason == "no such operator in MNN; not rewritten: its scales do not fit"
    assert found.hint != REPLACE


def test_a_rolled_back_pass_is_named_with_its_reason() -> None:
    found = told(error(), [record("rolled back", "output 'y': error 0.0059 is over 0.001")])
    assert str(found) == (
        "MNN refused 1 node; pass 'lower-for-mnn' was rolled back (output 'y': error 0.0059 is over 0.001)"
    )
    assert "bisect" in str(found.hint)


def test_other_errors_stay() -> None:
    found = told(error("another"), [record(refusals=(Refusal("rule", "other", "why"),))])
    assert (str(found), found.hint) == ("MNN refused 1 node", "another")
    assert found.faults[0].reason == "no such operator in MNN"
    assert told(error(), []).hint == REPLACE


def damaged(points: int) -> Model:
    node = helper.make_node(
        "MatMulNBits", ["x", "c", "s", "z"], ["y"], name="nb", domain=MS, K=8, N=16, bits=4, block_size=16
    )
    constants = {
        "c": np.zeros((16, 1, 8), np.uint8),
        "s": np.ones(16, np.float32),
        "z": np.zeros(points, np.uint8),
    }
    return model([node], {"x": (TensorProto.FLOAT, [3, 8])}, {"y": TensorProto.FLOAT}, constants, opset=21)


def test_conversion_says_why_the_lowering_left_a_node(tmp_path: Path) -> None:
    with pytest.raises(MnnError, match="refused 1 node") as caught:
        convert(damaged(3), tmp_path / "m.mnn")
    fault = caught.value.faults[0]
    assert fault.node == "nb"
    assert "zero points do not belong together" in fault.reason
    assert not (tmp_path / "m.mnn").exists()


def test_conversion_names_the_node_that_onnxruntime_does_not_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("DequantizeLinear", ["c", "s"], ["w"], name="dq", axis=1),
        helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
    ]
    constants = {"c": np.ones((8, 16), np.int8), "s": np.ones(7, np.float32)}
    source = model(nodes, {"x": (TensorProto.FLOAT, [3, 8])}, {"y": TensorProto.FLOAT}, constants)
    with pytest.raises(MnnError) as caught:
        convert(source, tmp_path / "m.mnn")
    fault = caught.value.faults[0]
    assert fault.node == "dq"
    assert "scales of shape [7] do not fit codes of shape [8, 16]" in fault.reason


def test_other_passes_do_not_say_why_a_node_was_left() -> None:
    other = replace(record(refusals=(Refusal("fold", "n", "too large"),)), name="fold-constants")
    assert told(error(), [other]).faults[0].reason == "no such operator in MNN"


def quantized(kind: str) -> Model:
    """A model that rounds its input to codes, by a range that is known or found."""
    pair = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], name="dq"),
    ]
    dynamic = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "t", "p"]),
        helper.make_node("DequantizeLinear", ["q", "t", "p"], ["y"], name="dq"),
    ]
    nodes, constants = (pair, {"s": np.float32(0.0117), "z": np.uint8(128)}) if kind == "pair" else (dynamic, {})
    return model(nodes, {"x": (TensorProto.FLOAT, [3, 8])}, {"y": TensorProto.FLOAT}, constants)


def test_half_floats_and_quantized_activations_are_named_as_the_reason(tmp_path: Path) -> None:
    with pytest.raises(MnnError, match="computes the model wrong") as caught:
        convert(
            quantized("pair"),
            tmp_path / "m.mnn",
            options=ConverterOptions.of(fp16=True),
            tolerance=Tolerance(rtol=1e-3),
        )
    assert "leave --fp16 out, or its rounding with --passes strip-activation-qdq" in str(caught.value.hint)


def test_advice_about_half_floats_is_for_models_that_quantize() -> None:
    assert "strip" not in halves(Graph.of(quantized("dynamic")))
    assert "leave --fp16 out" in halves(Graph.of(quantized("dynamic")))
    assert not halves(Graph.of(damaged(3)))
