"""`graphkit quantize`, and `graphkit convert --bits`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphkit.mnn.document import read
from graphkit.mnn.document.summary import summarize
from graphkit.model import Model
from graphkit.testing import parse
from graphkit.testing import run as outputs_of

Run = Callable[..., Any]
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def net(run: Run) -> None:
    """Two products with a Relu between, and tokens looked up before."""
    text = """g (int64[batch, seq] ids) => (float[batch, seq, 64] y) {
        x = Gather(table, ids) a = MatMul(x, first) b = Relu(a) y = MatMul(b, second) }"""
    weights = {
        "table": RNG.standard_normal((50, 64)),
        "first": RNG.standard_normal((64, 64)),
        "second": RNG.standard_normal((64, 64)),
    }
    save(text, weights)


def save(text: str, weights: dict[str, Any], name: str = "net.onnx") -> None:
    """Save a model of ONNX text with float32 weights in the current folder."""
    import onnx

    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    for key, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array, np.float32), key))
    Path(name).write_bytes(proto.SerializeToString())


def calibration(count: int = 12) -> None:
    ids = np.random.default_rng(1).integers(0, 50, (count, 2, 5))
    np.savez("calib.npz", ids=ids)


def test_to_onnx(run: Run) -> None:
    result = run("quantize", "net.onnx")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "output cosine 0.99" in result.stdout
    assert "wrote net.quant.onnx" in result.stdout
    operators = [node.op_type for node in Model.load("net.quant.onnx").proto.graph.node]
    assert operators.count("DequantizeLinear") == 2
    assert Path("net.quant.onnx").stat().st_size < Path("net.onnx").stat().st_size / 2


def test_to_mnn_with_the_same_codes(run: Run) -> None:
    result = run("quantize", "net.onnx", "-o", "net.mnn", "--bits", "4", "--block", "32", "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert [layer["bits"] for layer in data["layers"] if layer["kind"] == "MatMul"] == [4, 4]
    assert len(data["conversion"]["quantized_weights"]["layers"]) == 2
    assert data["conversion"]["proof"]["kind"] == "equal"
    layers = summarize(read("net.mnn")).quantized
    assert [(layer.bits, layer.sharing) for layer in layers] == [(4, "block 32")] * 2


def test_gptq_with_data_is_better_than_rounding(run: Run) -> None:
    calibration()
    errors = {}
    for method in ("rtn", "gptq"):
        result = run("quantize", "net.onnx", "--bits", "3", "--method", method, "--calib", "calib.npz", "--json")
        assert result.exit_code == 0
        errors[method] = json.loads(result.stdout)["accuracy"]["relative_l2"]
    assert errors["gptq"] < 0.9 * errors["rtn"]


def test_damping_and_order_change_the_codes(run: Run) -> None:
    calibration()
    made = []
    for flags in ((), ("--damping", "1"), ("--act-order",), ("--act-order", "--damping", "1")):
        args = ("--bits", "3", "--calib", "calib.npz", *flags, "--save-plan", "p.json")
        assert run("quantize", "net.onnx", *args, "-o", "q.onnx").exit_code == 0
        made.append(Path("q.onnx").read_bytes())
    assert len(set(made)) == 4
    assert run("quantize", "net.onnx", "--plan", "p.json", "--calib", "calib.npz", "-o", "q.onnx").exit_code == 0
    assert Path("q.onnx").read_bytes() == made[-1]


def test_plans_go_out_and_in(run: Run) -> None:
    assert run("quantize", "net.onnx", "--bits", "4", "--layers", "y=8", "--save-plan", "p.json").exit_code == 0
    result = run("quantize", "net.onnx", "--plan", "p.json", "--json")
    bits = {layer["name"]: layer["bits"] for layer in json.loads(result.stdout)["layers"]}
    assert {bits["a"], bits["y"]} == {4, 8}
    assert bits["y"] == 8


def test_a_budget_mixes_bits(run: Run) -> None:
    calibration()
    args = ("--calib", "calib.npz", "--method", "mse", "--no-cache", "--executor", "threads")
    result = run("quantize", "net.onnx", "--budget", "9.5KB", *args, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert sum(layer["bytes"] for layer in data["layers"]) <= 9500
    assert all(layer["sensitivity"] is not None for layer in data["layers"] if layer["kind"] == "MatMul")
    result = run("quantize", "net.onnx", "--budget", "1KB", *args)
    assert result.exit_code == 2
    assert "budget" in result.stderr


def test_mnn_tutorials_configuration(run: Run) -> None:
    settings = {"weight_quant": True, "activate_quant": False, "quant_bits": 4, "quant_scheme": "symmetric"}
    Path("t.json").write_text(json.dumps(settings))
    result = run("quantize", "net.onnx", "--plan", "t.json", "--json")
    assert {layer["bits"] for layer in json.loads(result.stdout)["layers"] if layer["kind"] == "MatMul"} == {4}
    Path("t.json").write_text(json.dumps({**settings, "activate_quant": True}))
    result = run("quantize", "net.onnx", "--plan", "t.json")
    assert result.exit_code == 2
    assert "memory" in result.stderr


def test_convert_quantizes_too(run: Run) -> None:
    result = run("convert", "net.onnx", "--bits", "8")
    assert result.exit_code == 0, result.stderr
    assert "carried 2 quantized layers: 8-bit per channel" in result.stdout
    assert run("convert", "net.onnx", "--block", "32").exit_code == 2
    assert run("convert", "net.onnx", "--bits", "8", "--no-optimize").exit_code == 2


def test_what_is_quantized_already_keeps_its_codes(run: Run) -> None:
    assert run("quantize", "net.onnx", "-o", "q.onnx", "--bits", "5").exit_code == 0
    result = run("convert", "q.onnx")
    assert "carried 2 quantized layers: 5-bit per channel" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--bits", "1"), "2 to 8"),
        (("--bits", "9"), "2 to 8"),
        (("--bits", "4", "--layers", "nope=8"), "nope"),
        (("--bits", "4", "--layers", "y"), "pattern"),
        (("--bits", "4", "--skip", "nope*"), "nope"),
        (("--bits", "4", "--layers", "y=4b48"), "48"),
        (("--bits", "4", "--block", "5"), "block"),
        (("--method", "gptq"), "calibration"),
        (("--calib", "missing.npz"), "missing.npz"),
        (("--budget", "5"), "unit"),
        (("--budget", "5KB", "--max-error", "0.1"), "one aim"),
        (("--min-metric", "0.9"), "samples"),
        (("--bits", "4", "--act-order"), "gptq"),
        (("--bits", "4", "--damping", "0"), "above 0"),
        (("--plan", "missing.json"), "missing.json"),
        (("--bits", "4", "--asymmetric", "--method", "mse"), "rtn"),
        (("--budget", "5KB", "--choose", "a,b"), "commas"),
        (("-o", "net.txt"), "ONNX or MNN"),
        (("-o", "net.onnx"), "input"),
    ],
)
def test_bad_options(run: Run, args: tuple[str, ...], message: str) -> None:
    before = Path("net.onnx").read_bytes()
    result = run("quantize", "net.onnx", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert not Path("net.quant.onnx").exists()
    assert Path("net.onnx").read_bytes() == before


def test_data_that_do_not_fit(run: Run) -> None:
    np.savez("calib.npz", wrong=np.zeros((4, 2, 5), np.int64))
    result = run("quantize", "net.onnx", "--calib", "calib.npz")
    assert result.exit_code == 2
    assert "ids" in result.stderr


def test_weights_that_are_no_numbers(run: Run) -> None:
    bad = np.ones((32, 32))
    bad[3, 4] = np.nan
    save("g (float[N, 32] x) => (float[N, 32] y) { y = MatMul(x, w) }", {"w": bad}, "nan.onnx")
    result = run("quantize", "nan.onnx", "--passes", "cleanup")
    assert result.exit_code == 2
    assert "'y'" in result.stderr


def test_a_channel_of_zeros(run: Run) -> None:
    weights = RNG.standard_normal((32, 32))
    weights[:, 5] = 0
    save("g (float[N, 32] x) => (float[N, 32] y) { y = MatMul(x, w) }", {"w": weights}, "zero.onnx")
    assert run("quantize", "zero.onnx", "-o", "zero.mnn", "--bits", "4").exit_code == 0
    assert run("quantize", "zero.onnx", "-o", "zero.q.onnx", "--bits", "4").exit_code == 0
    x = np.ones((2, 32), np.float32)
    assert (outputs_of(Model.load("zero.q.onnx"), {"x": x})["y"][:, 5] == 0).all()


def test_a_model_without_weights(run: Run) -> None:
    parse("g (float[4] x) => (float[4] y) { y = Relu(x) }").save("bare.onnx")
    result = run("quantize", "bare.onnx")
    assert result.exit_code == 2
    assert "no weights" in result.stderr


def test_half_floats_are_forecast(run: Run) -> None:
    save("g (float[N, 32] x) => (float[N, 32] y) { a = MatMul(x, w) y = MatMul(a, v) }",
         {"w": 1e4 * np.eye(32), "v": 1e-4 * np.eye(32)}, "big.onnx")  # fmt: skip
    np.savez("calib.npz", x=np.full((3, 1, 32), 100, np.float32))
    result = run("convert", "big.onnx", "--fp16", "--calib", "calib.npz", "--json", "--verify", "none")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)["half_forecast"]
    assert (data["ok"], data["source"], [entry["tensor"] for entry in data["beyond"]]) == (
        False, "calibration data", ["a"],
    )  # fmt: skip
    result = run("convert", "big.onnx", "--fp16", "-v")
    assert "half floats" in result.stdout


def test_a_pass_at_the_end_of_the_pipeline_is_carried(run: Run) -> None:
    result = run("convert", "net.onnx", "--passes", "mnn,quantize{bits=4,block=32,method=mse}")
    assert result.exit_code == 0, result.stderr
    assert "carried 2 quantized layers: 4-bit block 32" in result.stdout
    assert [layer.bits for layer in summarize(read("net.mnn")).quantized] == [4, 4]


def test_what_was_measured_on_what_is_said(run: Run) -> None:
    calibration(20)
    args = ("--calib", "calib.npz", "--method", "gptq", "--no-cache", "--executor", "threads")
    result = run("quantize", "net.onnx", *args, "--max-error", "0.1")
    assert result.exit_code == 0, result.stderr
    assert ", 0.1 allowed, on 5 samples that the codes were not made from" in result.stdout
    assert "on 3 held-back samples" in result.stdout
    result = run("quantize", "net.onnx", *args, "--budget", "9.5KB", "--json")
    assert json.loads(result.stdout)["search"].endswith("those written are made from these, too")
    calibration(4)
    assert "on 1 held-back sample\n" in run("quantize", "net.onnx", "--calib", "calib.npz").stdout


def test_weights_of_one_name_in_two_branches(run: Run) -> None:
    import onnx
    from onnx import helper

    def branch(name: str, out: str) -> onnx.GraphProto:
        weight = onnx.numpy_helper.from_array(RNG.standard_normal((64, 32)).astype(np.float32), "w")
        node = helper.make_node("MatMul", ["x", "w"], [out])
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(out, 1, ["n", 32])], [weight])

    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "o"), else_branch=branch("e", "o"))],
        "g",
        [helper.make_tensor_value_info("x", 1, ["n", 64]), helper.make_tensor_value_info("c", 9, [])],
        [helper.make_tensor_value_info("y", 1, ["n", 32])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "ifs.onnx")
    result = run("quantize", "ifs.onnx", "-o", "ifs.mnn", "--bits", "4")
    assert result.exit_code == 0, result.stderr
    assert "carried 2 quantized layers" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--budget", "9" * 400 + "MB", "--calib", "calib.npz"), "no budget"),
        (("--plan", "big.json", "--calib", "calib.npz"), "above 0"),
    ],
)
def test_numbers_beyond_all_bounds(run: Run, args: tuple[str, ...], message: str) -> None:
    calibration()
    Path("big.json").write_text('{"damping": 1' + "0" * 400 + ', "default": {"bits": 4}}')
    result = run("quantize", "net.onnx", *args)
    assert (result.exit_code, message in result.stderr) == (2, True)
