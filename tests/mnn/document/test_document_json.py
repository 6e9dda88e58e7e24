"""The JSON form: what it looks like, that nothing is lost, and that its files are where they should be."""

from __future__ import annotations

import difflib
import hashlib
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphkit.errors import ModelError, OutputError
from graphkit.mnn.document import Document, dump, parse, read, write
from graphkit.mnn.document.json_form import from_json, to_json
from graphkit.mnn.document.tree import first_difference
from tests.documents import SCHEMA, ints, op, random_document, small, table


def back(doc: Document, folder: Path, *, inline: bool = False) -> Document:
    """A document by way of its JSON form."""
    to_json(doc, folder / "m.json", inline=inline)
    return from_json(folder / "m.json")


def lines(path: Path) -> list[str]:
    """The lines of a text file."""
    return path.read_text(encoding="utf-8").split("\n")


def opened(path: Path | None) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a sidecar by the safetensors package."""
    assert path is not None
    found: dict[str, np.ndarray[Any, Any]] = pytest.importorskip("safetensors.numpy").load_file(path)
    return found


def changed(before: Path, after: Path) -> list[str]:
    """What a person sees who compares two files: removed and added lines."""
    seen = difflib.unified_diff(lines(before), lines(after), lineterm="", n=0)
    return [line for line in seen if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize("inline", [False, True])
def test_a_document_comes_back_as_it_was(tmp_path: Path, inline: bool) -> None:
    made = small()
    found = back(made, tmp_path, inline=inline)
    assert first_difference(made.net, found.net) is None
    assert (found.version, found.schema, found.source) == ("3.6.1", SCHEMA, tmp_path / "m.json")
    assert dump(found) == dump(parse(dump(made)))


@given(st.randoms(use_true_random=False), st.booleans())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_tables_come_back_as_they_were(draw: random.Random, inline: bool) -> None:
    made = random_document(draw)
    with tempfile.TemporaryDirectory() as folder:
        found = back(made, Path(folder), inline=inline)
        assert first_difference(made.net, found.net) is None
        assert dump(found) == dump(parse(dump(made)))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=80), st.booleans())
def test_every_bit_of_a_float_survives(bits: list[int], inline: bool) -> None:
    values = np.array(bits, "<u4").view("<f4")
    norm = table("LayerNorm", epsilon=values[0], gamma=values)
    made = Document(table("Net", oplists=[op("LayerNorm", "n", (), (), norm)]), SCHEMA, "")
    with tempfile.TemporaryDirectory() as folder:
        assert first_difference(made.net, back(made, Path(folder), inline=inline).net) is None


def test_what_a_person_reads(tmp_path: Path) -> None:
    made = small()
    to_json(made, tmp_path / "m.json")
    conv = made.net["oplists"][1]["main"]
    sha256 = hashlib.sha256(conv["weight"].tobytes()).hexdigest()
    text = lines(tmp_path / "m.json")
    assert text[:3] == ['{"mnn": "3.6.1",', '"graphkit": 1,', '"sidecar": {"file":"m.safetensors"},']
    assert text[3:6] == ['"net": {', '"extraTensorDescribe": [', '{"name":"y","index":"2:y",'
                         '"quantInfo":{"scale":0.1,"zero":"nan"}}']  # fmt: skip
    assert text[9] == (
        '{"name":"x","type":"Input","main_type":"Input","inputIndexes":[],"outputIndexes":["0:x"],'
        '"main":{"dims":[1,1,8,8],"dtype":"DT_FLOAT","dformat":"NCHW"}},'
    )
    assert text[10].startswith(
        '{"name":"c","type":"Convolution","main_type":"Convolution2D","inputIndexes":["0:x"],"outputIndexes":["1:c"],'
        '"main":{"common":{"kernelX":3,"kernelY":3,"padMode":"SAME","outputCount":64,"relu":true},'
        '"weight":{"array":"ops[c].main.weight","dtype":"float32","length":576,"sha256":"' + sha256 + '"},"bias":[0.0'
    )
    assert text[text.index('"nodes": [') + 1].startswith(
        '{"name":"b","type":"UnaryOp","main_type":"UnaryOp","inputIndexes":["0:a"],'
    )
    assert json.loads("\n".join(text))["net"]["tensorName"] == ["x", "c", "y"]


def test_the_same_document_is_the_same_files_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    one, two = to_json(small(), tmp_path / "m.json"), to_json(small(), tmp_path / "elsewhere" / "m.json")
    for (first, size), (second, same) in zip(one.written(), two.written(), strict=True):
        assert first.read_bytes() == second.read_bytes()
        assert size == same == first.stat().st_size


def test_the_sidecar_is_a_safetensors_file(tmp_path: Path) -> None:
    made = small()
    blob = table("Blob", int64s=np.arange(100, dtype="<i8"), int8s=np.arange(65, dtype="i1"))
    made.net["oplists"].append(op("Const", "k", (), (1,), blob))
    found = to_json(made, tmp_path / "m.json")
    arrays = opened(found.sidecar)
    assert set(arrays) == {
        "ops[c].main.weight", "ops[k].main.int64s", "ops[k].main.int8s"
    }  # fmt: skip
    assert arrays["ops[k].main.int64s"].tolist() == list(range(100))
    assert arrays["ops[c].main.weight"].tobytes() == made.net["oplists"][1]["main"]["weight"].tobytes()


def test_a_document_of_short_arrays_needs_no_sidecar(tmp_path: Path) -> None:
    net = table("Net", oplists=[op("Const", "k", (), (0,), table("Blob", int32s=ints(*range(64))))])
    assert [path.name for path, _ in to_json(Document(net, SCHEMA, ""), tmp_path / "m.json").written()] == ["m.json"]
    assert list(tmp_path.iterdir()) == [tmp_path / "m.json"]


def test_one_changed_operator_is_one_changed_line(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "a.json")
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text().replace("a.safetensors", "b.safetensors"))
    made = small()
    made.net["oplists"][1]["main"].fields["weight"] = np.ones(576, "<f4")
    to_json(made, tmp_path / "b.json")
    seen = changed(tmp_path / "a.json", tmp_path / "b.json")
    assert [line[:11] for line in seen] == ['-{"name":"c', '+{"name":"c']


def test_an_operator_more_is_one_line_more(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "a.json")
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text().replace("a.safetensors", "b.safetensors"))
    made = small()
    made.net["oplists"].insert(1, op("ReLU", "new", (0,), (0,), table("Relu", slope=np.float32(0))))
    to_json(made, tmp_path / "b.json")
    assert [line[:13] for line in changed(tmp_path / "a.json", tmp_path / "b.json")] == ['+{"name":"new']


def test_operators_of_one_name_and_of_none(tmp_path: Path) -> None:
    long = np.arange(65, dtype="<i4")
    blobs = [(name, table("Blob", int32s=long + k)) for k, name in enumerate(("k", "k", "", "2", "a]"))]
    ops = [op("Const", name, (), (0,), blob) for name, blob in blobs]
    made = Document(table("Net", oplists=ops), SCHEMA, "")
    found = to_json(made, tmp_path / "m.json")
    names = ("ops[k]", "ops[k]", "ops[2]", 'ops["2"]', 'ops["a]"]')
    assert {name: int(array[0]) for name, array in opened(found.sidecar).items()} == {
        f"{name}.main.int32s" + ("#2" if k == 1 else ""): k for k, name in enumerate(names)
    }
    assert first_difference(made.net, from_json(tmp_path / "m.json").net) is None


@pytest.mark.parametrize(
    "name", ["\u2028", "\x85", "\x7f", "\u202e", "\x00\n\r\t", "\udcff\udce9", "é\udc80𝄞", "\ufeff"]
)
def test_names_that_hide_stand_escaped_on_one_line(tmp_path: Path, name: str) -> None:
    made = Document(table("Net", oplists=[op("Input", name, (), (0,))], tensorName=[name]), SCHEMA, "")
    to_json(made, tmp_path / "m.json")
    text = (tmp_path / "m.json").read_bytes().decode("utf-8")
    assert len(text.splitlines()) == text.count("\n")
    assert not set(name) & set(text) - set("\né𝄞")
    assert first_difference(made.net, from_json(tmp_path / "m.json").net) is None


def test_bytes_that_are_a_character_become_it(tmp_path: Path) -> None:
    to_json(Document(table("Net", bizCode="NAME"), SCHEMA, ""), tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text().replace("NAME", "\\udcc3\\udca9")
    (tmp_path / "m.json").write_text(text)
    assert from_json(tmp_path / "m.json").net["bizCode"] == "é"


def test_an_index_alone_will_do(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text().replace('["0:x"]', "[0]").replace('"1:c"', "1")
    (tmp_path / "m.json").write_text(text)
    assert first_difference(small().net, from_json(tmp_path / "m.json").net) is None


def test_indexes_beyond_the_tensors_stay_numbers(tmp_path: Path) -> None:
    made = Document(table("Net", oplists=[op("ReLU", "r", (7, -1), (0,))], tensorName=["t"]), SCHEMA, "")
    assert first_difference(made.net, back(made, tmp_path).net) is None
    assert '"inputIndexes":[7,-1],"outputIndexes":["0:t"]' in (tmp_path / "m.json").read_text()


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    (tmp_path / "m.json").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "m.json").read_bytes())
    assert first_difference(small().net, from_json(tmp_path / "m.json").net) is None


def test_outside_weights_come_along(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    made = small()
    made.net["oplists"][1]["main"].fields["external"] = np.array([0, 256], "<i8")
    weights = tmp_path / "a" / "m.mnn.weight"
    weights.write_bytes(bytes(range(256)) * 9000)
    write(made, tmp_path / "b.mnn")
    (tmp_path / "b.mnn").rename(tmp_path / "a" / "m.mnn")
    made = read(tmp_path / "a" / "m.mnn")
    assert made.weights == weights
    found = to_json(made, tmp_path / "a" / "m.json")
    assert found.weights == tmp_path / "a" / "m.weight"
    doc = from_json(tmp_path / "a" / "m.json")
    write(doc, tmp_path / "n.mnn")
    assert (tmp_path / "n.mnn.weight").read_bytes() == weights.read_bytes()
    assert to_json(made, tmp_path / "i.json", inline=True).weights == tmp_path / "i.weight"


def test_no_input_is_overwritten(tmp_path: Path) -> None:
    write(small(), tmp_path / "m.json")
    with pytest.raises(OutputError, match="would overwrite an input"):
        to_json(read(tmp_path / "m.json"), tmp_path / "m.json")
    write(small(), tmp_path / "m.safetensors")
    with pytest.raises(OutputError, match="would overwrite an input"):
        to_json(read(tmp_path / "m.safetensors"), tmp_path / "m.json")
    assert first_difference(read(tmp_path / "m.safetensors").net, small().net) is None


def test_a_failure_leaves_the_files_that_were_there(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    made = small()
    made.weights = tmp_path / "gone"
    with pytest.raises(ModelError, match="cannot be copied"):
        to_json(made, tmp_path / "m.json")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_fields_of_a_newer_mnn_are_not_lost_in_silence(tmp_path: Path) -> None:
    made = small()
    made.net["oplists"][0].unknown = (30,)
    with pytest.raises(ModelError, match=r"does not have: oplists\[0\] \(Op\): field 30") as caught:
        to_json(made, tmp_path / "m.json")
    assert "--drop-unknown" in str(caught.value.hint)
    to_json(made, tmp_path / "m.json", drop_unknown=True)
    assert first_difference(small().net, from_json(tmp_path / "m.json").net) is None


def test_a_sidecar_that_changes_under_an_open_document_is_noticed(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    doc = from_json(tmp_path / "m.json")
    data = bytearray((tmp_path / "m.safetensors").read_bytes())
    data[-1] ^= 1
    with (tmp_path / "m.safetensors").open("r+b") as file:
        file.write(data)
    with pytest.raises(ModelError, match="was changed while it was open"):
        write(doc, tmp_path / "n.mnn")


def test_one_array_may_stand_in_two_places(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    text = lines(tmp_path / "m.json")
    copy = text[10].replace('"name":"c"', '"name":"d"')
    (tmp_path / "m.json").write_text("\n".join([*text[:11], copy, *text[11:]]))
    ops: Any = from_json(tmp_path / "m.json").net["oplists"]
    assert [item["name"] for item in ops] == ["x", "c", "d", "y"]
    assert first_difference(ops[1]["main"], ops[2]["main"]) is None


def test_an_array_without_its_hash_is_taken(tmp_path: Path) -> None:
    to_json(small(), tmp_path / "m.json")
    text = (tmp_path / "m.json").read_text()
    start = text.index(',"sha256"')
    (tmp_path / "m.json").write_text(text[:start] + text[text.index("}", start) :])
    data = bytearray((tmp_path / "m.safetensors").read_bytes())
    data[-4:] = np.float32(7).tobytes()
    (tmp_path / "m.safetensors").write_bytes(data)
    assert from_json(tmp_path / "m.json").net["oplists"][1]["main"]["weight"][-1] == 7
