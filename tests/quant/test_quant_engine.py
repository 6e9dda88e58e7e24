"""The engine: models quantized layer by layer, records of each, and what a calibration adds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant import rtn
from graphkit.quant.engine import Chosen, Sample, plan_of, quantize
from graphkit.quant.layers import find_layers
from graphkit.quant.options import Method, QuantizeOptions, parse_layers
from graphkit.quant.plan import Plan
from graphkit.quant.setting import Setting
from graphkit.testing import run

CHANNELS, HIDDEN, CLASSES = 32, 64, 24


def network(*, tiny: bool = False) -> Model:
    """ids → table → product → Relu → product; pictures → Conv → depthwise Conv → ConvTranspose.

    tiny: the first convolution has small weights and large inputs, as where a BatchNormalization was folded in.
    """
    rng = np.random.default_rng(0)
    weights = {
        "table": (40, CHANNELS),
        "first": (CHANNELS, HIDDEN),
        "second": (HIDDEN, CLASSES),
        "conv": (16, 16, 3, 3),
        "depth": (16, 1, 3, 3),
        "up": (16, 8, 2, 2),
    }
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    if tiny:
        arrays["conv"] *= np.float32(3e-5)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="emb"),
        helper.make_node("MatMul", ["rows", "first"], ["h"], name="first_proj"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "second"], ["logits"], name="second_proj"),
        helper.make_node("Conv", ["x", "conv"], ["c"], name="conv3"),
        helper.make_node("Conv", ["c", "depth"], ["d"], name="depthwise", group=16),
        helper.make_node("ConvTranspose", ["d", "up"], ["u"], name="deconv", strides=[2, 2]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 12, 12]),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", CLASSES]),
            helper.make_tensor_value_info("u", TensorProto.FLOAT, [1, 8, 16, 16]),
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def samples(count: int, seed: int = 0, *, size: float = 1.0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((16, 16)).astype(np.float32)  # channels that go together, as in real data
    pictures = [
        np.einsum("ij,jyx->iyx", mix, rng.standard_normal((16, 12, 12))).astype(np.float32) for _ in range(count)
    ]
    return [{"ids": rng.integers(0, 40, 9), "x": size * picture[None]} for picture in pictures]


def error(model: Model, quantized: Model, output: str, feeds: list[Sample]) -> float:
    pairs = [(run(model, f)[output], run(quantized, f)[output]) for f in feeds]
    return float(np.sqrt(sum(((a - b) ** 2).sum() for a, b in pairs) / sum((a**2).sum() for a, _ in pairs)))


def test_eight_bits_by_rounding_move_the_outputs_by_a_percent() -> None:
    model = network()
    result = quantize(model)
    assert [record.name for record in result.records] == [
        "emb", "first_proj", "second_proj", "conv3", "depthwise", "deconv",
    ]  # fmt: skip
    assert not result.kept
    for output in ("logits", "u"):
        assert 1e-4 < error(model, result.model, output, samples(3)) < 0.015
    floats = [w for w in Graph.of(result.model).initializers.values() if w.data_type == TensorProto.FLOAT]
    assert max(w.nbytes for w in floats) <= 4 * HIDDEN  # scales only


def test_codes_are_those_of_the_method() -> None:
    model = network()
    graph = Graph.of(model)
    layer = next(layer for layer in find_layers(graph)[0] if layer.name == "second_proj")
    weight = graph.initializers["second"].array()
    codes = rtn.quantize_matrix(layer.matrix(weight), 4, 32)
    result = quantize(model, QuantizeOptions(bits=4, block=32))
    made = Graph.of(result.model)
    rows = samples(1)[0]
    swapped = Graph.of(model)
    swapped.set_initializer("second", layer.restore(codes.values()))
    others = quantize(swapped.to_model(), QuantizeOptions(bits=4, block=32, skip=("second_proj",)))
    np.testing.assert_array_equal(run(made.to_model(), rows)["logits"], run(others.model, rows)["logits"])


def test_records_say_what_was_done_and_add_up() -> None:
    result = quantize(network(), QuantizeOptions(bits=4, block=32, method="mse", skip=("deconv",)))
    records = {record.name: record for record in result.records}
    second = records["second_proj"]
    assert (second.setting, second.method, second.why, second.nodes) == (Setting(4, 32), "mse", "rule", 1)
    assert second.float_bytes == HIDDEN * CLASSES * 4
    assert second.nbytes == HIDDEN * CLASSES // 2 + CLASSES * 2 * 4 + 6 + 16
    assert 0.03 < second.weight_error < 0.15
    assert second.output_error is None
    assert records["emb"].weight_error < 0.01
    assert [total.kind for total in result.totals] == ["Embedding", "MatMul", "Conv"]
    assert sum(total.nbytes for total in result.totals) == result.nbytes
    assert [(entry.name, entry.reason) for entry in result.kept] == [("deconv", "skipped by the user")]
    data = json.loads(json.dumps(result.to_dict()))
    assert [layer["name"] for layer in data["layers"]] == list(records)
    assert data["kept"][0]["bytes"] == 16 * 8 * 4 * 4


def test_weight_error_is_the_error_of_the_weight() -> None:
    model = network()
    (record,) = quantize(model, QuantizeOptions(bits=3, embeddings=False, skip=("*_proj", "d*"))).records
    weight = Graph.of(model).initializers["conv"].array().reshape(16, -1)
    values = rtn.quantize_matrix(weight, 3).values()
    assert record.weight_error == pytest.approx(np.linalg.norm(values - weight) / np.linalg.norm(weight), rel=1e-5)


def test_channels_of_tiny_weights_survive() -> None:
    """MNN's rounding makes codes with scales up to 1e-6 zero: the head of ppocr4_det goes that way."""
    model = network(tiny=True)
    weight = Graph.of(model).initializers["conv"].array().reshape(16, -1)
    assert (rtn.quantize_matrix(weight, 8).codes == 0).all(axis=1).sum() > 8
    result = quantize(model)
    assert next(r for r in result.records if r.name == "conv3").weight_error < 0.01
    assert error(model, result.model, "u", samples(2, size=1e4)) < 0.015


