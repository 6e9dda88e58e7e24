"""Differences of two .mnn files: each planted change is found, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import SCHEMA, ints, op, random_document, small, table

from graphkit.errors import ModelError, UsageError
from graphkit.mnn.convert import run_converter
from graphkit.mnn.diff import ABSENT, Change, Difference, diff
from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.tree import Table
from graphkit.mnn.options import ConverterOptions
from graphkit.testing import parse

Edit = Callable[[Document], None]


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Difference]:
    """`edited(edit)`: how the small document differs from itself after an edit."""

    def run(edit: Edit, **options: Any) -> Difference:
        old, new = small(), small()
        edit(new)
        write(old, tmp_path / "old.mnn")
        write(new, tmp_path / "new.mnn")
        return diff(tmp_path / "old.mnn", tmp_path / "new.mnn", **options)

    return run


def ops(doc: Document) -> list[Table]:
    return doc.net.tables("oplists")


def conv(doc: Document) -> Table:
    found: Table = ops(doc)[1]["main"]
    return found


def same(doc: Document) -> None:
    return None


def only_fields(result: Difference) -> dict[str, tuple[Any, Any]]:
    """The fields of the only operator that changed, when nothing else differs."""
    (changed,) = result.ops
    assert changed.kind == "changed"
    assert not result.model
    assert not changed.arrays
    return {change.field: (change.old, change.new) for change in changed.fields}


def test_a_document_equals_itself(edited: Callable[..., Difference]) -> None:
    result = edited(same)
    assert result.equal
    assert result.same == 3
    assert result.notes == ()


def test_an_attribute(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: conv(doc)["common"].fields.update(strideX=2))
    assert only_fields(result) == {"main.common.strideX": (1, 2)}
    assert (result.ops[0].name, result.ops[0].type, result.ops[0].matched) == ("c", "Convolution", "name")
    assert result.same == 2


def test_an_enum_by_name(edited: Callable[..., Difference]) -> None:
    number = SCHEMA.enums["UnaryOpOperation"].numbers["COS"]
    result = edited(lambda doc: ops(doc)[2]["main"].fields.update(opType=number))
    assert only_fields(result) == {"main.opType": ("SIN", "COS")}


def test_a_default_that_is_written_is_no_difference(edited: Callable[..., Difference]) -> None:
    assert edited(lambda doc: conv(doc)["common"].fields.update(strideX=1, relu6=False)).equal


def test_a_table_that_one_side_has_is_one_change(edited: Callable[..., Difference]) -> None:
    sparse = table("SparseCommon", method=0)
    result = edited(lambda doc: conv(doc).fields.update(sparseParameter=sparse))
    assert only_fields(result) == {"main.sparseParameter": (ABSENT, "SparseCommon")}


def test_weights_by_norm_largest_and_count(edited: Callable[..., Difference]) -> None:
    old = conv(small())["weight"].astype(np.float64)

    def edit(doc: Document) -> None:
        conv(doc).fields["weight"] = conv(doc)["weight"].copy()
        conv(doc).fields["weight"][[3, 70]] += np.float32(0.5)

    result = edited(edit)
    (changed,) = result.ops
    (array,) = changed.arrays
    assert changed.fields == ()
    assert (array.field, array.changed, array.count, array.nans) == ("main.weight", 2, 576, 0)
    assert array.relative == pytest.approx(np.sqrt(0.5) / np.linalg.norm(old), rel=1e-6)
    assert array.largest == pytest.approx(0.5, rel=1e-6)
    assert array.old.sha256 != array.new.sha256
    assert (array.old.dtype, array.old.shape) == ("float32", (576,))


def test_weights_of_another_length_have_no_norm(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: conv(doc).fields.update(bias=np.zeros(32, "<f4")))
    ((array,),) = [changed.arrays for changed in result.ops]
    assert (array.relative, array.old.shape, array.new.shape) == (None, (64,), (32,))


def test_weights_that_are_gone(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: conv(doc).fields.pop("bias"))
    assert only_fields(result) == {"main.bias": ("float32[64]", ABSENT)}


def test_input_dims_are_a_change_of_the_model(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: ops(doc)[0]["main"].fields.update(dims=ints(1, 1, 16, 16)))
    assert result.model == (Change("inputs[x].shape", (1, 1, 8, 8), (1, 1, 16, 16)),)
    assert result.ops == ()


def test_outputs_and_settings(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        doc.net.fields["outputName"] = ["y", "c"]
        doc.net.fields.update(bizCode="mine", preferForwardType=SCHEMA.enums["ForwardType"].numbers["OPENCL"])

    changes = {change.field: (change.old, change.new) for change in edited(edit).model}
    assert changes == {
        "bizCode": (ABSENT, "mine"),
        "preferForwardType": ("CPU", "OPENCL"),
        "outputs[c]": (ABSENT, "present"),
    }


def test_the_uuid_counts_when_it_is_asked_for(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        doc.net.fields["mnn_uuid"] = "another"

    result = edited(edit)
    assert result.equal
    assert result.notes == ("mnn_uuid",)
    assert [change.field for change in edited(edit, uuid=True).model] == ["mnn_uuid"]


def test_rewired(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: ops(doc)[2].fields.update(inputIndexes=ints(0)))
    assert only_fields(result) == {"inputs[0]": ("c", "x")}


def test_a_renamed_operator_is_found_by_its_outputs(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: ops(doc)[1].fields.update(name="conv"))
    (changed,) = result.ops
    assert (changed.name, changed.old_name, changed.matched, changed.fields) == ("conv", "c", "outputs", ())


def test_a_renamed_operator_and_tensor_are_found_by_structure(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        ops(doc)[1].fields["name"] = doc.net.texts("tensorName")[1] = "conv"

    result = edited(edit)
    (changed,) = result.ops  # what reads the tensor is not rewired: the same operator makes it
    assert (changed.name, changed.old_name, changed.matched) == ("conv", "c", "structure")
    assert changed.fields == (Change("outputs[0]", "c", "conv"),)


def test_another_type_under_the_same_name(edited: Callable[..., Difference]) -> None:
    number = SCHEMA.enums["OpType"].numbers["ConvolutionDepthwise"]
    assert only_fields(edited(lambda doc: ops(doc)[1].fields.update(type=number))) == {
        "type": ("Convolution", "ConvolutionDepthwise")
    }


def test_added_and_removed(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        ops(doc)[2] = op("Softmax", "soft", (1,), (2,), table("Axis", axis=1))

    result = edited(edit)
    kinds = [(change.kind, change.name, change.type, change.instead_of) for change in result.ops]
    assert kinds == [("added", "soft", "Softmax", "y"), ("removed", "y", "UnaryOp", "")]


def test_order_is_only_noted(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        ops(doc)[1], ops(doc)[2] = ops(doc)[2], ops(doc)[1]

    result = edited(edit)
    assert result.equal
    assert result.notes == ("the order of 1 operators",)


def test_subgraphs_are_compared_by_name(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        body = doc.net.tables("subgraphs")[0]
        body.tables("nodes")[0]["main"].fields["opType"] = 1

    result = edited(edit)
    (changed,) = result.ops
    assert (changed.graph, changed.name, [change.field for change in changed.fields]) == (
        "body", "b", ["main.opType"],
    )  # fmt: skip


def test_a_new_subgraph(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        doc.net.tables("subgraphs").append(table("SubGraphProto", name="more", nodes=[], tensors=[]))

    assert edited(edit).model == (Change("more", ABSENT, "0 operators"),)


def test_ranges_of_quantized_activations(edited: Callable[..., Difference]) -> None:
    def edit(doc: Document) -> None:
        doc.net.tables("extraTensorDescribe")[0]["quantInfo"].fields["scale"] = np.float32(0.2)

    assert edited(edit).model == (Change("tensors[y].quantInfo.scale", 0.1, 0.2),)


def test_tensors_with_one_name_are_told_apart(edited: Callable[..., Difference]) -> None:
    def twice(doc: Document) -> None:
        doc.net.texts("tensorName")[1] = "x"

    result = edited(twice)
    assert only_fields(result) == {"outputs[0]": ("c", "x#2")}


def test_random_documents_equal_themselves(tmp_path: Path) -> None:
    compared = 0
    for seed in range(200):
        doc = random_document(random.Random(seed))
        if doc.net.tables("oplists") and not any("external" in found for _, found in doc.net.walk()):
            write(doc, tmp_path / f"{seed}.mnn")
            assert diff(tmp_path / f"{seed}.mnn", tmp_path / f"{seed}.mnn").equal, seed
            compared += 1
    assert compared > 30


def test_indexes_out_of_range_are_compared_as_they_are(edited: Callable[..., Difference]) -> None:
    result = edited(lambda doc: ops(doc)[2].fields.update(inputIndexes=ints(99)))
    assert only_fields(result) == {"inputs[0]": ("c", "tensor 99")}


@pytest.mark.parametrize("name", ["none.mnn", "folder.mnn", "text.mnn", "empty.mnn"])
def test_bad_files(tmp_path: Path, name: str) -> None:
    write(small(), tmp_path / "good.mnn")
    (tmp_path / "folder.mnn").mkdir()
    (tmp_path / "text.mnn").write_text("this is no model, whatever it is called")
    (tmp_path / "empty.mnn").write_bytes(b"")
    for pair in ((name, "good.mnn"), ("good.mnn", name)):
        with pytest.raises(ModelError, match=name.split(".", maxsplit=1)[0]):
            diff(*(tmp_path / part for part in pair))


def test_two_formats_are_for_verify(tmp_path: Path) -> None:
    write(small(), tmp_path / "m.mnn")
    parse("g (float[2] x) => (float[2] y) { y = Relu(x) }").save(tmp_path / "m.onnx")
    with pytest.raises(UsageError) as caught:
        diff(tmp_path / "m.onnx", tmp_path / "m.mnn")
    assert "graphkit verify" in (caught.value.hint or "")


# -- what MNN's converter makes ---------------------------------------------------------------------------------

CONVERTED = """g (float[1,64] x) => (float[1,32] y) <float[64,32] w, float[32] b>
{ h = MatMul(x, w) s = Add(h, b) y = Relu(s) }"""


def converted(path: Path, *, noise: float = 0.0, **options: Any) -> Path:
    """A model with one matrix, converted; `noise` changes one element."""
    import onnx

    weight = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    weight[5, 7] += noise
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {CONVERTED}')
    del proto.graph.initializer[:]
    bias = np.arange(32, dtype=np.float32)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for a, n in ((weight, "w"), (bias, "b")))
    onnx.save(proto, path.with_suffix(".onnx"))
    return run_converter(path.with_suffix(".onnx"), path, ConverterOptions.of(**options)).output


def test_two_conversions_of_one_model_are_equal(tmp_path: Path) -> None:
    a, b = converted(tmp_path / "a.mnn"), converted(tmp_path / "b.mnn")
    assert a.read_bytes() != b.read_bytes()
    result = diff(a, b)
    assert result.equal
    assert result.notes == ("mnn_uuid",)


def test_weights_kept_outside_are_the_same_weights(tmp_path: Path) -> None:
    a, b = converted(tmp_path / "a.mnn"), converted(tmp_path / "b.mnn", saveExternalData=True)
    assert (tmp_path / "b.mnn.weight").is_file()
    result = diff(a, b)
    assert result.equal
    assert "where weights are kept" in result.notes


def test_weights_kept_outside_are_read(tmp_path: Path) -> None:
    a, b = converted(tmp_path / "a.mnn"), converted(tmp_path / "b.mnn", noise=1.0, saveExternalData=True)
    ((array,),) = [changed.arrays for changed in diff(a, b).ops]
    assert (array.changed, array.count) == (1, 2048)
    assert array.largest == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("content", [None, b"short"])
def test_weights_kept_outside_that_are_missing(tmp_path: Path, content: bytes | None) -> None:
    model = converted(tmp_path / "a.mnn", saveExternalData=True)
    weights = tmp_path / "a.mnn.weight"
    weights.unlink() if content is None else weights.write_bytes(content)
    with pytest.raises(ModelError, match=r"missing|ends before"):
        diff(model, converted(tmp_path / "b.mnn"))


@pytest.mark.parametrize(
    ("options", "limit", "words"),
    [
        ({"fp16": True}, 1e-3, ""),
        ({"weightQuantBits": 8, "weightQuantAsymmetric": False}, 0.02, "8-bit, per channel, symmetric, float32 scales"),
        ({"weightQuantBits": 8, "weightQuantAsymmetric": True}, 0.02, "8-bit, per channel, asymmetric, float32 scales"),
        ({"weightQuantBits": 5, "weightQuantAsymmetric": True}, 0.1, "5-bit, per channel, asymmetric, float32 scales"),
        (
            {"weightQuantBits": 4, "weightQuantBlock": 32, "weightQuantAsymmetric": False},
            0.2,
            "4-bit, block 32, symmetric, float32 scales",
        ),
    ],
)
def test_quantized_weights_against_the_floats(
    tmp_path: Path, options: dict[str, Any], limit: float, words: str
) -> None:
    a, b = converted(tmp_path / "a.mnn"), converted(tmp_path / "b.mnn", **options)
    result = diff(a, b)
    (changed,) = result.ops
    (array,) = changed.arrays
    assert (changed.fields, result.model) == ((), ())
    assert (array.new.quantization, array.new.shape, array.count) == (words, (2048,), 2048)
    assert array.relative is not None
    assert 0 < array.relative < limit


def test_codes_are_counted(tmp_path: Path) -> None:
    options: dict[str, Any] = {"weightQuantBits": 8, "weightQuantAsymmetric": False}
    a, b = converted(tmp_path / "a.mnn", **options), converted(tmp_path / "b.mnn", noise=0.2, **options)
    ((array,),) = [changed.arrays for changed in diff(a, b).ops]
    assert (array.codes, array.changed) == (1, 1)
    assert array.largest == pytest.approx(0.2, abs=0.02)


def test_damaged_codes_are_compared_as_bytes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"weightQuantBits": 8, "weightQuantAsymmetric": False}
    a, b = converted(tmp_path / "a.mnn", **options), converted(tmp_path / "b.mnn", **options)
    doc = read(b)
    quan = next(found for _, found in doc.net.walk() if found.type.name == "IDSTQuan")
    quan.fields["buffer"] = quan["buffer"][:100].copy()
    write(doc, tmp_path / "c.mnn")
    ((array,),) = [changed.arrays for changed in diff(a, tmp_path / "c.mnn").ops]
    assert (array.relative, array.codes) == (None, None)
    assert array.old.sha256 != array.new.sha256
