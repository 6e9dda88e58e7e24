"""What a summary says of documents, made by hand and by MNN's converter."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from documents import SCHEMA, ints, op, random_document, small, table

from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import Document, parse, read
from graphkit.mnn.document.files import dump
from graphkit.mnn.document.summary import ModelInput, Size, Summary, summarize
from graphkit.mnn.options import ConverterOptions

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,64,8,8] x) => (float[1,32,8,8] y) { c = Conv(x, w, b) y = Relu(c) }"""


def converted(folder: Path, **options: Any) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    draw = np.random.default_rng(0)
    for name, shape in (("w", (32, 64, 1, 1)), ("b", (32,))):
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(draw.standard_normal(shape).astype(np.float32), name)
        )
    onnx.save(proto, folder / "m.onnx")
    return run_converter(folder / "m.onnx", folder / "m.mnn", ConverterOptions.of(**options)).output


def of(doc: Document) -> Summary:
    return summarize(parse(dump(doc)))


def test_inputs_outputs_operators_and_subgraphs() -> None:
    found = of(small())
    assert found.inputs == (ModelInput("x", "float32", (1, 1, 8, 8), "NCHW"),)
    assert found.outputs == ("y",)
    assert found.ops == {"UnaryOp": 2, "Input": 1, "Convolution": 1}
    assert (found.op_total, found.subgraphs, found.version) == (4, {"body": 1}, "3.6.1")


def test_bytes_by_kind_type_and_operator() -> None:
    found = of(small())
    assert found.by_kind == {"weights": Size(1, 576 * 4), "biases": Size(1, 256)}
    assert found.by_dtype == {"float32": Size(2, 2560)}
    assert found.by_operator == {"Convolution": Size(2, 2560)}
    assert found.arrays == Size(2, 2560)
    assert (found.external, found.quantized) == (0, ())


def test_texts_are_names() -> None:
    found = of(small())
    assert found.texts == len("xcy") * 2 + len("y") * 2 + len("bodyabb")


@pytest.mark.parametrize(
    ("label", "field", "array", "dtype"),
    [
        ("DT_FLOAT", "float32s", np.ones(6, "<f4"), "float32"),
        ("DT_INT32", "int32s", np.ones(6, "<i4"), "int32"),
        ("DT_HALF", "uint8s", np.zeros(12, "u1"), "float16"),
        ("DT_BFLOAT16", "uint8s", np.zeros(12, "u1"), "bfloat16"),
        ("DT_INT8", "int8s", np.ones(6, "i1"), "int8"),
    ],
)
def test_constants_by_their_type(label: str, field: str, array: np.ndarray, dtype: str) -> None:
    doc = small()
    blob = table("Blob", dims=ints(2, 3), dataType=SCHEMA.enums["DataType"].numbers[label], **{field: array})
    doc.net.tables("oplists").append(op("Const", "k", (), (3,), blob))
    doc.net.texts("tensorName").append("k")
    found = of(doc)
    assert found.by_kind["constants"] == Size(1, array.nbytes)
    assert found.by_dtype[dtype].nbytes == array.nbytes + (2560 if dtype == "float32" else 0)


def test_settings_when_they_say_something() -> None:
    assert of(small()).settings == {}
    doc = small()
    numbers = SCHEMA.enums["ForwardType"].numbers
    doc.net.fields.update(bizCode="mine", mnn_uuid="id", preferForwardType=numbers["VULKAN"], sourceType=3)
    assert of(doc).settings == {
        "bizCode": "mine", "mnn_uuid": "id", "sourceType": "ONNX", "preferForwardType": "VULKAN",
    }  # fmt: skip


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    ("options", "scheme", "code_bytes", "scale_bytes"),
    [
        ({"weightQuantBits": 8, "weightQuantAsymmetric": False}, (8, "per channel", "symmetric"), 2048 + 262, 128),
        ({"weightQuantBits": 8, "weightQuantAsymmetric": True}, (8, "per channel", "asymmetric"), 2048 + 262, 256),
        (
            {"weightQuantBits": 4, "weightQuantBlock": 32, "weightQuantAsymmetric": True},
            (4, "block 32", "asymmetric"),
            1024 + 22,
            512,
        ),
    ],
)
def test_quantized_layers(
    tmp_path: Path, options: dict[str, Any], scheme: tuple[Any, ...], code_bytes: int, scale_bytes: int, external: bool
) -> None:
    found = summarize(read(converted(tmp_path, **options, **({"saveExternalData": True} if external else {}))))
    (layer,) = found.quantized
    assert (layer.bits, layer.sharing, layer.symmetry) == scheme
    assert (layer.type, layer.scales, layer.weights, layer.activations) == ("Convolution", "float32", 2048, False)
    assert found.by_kind["quantized weights"] == Size(1, code_bytes)
    assert found.by_kind["quantization scales"] == Size(1, scale_bytes)
    assert layer.nbytes == code_bytes + scale_bytes
    assert found.by_dtype[f"{scheme[0]}-bit codes"].nbytes == code_bytes
    assert (found.external > 0) == external
    assert (found.weights is not None) == external


def test_float16_weights_are_not_quantized(tmp_path: Path) -> None:
    found = summarize(read(converted(tmp_path, fp16=True)))
    assert found.quantized == ()
    assert found.by_dtype["float16"] == Size(1, 4096)


def test_weights_outside(tmp_path: Path) -> None:
    path = converted(tmp_path, saveExternalData=True)
    found = summarize(read(path))
    assert found.weights == tmp_path / "m.mnn.weight"
    assert found.external == found.weights.stat().st_size == found.arrays.nbytes
    found.weights.unlink()
    again = summarize(read(path))
    assert (again.weights, again.external) == (None, found.external)


def test_int8_convolutions() -> None:
    doc = small()
    weight = np.ones(576, "i1")
    conv = doc.net.tables("oplists")[1]
    conv.fields["type"] = SCHEMA.enums["OpType"].numbers["ConvInt8"]
    del conv["main"].fields["weight"]
    conv["main"].fields["symmetricQuan"] = table("QuantizedFloatParam", weight=weight, nbits=8)
    (layer,) = of(doc).quantized
    assert (layer.bits, layer.symmetry, layer.weights, layer.activations) == (8, "symmetric", 576, True)


def test_random_documents() -> None:
    seen = 0
    for seed in range(150):
        doc = random_document(random.Random(seed))
        found = summarize(parse(dump(doc)))
        assert found.op_total == sum(len(graph.ops) for graph in doc.graphs())
        seen += found.arrays.arrays
    assert seen > 100
