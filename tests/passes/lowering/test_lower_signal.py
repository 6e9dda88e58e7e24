"""DFT, STFT, windows, optimizers and function bodies, against ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.passes.lowering import bodies
from graphkit.rewrite import Refusal, Rewrite, apply
from graphkit.testing import assert_unchanged, graph_of, parse
from tests.in_mnn import assert_right_in_mnn

RNG = np.random.default_rng(5)


def assert_lowered(text: str, opset: int, feeds: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    """The graph after the pass computes what it did before; returns that."""
    graph = graph_of(text, opset=opset)
    assert LowerForMnn().run(graph).modified
    graph.check()
    wanted, found = (
        [np.asarray(value) for value in ReferenceEvaluator(model.materialized()).run(None, dict(feeds))]
        for model in (parse(text, opset=opset), graph.to_model())
    )
    for want, got in zip(wanted, found, strict=True):
        assert got.dtype == want.dtype
        assert np.shape(got) == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    return wanted


@pytest.mark.parametrize("opset", [17, 20])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize(("inverse", "onesided"), [(0, 0), (1, 0), (0, 1)])
def test_dft(opset: int, parts: int, axis: int, inverse: int, onesided: int) -> None:
    if parts == 2 and onesided:
        return
    place = f"axis = {axis}, " if opset < 20 else ""
    weights = "" if opset < 20 else f"<int64 a = {{{axis}}}>"
    call = f"DFT<{place}inverse = {inverse}, onesided = {onesided}>(x{'' if opset < 20 else ', , a'})"
    text = f"g (float[2, 6, 5, {parts}] x) => (float[P, Q, R, 2] y) {weights} {{ y = {call} }}"
    assert_lowered(text, opset, {"x": RNG.standard_normal((2, 6, 5, parts)).astype(np.float32)})


@pytest.mark.parametrize("length", [4, 6, 9])
def test_dft_of_another_length(length: int) -> None:
    text = f"g (float[2, 6, 2] x) => (float[2, Q, 2] y) <int64 n = {{{length}}}> {{ y = DFT(x, n) }}"
    assert_lowered(text, 17, {"x": RNG.standard_normal((2, 6, 2)).astype(np.float32)})


@pytest.mark.parametrize("length", [6, 7])
def test_real_inverse(length: int, tmp_path: Path) -> None:
    text = (
        f"g (float[N, 4, 2] x) => (float[N, {length}, 1] y) <int64 n = {{{length}}}>"
        "{ y = DFT<inverse = 1, onesided = 1>(x, n) }"
    )
    x = RNG.standard_normal((2, 4, 2)).astype(np.float32)
    (want,) = assert_lowered(text, 20, {"x": x})
    assert_right_in_mnn(text, tmp_path, feeds={"x": x}, expected={"y": want}, opset=20)


def test_dft_of_unknown_length() -> None:
    text = "g (float[1, N, 1] x) => (float[1, N, 2] y) { y = DFT(x) }"
    assert_unchanged(LowerForMnn(), text, refuses="length is not known")
    text = "g (float[1, 8, P] x) => (float[1, 8, 2] y) { y = DFT(x) }"
    assert_unchanged(LowerForMnn(), text, refuses="shape of its input is unknown")


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", ["", "constant", "computed"])
def test_stft(onesided: int, window: str, tmp_path: Path) -> None:
    weights = ", float[8] w = {1, 2, 3, 4, 4, 3, 2, 1}" if window == "constant" else ""
    inputs = ", float[8] w" if window == "computed" else ""
    text = (
        f"g (float[2, 32, 1] x{inputs}) => (float[2, 7, F, 2] y) <int64 s = {{4}}, int64 n = {{8}}{weights}>"
        f"{{ y = STFT<onesided = {onesided}>(x, s, {'w' if window else ''}, n) }}"
    )
    feeds = {"x": RNG.standard_normal((2, 32, 1)).astype(np.float32)}
    feeds |= {"w": RNG.uniform(0, 1, 8).astype(np.float32)} if inputs else {}
    (want,) = assert_lowered(text, 17, feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"y": want}, opset=17)


def test_stft_of_unknown_length() -> None:
    text = "g (float[1, N, 1] x) => (float[1, P, 5, 2] y) <int64 s = {4}, int64 n = {8}> { y = STFT(x, s, , n) }"
    assert_unchanged(LowerForMnn(), text, refuses="length of the signal")


@pytest.mark.parametrize("kind", ["HannWindow", "HammingWindow", "BlackmanWindow"])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
def test_windows(kind: str, periodic: int, constant: bool) -> None:
    inputs, weights = ("", "<int64 n = {10}>") if constant else ("int64 n", "")
    text = f"g ({inputs}) => (float[P] y) {weights} {{ y = {kind}<periodic = {periodic}>(n) }}"
    assert_lowered(text, 17, {} if constant else {"n": np.array(10)})


def test_window_in_mnn(tmp_path: Path) -> None:
    text = "g (float[10] x) => (float[10] y) <int64 n = {10}> { w = HannWindow(n) y = Mul(x, w) }"
    assert_right_in_mnn(text, tmp_path, opset=17)


def test_window_of_integers() -> None:
    text = "g (int64 n) => (int32[P] y) { y = HannWindow<output_datatype = 6>(n) }"
    assert_unchanged(LowerForMnn(), text, refuses="windows are of floats")


def test_mel_weights() -> None:
    constants = "int64 b = {8}, int64 n = {16}, int64 r = {8192}, float lo = {0}, float hi = {4096}"
    assert_lowered(f"g () => (float[9, 8] y) <{constants}> {{ y = MelWeightMatrix(b, n, r, lo, hi) }}", 17, {})
    text = f"g (int64 b) => (float[9, P] y) <{constants.split(', ', 1)[1]}> {{ y = MelWeightMatrix(b, n, r, lo, hi) }}"
    assert_unchanged(LowerForMnn(), text, refuses="not constant")


TRAINING = {
    "Adagrad": ("x, g, s", "norm_coefficient = 0.1, epsilon = 0.01, decay_factor = 0.1", 2),
    "Adam": ("x, g, s, q", "norm_coefficient = 0.1, alpha = 0.9, beta = 0.99, epsilon = 0.01", 3),
    "Momentum": ("x, g, s", 'norm_coefficient = 0.1, alpha = 0.9, beta = 0.5, mode = "nesterov"', 2),
}


@pytest.mark.parametrize("kind", list(TRAINING))
@pytest.mark.parametrize("step", [0, 3])
def test_optimizers(kind: str, step: int) -> None:
    names, attrs, count = TRAINING[kind]
    tensors = ", ".join(f"float[3] {name}" for name in names.split(", "))
    outs = ", ".join(f"float[3] y{k}" for k in range(count))
    values = ", ".join(f"y{k}" for k in range(count))
    domain = "ai.onnx.preview.training"
    text = f"g (float r, int64 t, {tensors}) => ({outs}) {{ {values} = {domain}.{kind}<{attrs}>(r, t, {names}) }}"
    feeds = {name: RNG.uniform(0.1, 1, 3).astype(np.float32) for name in names.split(", ")}
    feeds |= {"r": np.array(0.1, np.float32), "t": np.array(step)}
    graph = graph_of(text, imports={domain: 1})
    assert LowerForMnn().run(graph).modified
    before = parse(text, imports={domain: 1}).materialized()
    after = graph.to_model().materialized()
    for want, got in zip(*(ReferenceEvaluator(model).run(None, feeds) for model in (before, after)), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)


@pytest.mark.parametrize("kind", list(TRAINING))
def test_optimizers_of_doubles(kind: str) -> None:
    names, _, count = TRAINING[kind]
    tensors = ", ".join(f"double[3] {name}" for name in names.split(", "))
    values = ", ".join(f"y{k}" for k in range(count))
    outs = ", ".join(f"double[3] y{k}" for k in range(count))
    domain = "ai.onnx.preview.training"
    text = f"g (double r, int64 t, {tensors}) => ({outs}) {{ {values} = {domain}.{kind}(r, t, {names}) }}"
    assert_unchanged(LowerForMnn(), text, refuses="not float32", imports={domain: 1})


def _node(op: str, opset: int, **attrs: Any) -> Graph:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node(op, ["x"], ["y"], **attrs)], "g", [x], [y])
    opsets = [onnx.helper.make_opsetid("", opset)]
    return Graph.of(Model.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)))


@pytest.mark.parametrize(
    ("op", "opset", "attrs"),
    [
        ("Mish", 22, {}),
        ("Swish", 24, {"alpha": 2.0}),
        ("ThresholdedRelu", 22, {}),
        ("Shrink", 18, {"lambd": 0.3, "bias": 0.1}),
    ],
)
def test_bodies_compute_the_same(op: str, opset: int, attrs: dict[str, float]) -> None:
    graph = _node(op, opset, **attrs)
    (node,) = graph.nodes
    made = bodies.body(graph, node)
    assert isinstance(made, Rewrite)
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    (want,) = ReferenceEvaluator(graph.to_model().materialized()).run(None, {"x": x})
    apply(graph, made)
    (got,) = ReferenceEvaluator(graph.to_model().materialized()).run(None, {"x": x})
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5)


def test_bodies_that_cannot_be_taken() -> None:
    graph = _node("Abs", 14)
    assert bodies.body(graph, next(iter(graph.nodes))) is None
    graph = _node("Gelu", 20)
    graph.inferred.clear()
    (node,) = graph.nodes
    graph.set_inputs(node, ["unknown"])
    refusal = bodies.body(graph, node)
    assert isinstance(refusal, Refusal)
    assert "unknown" in refusal.reason
    assert bodies.runs_right("Add")
    assert not bodies.runs_right("StringConcat")


def test_body_of_another_operator_set(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = _node("Mish", 22)
    (node,) = graph.nodes
    monkeypatch.setattr(bodies, "runs_right", lambda op: op == "Mul")
    refusal = bodies.body(graph, node)
    assert isinstance(refusal, Refusal)
    assert "does not run right" in refusal.reason
