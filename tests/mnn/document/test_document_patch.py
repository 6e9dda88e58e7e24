"""JSON patches: the six operations, what is refused, that all or nothing is applied, and memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import computed, convert_file, op_of, random

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.mnn.document import Document, dump, parse, read, write
from graphkit.mnn.document.json_form import to_json
from graphkit.mnn.document.patch import apply_patch, read_patch
from graphkit.mnn.document.tree import first_difference

CONV = "/net/oplists/2"
COMMON = f"{CONV}/main/common"
WEIGHT = f"{CONV}/main/weight"


def test_all_six_operations(cnn: Document, tmp_path: Path) -> None:
    image = {"x": random(1, 3, 16, 16)}
    assert cnn.source is not None
    edits = apply_patch(
        cnn,
        [
            {"op": "test", "path": "/net/oplists/0/name", "value": "x"},
            {"op": "replace", "path": "/net/oplists/0/main/dims", "value": [1, 3, 16, 16]},
            {"op": "add", "path": "/net/outputName/-", "value": "m"},
            {"op": "add", "path": "/net/outputName/0", "value": "t"},
            {"op": "copy", "from": "/net/outputName/1", "path": "/net/bizCode"},
            {"op": "move", "from": "/net/outputName/1", "path": "/net/outputName/2"},
            {"op": "remove", "path": "/net/mnn_uuid"},
        ],
    )
    assert [edit.action for edit in edits] == ["replace", "add", "add", "copy", "move", "remove"]
    assert edits[3].detail == "copy /net/outputName/1 → /net/bizCode"
    assert cnn.net["outputName"] == ["t", "m", "y"]
    assert cnn.net["bizCode"] == "y"
    assert "mnn_uuid" not in cnn.net
    write(cnn, tmp_path / "patched.mnn")
    found = computed(tmp_path / "patched.mnn", image)
    assert {name: value.shape for name, value in found.items()} == {
        "t": (1, 4, 16, 16),
        "m": (1, 4, 16, 16),
        "y": (1, 4, 8, 8),
    }


def test_an_empty_patch_changes_nothing(cnn: Document, cnn_file: Path) -> None:
    assert apply_patch(cnn, []) == []
    assert first_difference(cnn.net, read(cnn_file).net) is None


def test_pointers_are_those_of_the_json_file(cnn: Document, tmp_path: Path) -> None:
    """A patch that turns one JSON file into another does the same to the model."""
    import jsonpatch

    to_json(cnn, tmp_path / "before.json")
    edited = parse(dump(cnn))
    op_of(edited, "c")["main"]["common"].fields["strideX"] = 2
    op_of(edited, "two")["main"].fields["float32s"] = np.array([np.nan], "<f4")
    edited.net["oplists"].pop()
    to_json(edited, tmp_path / "after.json")
    sources = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("before", "after")]
    for source in sources:
        del source["sidecar"]
    apply_patch(cnn, jsonpatch.make_patch(*sources).patch)
    assert first_difference(cnn.net, edited.net) is None


def test_escapes_in_pointers(cnn: Document) -> None:
    """No field of MNN's has such a name, so that only the message can show how a pointer was read."""
    with pytest.raises(ModelError, match=r"Net has no field 'a/b~c'"):
        apply_patch(cnn, [{"op": "add", "path": "/net/a~1b~0c", "value": 1}])


def test_long_arrays_are_references(cnn: Document) -> None:
    weight = op_of(cnn, "c")["main"]["weight"]
    apply_patch(
        cnn,
        [
            {"op": "test", "path": f"{WEIGHT}/length", "value": 108},
            {"op": "move", "from": WEIGHT, "path": f"{CONV}/main/bias"},
            {"op": "copy", "from": f"{CONV}/main/bias", "path": WEIGHT},
            {"op": "replace", "path": f"{CONV}/main/bias", "value": [0, 1, 2, 3.5]},
        ],
    )
    assert op_of(cnn, "c")["main"]["weight"] is weight
    assert op_of(cnn, "c")["main"]["bias"].tolist() == [0, 1, 2, 3.5]


