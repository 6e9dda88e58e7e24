"""`graphkit inspect`: bytes by kind and type, quantized layers, what is wrong with a .mnn file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from documents import small

from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import read, write
from graphkit.mnn.options import ConverterOptions
from graphkit.testing import parse

QUANTIZED = """g (float[2,4] x) => (float[2,4] y) <int8[4,4] q = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16},
float[4] s = {1.0, 1.0, 1.0, 0.5}, float[4] b = {1.0, 1.0, 1.0, 1.0}, int64[2] d = {2, 4}>
{ w = DequantizeLinear<axis = 1>(q, s) h = MatMul(x, w) a = Add(h, b) y = Reshape(a, d) }"""


def converted(name: str, **options: Any) -> str:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,32] y) { y = MatMul(x, w) }'
    )
    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, "float.onnx")
    run_converter(Path("float.onnx"), Path(name), ConverterOptions.of(**options))
    return name


def test_onnx_by_kind_and_quantized(run: Any) -> None:
    parse(QUANTIZED).save("q.onnx")
    data = json.loads(run("inspect", "q.onnx", "--json").stdout)
    assert data["weights"]["by_kind"] == {
        "quantized weights": {"tensors": 1, "bytes": 16},
        "quantization scales": {"tensors": 1, "bytes": 16},
        "weights": {"tensors": 1, "bytes": 16},
        "constants": {"tensors": 1, "bytes": 16},
    }
    assert data["quantized"] == [
        {
            "name": "(w)",
            "type": "DequantizeLinear",
            "weight": "q",
            "bits": 8,
            "sharing": "per channel",
            "symmetry": "symmetric",
            "scales": "float",
            "weights": 16,
            "nbytes": 32,
        }
    ]
    text = run("inspect", "q.onnx").stdout
    assert "8-bit per channel, symmetric, float scales  1            16  32 bytes" in text
    assert "(w)" in run("inspect", "q.onnx", "-v").stdout


def test_mnn_quantized(run: Any) -> None:
    name = converted("w4.mnn", weightQuantBits=4, weightQuantBlock=32, weightQuantAsymmetric=False)
    data = json.loads(run("inspect", name, "--json").stdout)
    (layer,) = data["quantized"]
    assert (layer["bits"], layer["sharing"], layer["symmetry"], layer["weights"]) == (4, "block 32", "symmetric", 2048)
    assert data["weights"]["by_kind"]["quantization scales"] == {"tensors": 1, "bytes": 256}
    assert data["problems"] == []
    assert data["settings"]["mnn_uuid"]
    sizes = data["weights"]["bytes"], data["names"]["bytes"], data["structure"]["bytes"]
    assert sum(sizes) == data["bytes"]
    text = run("inspect", name).stdout
    assert "4-bit block 32, symmetric, float32 scales" in text
    assert "mnn_uuid" not in text
    assert "mnn_uuid" in run("inspect", name, "-v").stdout


def test_mnn_weights_outside(run: Any) -> None:
    name = converted("e.mnn", saveExternalData=True)
    data = json.loads(run("inspect", name, "--json").stdout)
    size = Path("e.mnn.weight").stat().st_size
    assert data["external"] == [{"file": "e.mnn.weight", "bytes": size, "used": size}]
    assert data["weights"]["by_kind"]["weights"]["bytes"] == 64 * 32 * 4
    Path("e.mnn.weight").unlink()
    result = run("inspect", name)
    assert result.exit_code == 0
    assert "external data: e.mnn.weight  is missing" in result.stdout
    assert "error: " in result.stdout
    assert json.loads(run("inspect", name, "--json").stdout)["external"][0]["bytes"] is None


def test_a_weight_file_that_nothing_uses_is_no_external_data(run: Any) -> None:
    name = converted("f.mnn")
    Path("f.mnn.weight").write_bytes(b"of another model")
    assert json.loads(run("inspect", name, "--json").stdout)["external"] == []


def test_mnn_problems(run: Any, folder: Path) -> None:
    doc = small()
    doc.net.fields["outputName"] = ["nowhere"]
    write(doc, folder / "bad.mnn")
    data = json.loads(run("inspect", "bad.mnn", "--json").stdout)
    assert any("nowhere" in problem["message"] for problem in data["problems"])
    text = run("inspect", "bad.mnn").stdout
    assert "error: " in text
    assert "nowhere" in text


@pytest.mark.parametrize("field", ["bizCode"])
def test_settings_are_shown(run: Any, folder: Path, field: str) -> None:
    doc = read(converted("s.mnn"))
    doc.net.fields[field] = "mine\x1b"
    write(doc, folder / "t.mnn")
    assert f"{field}: mine\\x1b" in run("inspect", "t.mnn").stdout