def test_lifting_changes_no_code_elsewhere() -> None:
    model = network()
    graph = Graph.of(model)
    scaled = graph.initializers["conv"].array() * np.float32(2.0**-14)
    layer = next(layer for layer in find_layers(graph)[0] if layer.name == "conv3")
    graph.set_initializer("conv", scaled)
    tiny, plain = quantize(graph.to_model()), quantize(model)
    for a, b in zip(_stored(tiny.model, "conv"), _stored(plain.model, "conv"), strict=True):
        np.testing.assert_array_equal(a, b if b.dtype == np.int8 else b * np.float32(2.0**-14))
    assert layer.rows == 16


def _stored(model: Model, weight: str) -> list[np.ndarray]:
    """Codes and scales of a weight."""
    (node,) = [n for n in Graph.of(model).by_op("DequantizeLinear") if n.inputs[0].startswith(f"{weight}_quantized")]
    initializers = Graph.of(model).initializers
    return [initializers[name].array() for name in node.inputs]


def test_gptq_needs_data_and_is_better_with_them() -> None:
    model = network()
    options = QuantizeOptions(bits=4, method="gptq", embeddings=False)
    with pytest.raises(UsageError, match="gptq needs calibration data") as caught:
        quantize(model, options)
    assert "--calib" in (caught.value.hint or "")
    seen, fresh = samples(40), samples(10, seed=0)
    fresh = [{**f, "x": s["x"] * np.float32(0.5)} for f, s in zip(fresh, samples(50)[40:], strict=True)]
    plain = quantize(model, QuantizeOptions(bits=4, embeddings=False), calibration=seen)
    tuned = quantize(model, options, calibration=seen)
    for output in ("logits", "u"):
        assert error(model, tuned.model, output, fresh) < 0.8 * error(model, plain.model, output, fresh)
    by_name = {record.name: record for record in plain.records}
    for record in tuned.records:
        assert record.output_error is not None
        assert record.output_error < (by_name[record.name].output_error or 0)
        assert record.damping in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def test_output_error_is_that_of_the_layers_output() -> None:
    model = network()
    feeds = samples(6)
    (record,) = quantize(model, QuantizeOptions(bits=3, skip=("*_proj", "d*", "emb")), calibration=feeds).records
    assert record.name == "conv3"
    graph = Graph.of(model)
    weight = graph.initializers["conv"].array()
    values = rtn.quantize_matrix(weight.reshape(16, -1), 3).values().reshape(weight.shape)
    changed = Graph.of(model)
    changed.set_initializer("conv", values)
    outputs = [_inner(m.to_model(), "c", feeds) for m in (graph, changed)]
    expected = np.linalg.norm(outputs[1] - outputs[0]) / np.linalg.norm(outputs[0])
    assert record.output_error == pytest.approx(expected, rel=1e-3)


def _inner(model: Model, value: str, feeds: list[Sample]) -> np.ndarray:
    proto = model.materialized()
    del proto.graph.output[:]
    proto.graph.output.append(helper.make_tensor_value_info(value, TensorProto.FLOAT, None))
    return np.stack([run(Model.from_proto(proto), feed)[value] for feed in feeds])


def test_a_damping_that_is_given_is_used() -> None:
    options = QuantizeOptions(bits=4, method="gptq", damping=0.25, skip=("emb", "d*"))
    result = quantize(network(), options, calibration=samples(8))
    assert {record.damping for record in result.records} == {0.25}


def test_one_sample_leaves_nothing_to_choose_by() -> None:
    result = quantize(network(), QuantizeOptions(bits=4, method="gptq", skip=("emb",)), calibration=samples(1))
    assert {record.damping for record in result.records} == {0.1}