def test_long_arrays_may_be_given(cnn: Document) -> None:
    apply_patch(cnn, [{"op": "replace", "path": WEIGHT, "value": list(range(108))}])
    np.testing.assert_array_equal(op_of(cnn, "c")["main"]["weight"], np.arange(108, dtype=np.float32))
    value = {"base64": "AACAPwAAAEA=", "dtype": "float32"}
    apply_patch(cnn, [{"op": "replace", "path": f"{CONV}/main/bias", "value": value}])
    assert op_of(cnn, "c")["main"]["bias"].tolist() == [1, 2]


def test_operators_may_be_added(cnn: Document, tmp_path: Path) -> None:
    negative = {
        "name": "neg", "type": "UnaryOp", "main_type": "UnaryOp", "inputIndexes": ["8:y"], "outputIndexes": [9],
        "main": {"opType": "NEG", "T": "DT_FLOAT"},
    }  # fmt: skip
    apply_patch(
        cnn,
        [
            {"op": "add", "path": "/net/tensorName/-", "value": "negative"},
            {"op": "add", "path": "/net/oplists/-", "value": negative},
            {"op": "add", "path": "/net/outputName/-", "value": "negative"},
        ],
    )
    write(cnn, tmp_path / "patched.mnn")
    found = computed(tmp_path / "patched.mnn", {"x": random(1, 3, 8, 8)})
    np.testing.assert_array_equal(found["negative"], -found["y"])


COPIES = [{"op": "copy", "from": "/net/oplists", "path": f"/net/oplists/0/x{number}"} for number in range(40)]
REFERENCE = {"array": "ops[c].main.weight", "dtype": "float32"}


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        ({}, "a JSON patch is a list of operations"),
        ([1], "operation 1 is no object"),
        ([{"path": "/net"}], "operation 1: no operation is named null"),
        ([{"op": "ad", "path": "/net"}], "no operation is named 'ad'; did you mean 'add'?"),
        ([{"op": ["add"], "path": "/net"}], "no operation is named a list of 1"),
        ([{"op": "add", "path": "/net/bizCode"}], "operation 1 (add) has no 'value'"),
        ([{"op": "move", "path": "/net/bizCode"}], "operation 1 (move) has no 'from'"),
        ([{"op": "remove"}], "operation 1 (remove) has no 'path'"),
        ([{"op": "remove", "path": "net"}], "'path' is no JSON pointer: 'net'"),
        ([{"op": "remove", "path": 3}], "'path' is no JSON pointer: 3"),
        ([{"op": "copy", "from": "x", "path": "/net/bizCode"}], "'from' is no JSON pointer: 'x'"),
        ([{"op": "remove", "path": "/mnn"}], "only what is below /net can be changed"),
        ([{"op": "remove", "path": "/network"}], "only what is below /net can be changed"),
        ([{"op": "move", "from": "/mnn", "path": "/net/bizCode"}], "only what is below /net can be changed"),
        ([{"op": "remove", "path": "/net"}], "after the patch there is no net"),
        ([{"op": "replace", "path": "/net", "value": 3}], "expected an object with fields of Net, got 3"),
        ([{"op": "remove", "path": "/net/oplists/9"}], "operation 1 (remove /net/oplists/9) fails"),
        ([{"op": "remove", "path": "/net/oplists/-"}], "fails"),
        ([{"op": "remove", "path": "/net/oplists/01"}], "fails"),
        ([{"op": "replace", "path": "/net/nothing", "value": 1}], "operation 1 (replace /net/nothing) fails"),
        ([{"op": "add", "path": "/net/oplists/99", "value": {}}], "fails"),
        ([{"op": "move", "from": "/net/oplists", "path": "/net/oplists/0/x"}], "fails"),
        ([{"op": "test", "path": f"{CONV}/name", "value": "d"}], 'fails: there is "c", not "d"'),
        ([{"op": "test", "path": f"{COMMON}/strideX", "value": True}], "fails: there is 1, not true"),
        ([{"op": "test", "path": "/net/nothing", "value": 1}], "fails"),
        ([{"op": "add", "path": "/net/nothing", "value": 1}], "Net has no field 'nothing'"),
        ([{"op": "replace", "path": f"{CONV}/type", "value": "Convolutio"}], "did you mean 'Convolution'?"),
        ([{"op": "replace", "path": f"{COMMON}/strideX", "value": 2**40}], "outside the range of int"),
        ([{"op": "replace", "path": f"{CONV}/main/bias/0", "value": float("nan")}], "does not fit a 32-bit float"),
        ([{"op": "replace", "path": "/net/tensorName/2", "value": "d"}], "tensor 2 is named 'd', not 'c'"),
        ([{"op": "replace", "path": f"{WEIGHT}/array", "value": "none"}], "no array is named 'none'"),
        ([{"op": "replace", "path": f"{WEIGHT}/sha256", "value": "00"}], "describes array"),
        ([{"op": "replace", "path": f"{WEIGHT}/length", "value": 3}], "describes array"),
        ([{"op": "replace", "path": f"{CONV}/inputIndexes", "value": REFERENCE}], "has dtype 'float32'"),
        (COPIES, "the copies are larger than any model"),
    ],
)
def test_what_is_refused_changes_nothing(cnn: Document, operations: Any, message: str) -> None:
    before = parse(dump(cnn))
    if isinstance(operations, list) and operations is not COPIES:
        operations = [*operations]
        if operations and isinstance(operations[0], dict) and "operation 1" not in message:
            operations.insert(0, {"op": "replace", "path": "/net/bizCode", "value": "changed"})
    with pytest.raises(GraphkitError) as caught:
        apply_patch(cnn, operations)
    assert caught.value.exit_code == 2
    assert message in str(caught.value)
    assert first_difference(before.net, cnn.net) is None


