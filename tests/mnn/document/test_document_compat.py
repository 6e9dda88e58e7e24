"""MNN's own JSON dialect, checked against MNN's converter in both directions."""

from __future__ import annotations

import json
import random as dice
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphkit.errors import ModelError, OutputError
from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.compat import from_compat, to_compat
from graphkit.mnn.document.json_form import to_json
from graphkit.mnn.document.tree import first_difference
from graphkit.mnn.process import Ending, run_child
from tests.documents import SCHEMA, ints, op, random_document, small, table
from tests.mnn.document.converted import CNN, LOOP, cnn_weights, computed, convert, random


def mnn_convert(folder: Path, *flags: str) -> Ending:
    """Run MNN's converter in a folder of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as private:
        return run_child({"task": "convert", "argv": ["MNNConvert", *flags]}, Path(private), 60)


def by_mnn(path: Path) -> Document:
    """What MNN reads from a JSON file."""
    made = path.with_suffix(".by-mnn.mnn")
    ending = mnn_convert(path.parent, "-f", "JSON", "--modelFile", str(path), "--MNNModel", str(made))
    assert made.exists(), ending.log
    return read(made)


def of(*ops: Any, **fields: Any) -> Document:
    """A document of operators; MNN's reader wants names of tensors."""
    return Document(table("Net", oplists=list(ops), **{"tensorName": ["t"], **fields}), SCHEMA, "")


def blob(**fields: Any) -> Document:
    """A document of one constant."""
    return of(op("Const", "k", (), (0,), table("Blob", **fields)))


def test_mnn_reads_every_bit_of_a_float(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, 100_000, dtype=np.uint32)
    special = [0, 1 << 31, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x80000001]
    values = np.concatenate([np.array(special, np.uint32), bits]).view("<f4")
    values = values[~np.isnan(values)]
    made = blob(float32s=values)
    made.net["oplists"].append(op("LayerNorm", "n", (), (0,), table("LayerNorm", epsilon=np.float32(1e-12))))
    to_compat(made, tmp_path / "m.json")
    assert first_difference(made.net, by_mnn(tmp_path / "m.json").net) is None
    assert first_difference(made.net, from_compat(tmp_path / "m.json").net) is None


@pytest.mark.parametrize("number", ["inf", "-inf"])
def test_infinities_alone(tmp_path: Path, number: str) -> None:
    made = of(op("LayerNorm", "n", (), (0,), table("LayerNorm", epsilon=np.float32(number))))
    to_compat(made, tmp_path / "m.json")
    assert first_difference(made.net, by_mnn(tmp_path / "m.json").net) is None
    assert first_difference(made.net, from_compat(tmp_path / "m.json").net) is None


def test_mnn_reads_all_kinds_of_values(tmp_path: Path) -> None:
    made = blob(
        int64s=np.array([2**63 - 1, -(2**63)], "<i8"), uint8s=np.arange(200, dtype="u1"), dims=ints(),
        int8s=np.array([-128, 127], "i1"), int32s=ints(-(2**31), 2**31 - 1), strings=["é𝄞\n\"", ""],
        external=np.array([2**40, 5], "<i8"),
    )  # fmt: skip
    ops = made.net["oplists"]
    codes, half = np.arange(-100, 100, dtype="i1"), np.array([65535], "<u2")
    quantized = table("IDSTQuan", buffer=codes, alphaFp16=half, weightSize=2**32 - 1, useInt32=True, scaleStorage=1)
    quantized.fields["index"] = np.array([2**32 - 1], "<u4")
    ops.append(op("Convolution", "c", (), (0,), table("Convolution2D", quanParameter=quantized)))
    inner = table("NamedAttrList", name="f", attr=[table("Attribute", key="q")])
    flags = table("ListValue", b=np.array([1, 0] * 40, "u1"))
    attr = [table("Attribute", key="k", f=np.float32(0.1), list=flags, func=inner)]
    ops.append(op("Extra", "e", (), (0,), table("Extra", info=np.array([1, -1], "i1"), attr=attr)))
    ops.append(table("Op"))
    to_compat(made, tmp_path / "m.json")
    assert first_difference(made.net, by_mnn(tmp_path / "m.json").net) is None
    assert first_difference(made.net, from_compat(tmp_path / "m.json").net) is None


