"""What fusions claim about MNN, measured: the forms that the passes write are one operator, and right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.fileinfo import read_file_info
from graphkit.passes.fuse_gelu import FuseGelu
from graphkit.passes.fuse_layernorm import FuseLayernorm
from graphkit.passes.fuse_matmul_add import FuseMatmulAdd
from graphkit.passes.fuse_rmsnorm import FuseRmsnorm
from graphkit.rewrite import Pass
from graphkit.testing import graph_of, parse, random_feeds, run

CONSTANTS = """<float q = {1.4142135}, float r = {0.70710677}, float h = {0.5}, float o = {1},
    float k = {0.044715}, float c = {0.7978846}, float e = {0.00001}, float[8] w = {1, 2, 3, 4, 5, 6, 7, 8},
    float[8] b = {8, 7, 6, 5, 4, 3, 2, 1}, int64[1] last = {-1}>"""
HEAD = f"g (float[2,5,8] x) => (float[2,5,8] y) {CONSTANTS}"
ERF = "a = Mul(r, x) f = Erf(a) d = Add(o, f) i = Mul(x, h) y = Mul(i, d)"
TANH = """s = Mul(x, x) p = Mul(s, x) m = Mul(p, k) a = Add(x, m) n = Mul(a, c) t = Tanh(n) d = Add(o, t)
    i = Mul(h, x) y = Mul(i, d)"""
NORM = """m = ReduceMean<axes = [-1]>(x) d = Sub(x, m) p = Mul(d, d) v = ReduceMean<axes = [-1]>(p)
    a = Add(e, v) s = Sqrt(a) n = Div(d, s)"""
RMS = """p = Mul(x, x) v = ReduceMean<axes = [-1]>(p) a = Add(e, v) s = Sqrt(a) i = Reciprocal(s)
    n = Mul(i, x)"""


@pytest.mark.parametrize(
    ("pass_", "body", "opset", "wanted"),
    [
        (FuseGelu(), ERF, 17, "UnaryOp"),
        (FuseGelu(form="mnn"), ERF, 20, "UnaryOp"),
        (FuseGelu(form="mnn"), "y = Gelu(x)", 20, "UnaryOp"),
        (FuseLayernorm(), f"{NORM} u = Mul(w, n) y = Add(b, u)", 17, "LayerNorm"),
        (FuseLayernorm(), f"{NORM} u = Mul(w, n) y = Add(b, u)", 13, "LayerNorm"),
        (FuseLayernorm(form="mnn"), f"{NORM} y = Mul(w, n)", 13, "LayerNorm"),
        (FuseLayernorm(form="mnn"), NORM.replace("n =", "y ="), 13, "LayerNorm"),
        (FuseLayernorm(), "y = LayerNormalization<axis = 2>(x, w, b)", 17, "LayerNorm"),
        (FuseRmsnorm(), f"{RMS} y = Mul(w, n)", 17, "LayerNorm"),
        (FuseRmsnorm(), RMS.replace("n =", "y ="), 17, "LayerNorm"),
        (FuseRmsnorm(form="decomposed"), "y = RMSNormalization(x, w)", 23, "LayerNorm"),
    ],
)
def test_one_operator_and_right(tmp_path: Path, pass_: Pass, body: str, opset: int, wanted: str) -> None:
    text = f"{HEAD} {{ {body} }}"
    graph = graph_of(text, opset=opset, ir_version=10)
    assert pass_.run(graph).modified
    source, target = tmp_path / "m.onnx", tmp_path / "m.mnn"
    graph.to_model().save(source)
    run_converter(source, target)
    counts = read_file_info(target).op_counts
    counts.pop("Input")
    assert counts == {wanted: 1}
    before = parse(text, opset=opset, ir_version=10)
    feeds = random_feeds(before)
    expected, made = run(before, feeds)["y"], worker.run(target, feeds).outputs["y"]
    assert np.abs(made.reshape(-1) - expected.reshape(-1)).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("body", "saved"),
    [
        ("m = MatMul(x, w) a = Add(m, b) y = Mul(a, half)", 2),
        ("m = MatMul(x, w) y = Sub(m, b)", 2),
        ("i = Mul(x, half) m = MatMul(i, w) y = Add(m, b)", 2),
        ("m = MatMul(x, w) a = Add(m, b) y = Add(a, b)", 2),
    ],
)
def test_arithmetic_that_costs_mnn_operators(tmp_path: Path, body: str, saved: int) -> None:
    text = f"""g (float[2,S,2] x) => (float[2,S,2] y) <float[2,2] w = {{1, 2, 3, 4}}, float[2] b = {{1, 2}},
        float half = {{0.3}}> {{ {body} }}"""
    graph, totals = graph_of(text), []
    for name in ("before", "after"):
        graph.to_model().save(tmp_path / f"{name}.onnx")
        run_converter(tmp_path / f"{name}.onnx", tmp_path / f"{name}.mnn")
        totals.append(read_file_info(tmp_path / f"{name}.mnn").op_total)
        FuseMatmulAdd().run(graph)
    assert totals[0] - totals[1] >= saved


@pytest.mark.parametrize("body", [TANH, 'y = Gelu<approximate = "tanh">(x)'])
def test_tanh_gelu_is_exact_where_mnns_own_is_not(tmp_path: Path, body: str) -> None:
    text = f"g (float[1,801] x) => (float[1,801] y) {CONSTANTS} {{ {body} }}"
    graph, before = graph_of(text, opset=20), parse(text, opset=20)
    assert FuseGelu(form="mnn").run(graph).modified
    graph.to_model().save(tmp_path / "m.onnx")
    run_converter(tmp_path / "m.onnx", tmp_path / "m.mnn")
    assert read_file_info(tmp_path / "m.mnn").op_total == 9
    feeds = {"x": np.linspace(-8, 8, 801, dtype=np.float32)[None]}
    expected, made = run(before, feeds)["y"], worker.run(tmp_path / "m.mnn", feeds).outputs["y"]
    assert np.abs(made.reshape(-1) - expected.reshape(-1)).max() <= 4e-6