def test_fields_that_nobody_knows_are_not_lost(cnn: Document) -> None:
    cnn.net["oplists"][2].unknown = (40,)
    with pytest.raises(ModelError, match="does not know") as caught:
        apply_patch(cnn, [])
    assert "mnn set" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[", "is no JSON"),
        (b"\xff\xfe[]", "is no JSON: it is not UTF-8"),
        (b"[" * 100_000, "is no JSON"),
        (b'[{"op": "nothing"}]', "no operation is named 'nothing'"),
        (b'[{"op": "remove", "path": "/net/x", "n": ' + b"9" * 5000 + b"}]", "is no JSON"),
    ],
)
def test_files_that_are_no_patch(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=message) as caught:
        read_patch(path)
    assert caught.value.file == str(path)


def test_a_patch_file(tmp_path: Path) -> None:
    operations = [{"op": "remove", "path": "/net/bizCode"}]
    (tmp_path / "p.json").write_text("\ufeff" + json.dumps(operations), encoding="utf-8")
    assert read_patch(tmp_path / "p.json") == operations
    with pytest.raises(UsageError, match="No such file"):
        read_patch(tmp_path / "q.json")


def test_weights_are_not_copied(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    """A model of 6.7 MB is patched in memory for its text alone, and equals the one that was set by path."""
    doc = read(convert_file(model_path("orientation"), tmp_path / "orientation.mnn"))
    expected = parse(dump(doc))
    expected.net["oplists"][0]["main"].fields["dims"] = np.array([1, 3, 256, 256], "<i4")
    tracemalloc.start()
    apply_patch(doc, [{"op": "replace", "path": "/net/oplists/0/main/dims", "value": [1, 3, 256, 256]}])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_500_000
    assert first_difference(doc.net, expected.net) is None