def test_a_search_changes_the_plan_and_is_recorded() -> None:
    def search(model: Model, plan: Plan, data: object) -> Chosen:
        assert data is None
        found = plan.with_settings({"conv3": Setting(3), "deconv": Setting(32)}, "search", {"conv3": 0.25})
        return Chosen(found, note="measured on nothing")

    result = quantize(network(), QuantizeOptions(), search=search)
    conv = next(record for record in result.records if record.name == "conv3")
    assert (conv.setting, conv.why, conv.sensitivity) == (Setting(3), "search", 0.25)
    assert [(entry.name, entry.reason) for entry in result.kept] == [("deconv", "search")]
    assert (result.note, result.to_dict()["search"]) == ("measured on nothing", "measured on nothing")


def test_scales_as_halves_cost_little_and_are_halves() -> None:
    model = network()
    result = quantize(model, QuantizeOptions(bits=8, scales="float16"))
    full = quantize(model, QuantizeOptions(bits=8))
    _, scale = _stored(result.model, "conv")
    np.testing.assert_array_equal(scale, scale.astype(np.float16).astype(np.float32))
    assert result.nbytes < full.nbytes
    assert error(model, result.model, "u", samples(2)) < 1.1 * error(model, full.model, "u", samples(2))


def test_tiny_scales_do_not_become_halves() -> None:
    result = quantize(network(tiny=True), QuantizeOptions(scales="float16"))
    scales = {record.name: record.scales for record in result.records}
    assert (scales["conv3"], scales["depthwise"]) == ("float32", "float16")


@pytest.mark.parametrize("method", ["rtn", "mse"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(bad: float, method: Method) -> None:
    graph = Graph.of(network())
    weight = graph.initializers["second"].array().copy()
    weight[3, 5] = bad
    graph.set_initializer("second", weight)
    with pytest.raises(ModelError, match="NaN or infinite") as caught:
        quantize(graph.to_model(), QuantizeOptions(method=method))
    assert caught.value.node == "second_proj"


@pytest.mark.parametrize("method", ["rtn", "mse"])
def test_an_all_zero_channel_stays_zero(method: Method) -> None:
    graph = Graph.of(network())
    weight = graph.initializers["second"].array().copy()
    weight[:, 7] = 0
    graph.set_initializer("second", weight)
    result = quantize(graph.to_model(), QuantizeOptions(method=method))
    logits = run(result.model, samples(1)[0])["logits"]
    assert (logits[:, 7] == 0).all()
    assert np.isfinite(logits).all()


def test_progress_tells_of_every_layer() -> None:
    told: list[tuple[int, int, str]] = []
    quantize(network(), progress=lambda done, total, name: told.append((done, total, name)))
    assert [entry[0] for entry in told] == list(range(7))
    assert {entry[1] for entry in told} == {6}
    assert told[0][2] == "emb"


def test_the_model_given_is_not_changed() -> None:
    model = network()
    before, buffers = model.proto.SerializeToString(), list(model.store.buffers)
    quantize(model, QuantizeOptions(bits=4))
    assert model.proto.SerializeToString() == before
    assert model.store.buffers == buffers


def test_a_plan_is_carried_out_as_it_is(tmp_path: Path) -> None:
    model = network()
    model.save(tmp_path / "m.onnx")
    plan = plan_of(Graph.of(model), QuantizeOptions(layers=parse_layers(["conv3=5:mse"])))
    result = quantize(tmp_path / "m.onnx", plan)
    assert result.plan == plan
    conv = next(record for record in result.records if record.name == "conv3")
    assert (conv.setting, conv.method) == (Setting(5), "mse")


_MEASURE = """
import resource, sys, threading, time
from graphkit.model import Model
from graphkit.quant.engine import quantize
from graphkit.quant.options import QuantizeOptions
quantize(sys.argv[1])
def peak():
    return int(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))
open("/proc/self/clear_refs", "w").write("5")
start = peak()
result = quantize(sys.argv[2])
result.model.save(sys.argv[3])
print((peak() - start) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peak of memory")
def test_memory_is_that_of_a_layer(tmp_path: Path) -> None:
    """24 layers of 8 MB: their floats are never in memory together."""
    rng = np.random.default_rng(0)
    size, count = 1448, 24
    weight = rng.standard_normal((size, size)).astype(np.float32)
    arrays = [numpy_helper.from_array(weight * np.float32(1 + i), f"w{i}") for i in range(count)]
    nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"]) for i in range(count)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], arrays)
    big = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    Model.from_proto(big).save(tmp_path / "big.onnx")
    network().save(tmp_path / "small.onnx")
    argv = [sys.executable, "-c", _MEASURE, *(str(tmp_path / name) for name in ("small.onnx", "big.onnx", "out.onnx"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert (tmp_path / "out.onnx").stat().st_size < 1.02 * count * size * size + 2 * 4 * count * size
    assert float(done.stdout) < 100  # MB; 20 to 55 by the pages that the system keeps, 208 with those of all floats