REASONS = ("is NaN", "without a name", "crashes on a list", "is not UTF-8")


@given(st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_tables_come_back_or_are_refused_by_name(draw: dice.Random) -> None:
    made = random_document(draw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.json")
        try:
            to_compat(made, path)
        except ModelError as error:
            reason = str(error)
        else:
            reason = ""
            assert first_difference(made.net, from_compat(path).net) is None
        assert path.exists() == (not reason)
        assert not reason or any(word in reason for word in REASONS)


@pytest.mark.parametrize("options", [{}, {"fp16": True}, {"weightQuantBits": 8}])
def test_models_by_way_of_mnns_json(tmp_path: Path, options: dict[str, Any]) -> None:
    model = convert(tmp_path / "m.mnn", CNN, cnn_weights(), **options)
    to_compat(read(model), tmp_path / "m.json")
    assert first_difference(read(model).net, by_mnn(tmp_path / "m.json").net) is None
    write(from_compat(tmp_path / "m.json"), tmp_path / "n.mnn")
    feeds = {"x": random(1, 3, 8, 8)}
    expected = computed(model, feeds)["y"].tobytes()
    assert computed(tmp_path / "n.mnn", feeds)["y"].tobytes() == expected
    assert computed(tmp_path / "m.by-mnn.mnn", feeds)["y"].tobytes() == expected


@pytest.mark.parametrize("text", [CNN, LOOP])
def test_what_mnn_writes_is_read(tmp_path: Path, text: str) -> None:
    model = convert(tmp_path / "m.mnn", text, cnn_weights() if text is CNN else None)
    mnn_convert(tmp_path, "-f", "MNN", "--modelFile", str(model), "--JsonFile", str(tmp_path / "m.json"))
    found, original = from_compat(tmp_path / "m.json"), read(model)
    for (where, ours), (place, theirs) in zip(found.net.walk(), original.net.walk(), strict=True):
        assert (where, list(ours.fields)) == (place, list(theirs.fields))
        for name, value in ours.fields.items():
            if isinstance(value, np.ndarray | np.float32):
                np.testing.assert_allclose(value, theirs.fields[name], rtol=0, atol=5.1e-7)
            elif isinstance(value, int | str):
                assert value == theirs.fields[name]


def test_what_mnn_prints_of_numbers_and_names_that_json_does_not_have(tmp_path: Path) -> None:
    values = np.array([0xFF800000, 0x7F800000, 0x7FC00000, 0xFFC00000, 0x3F800000] * 40, np.uint32).view("<f4")
    made = blob(float32s=values, strings=["\udcff\udc80x"])
    made.net["oplists"].append(op("LayerNorm", "n", (), (0,), table("LayerNorm", epsilon=values[3], gamma=values[:5])))
    write(made, tmp_path / "m.mnn")
    mnn_convert(tmp_path, "-f", "MNN", "--modelFile", str(tmp_path / "m.mnn"), "--JsonFile", str(tmp_path / "m.json"))
    text = (tmp_path / "m.json").read_text()
    assert "-inf, inf, nan, -nan, 1.0" in text
    assert "\\xFF" in text
    assert first_difference(made.net, from_compat(tmp_path / "m.json").net) is None


def refused(doc: Document, path: Path, message: str) -> None:
    """Assert that a document has no form in MNN's JSON."""
    with pytest.raises(ModelError, match=message) as caught:
        to_compat(doc, path)
    assert "without --compat" in str(caught.value.hint)
    assert not path.exists()


def test_what_mnns_reader_has_no_word_for_is_refused(tmp_path: Path) -> None:
    path, nan = tmp_path / "m.json", np.float32("nan")
    refused(blob(float32s=np.array([0, nan], "<f4")), path, r"ops\[k\]\.main\.float32s\[1\]: is NaN")
    refused(of(op("LayerNorm", "n", (), (), table("LayerNorm", epsilon=nan))), path, r"ops\[n\]\.main\.epsilon: is NaN")
    refused(blob(dataType=99), path, r"ops\[k\]\.main\.dataType: MNN's JSON has no DataType without a name \(99\)")
    refused(of(table("Op", name="o", type=9999)), path, r"ops\[o\]\.type: MNN's JSON has no OpType without a name")
    refused(of(table("Op", main_type=250)), path, r"ops\[0\]\.main_type: MNN's JSON has no OpParameter without a name")
    refused(blob(strings=["\udcff"]), path, r"ops\[k\]\.main\.strings\[0\]: .* is not UTF-8")
    refused(of(op("ReLU", "\udcff", (), ())), path, "name: .* is not UTF-8")
    listed = table("Attribute", list=table("ListValue", type=ints(1, 3)))
    refused(of(op("Extra", "e", (), (), table("Extra", attr=[listed]))), path, "MNN crashes on a list of DataType")


def test_that_mnn_does_crash_on_it(tmp_path: Path) -> None:
    attr = '{"key": "k", "list": {"type": ["DT_INT32"]}}'
    for number, text in enumerate((f'"main_type": "Extra", "main": {{"attr": [{attr}]}}', '"type": 9999')):
        path = tmp_path / f"{number}.json"
        path.write_text(f'{{"oplists": [{{{text}}}], "tensorName": ["t"]}}')
        ending = mnn_convert(tmp_path, "-f", "JSON", "--modelFile", str(path), "--MNNModel", str(tmp_path / "n.mnn"))
        assert ending.signal == "SIGSEGV"


WRONG = {
    "ours": ('{"mnn": "3.6.1", "graphkit": 1, "net": {}}', "is graphkit's JSON form, not MNN's"),
    "a list": ("[]", "expected an object with fields of Net"),
    "unknown field": ('{"oplist": []}', "Net has no field 'oplist'; did you mean 'oplists'?"),
    "an object for floats": (
        '{"oplists": [{"name": "k", "main_type": "Blob", "main": {"float32s": {"base64": "", "dtype": "float32"}}}]}',
        r"ops\[k\]\.main\.float32s: expected a list of numbers, got an object",
    ),
    "words among floats": (
        '{"oplists": [{"name": "k", "main_type": "Blob", "main": {"float32s": [' + "inf, " * 400 + "na]}}]}",
        r"ops\[k\]\.main\.float32s: is no list of numbers",
    ),
    "too large": ('{"oplists": [{"main_type": "LayerNorm", "main": {"epsilon": 1e999}}]}', "inf does not fit"),
    "an empty place": (
        '{"oplists": [{"name": "k", "main_type": "Blob", "main": {"int32s": [' + "1," * 800 + ",1]}}]}",
        r"ops\[k\]\.main\.int32s: is no list of numbers",
    ),
    "version": ('{"extraInfo": {"version": 3}}', "extraInfo.version: expected text, got 3"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_mnns_json(tmp_path: Path, case: str) -> None:
    text, message = WRONG[case]
    (tmp_path / "m.json").write_text(text)
    with pytest.raises(ModelError, match=message) as caught:
        from_compat(tmp_path / "m.json")
    assert caught.value.file == str(tmp_path / "m.json")


def test_outside_weights_stay_beside_the_file(tmp_path: Path) -> None:
    made = blob(external=np.array([0, 4], "<i8"))
    made.weights = tmp_path / "old.weight"
    made.weights.write_bytes(b"1234")
    assert to_compat(made, tmp_path / "m.json").weights == tmp_path / "m.json.weight"
    write(from_compat(tmp_path / "m.json"), tmp_path / "n.mnn")
    assert (tmp_path / "n.mnn.weight").read_bytes() == b"1234"


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    write(small(), tmp_path / "m.json")
    doc = read(tmp_path / "m.json")
    with pytest.raises(OutputError, match="would overwrite an input"):
        to_compat(doc, tmp_path / "m.json")


def test_each_form_knows_the_other(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    with pytest.raises(ModelError, match="not MNN's") as caught:
        from_compat(tmp_path / "m.json")
    assert caught.value.hint == "read it without --compat"
    assert json.loads((tmp_path / "m.json").read_text())["graphkit"] == 1
