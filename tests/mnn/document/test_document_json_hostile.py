"""JSON that is no document: always a ModelError that names operator and field, never a crash or much memory."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphkit.errors import ModelError
from graphkit.mnn.document.json_form import from_json, to_json
from tests.documents import small

Change = Callable[[Any], Any]


def at(path: str, value: Any) -> Change:
    """Set what stands at a path such as `net.oplists.1.name`; a function gets the old value."""

    def change(raw: Any) -> Any:
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        place = raw
        for step in steps:
            place = place[step]
        place[last] = value(place.get(last)) if callable(value) else value
        return raw

    return change


def without(path: str) -> Change:
    """Take away what stands at a path."""

    def change(raw: Any) -> Any:
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        place = raw
        for step in steps:
            place = place[step]
        del place[last]
        return raw

    return change


def deep(field: str) -> Any:
    """Attributes in attributes, 200 deep."""
    found: Any = {"name": "end"}
    for _ in range(200):
        found = {"name": "f", "attr": [{"key": "k", field: found}]}
    return found


CONV, COMMON, WEIGHT = "net.oplists.1", "net.oplists.1.main.common", "net.oplists.1.main.weight"
EXTRA = {"main_type": "Extra", "name": "e", "main": {"attr": [{"func": deep("func")}]}}
HUGE = 10**400

STRUCTURE: dict[str, tuple[Change, str]] = {
    "a list": (lambda raw: [raw], "expected an object, got a list of 1"),
    "a number": (lambda raw: 5, "expected an object, got 5"),
    "no net": (without("net"), "it has no 'net'"),
    "no version": (without("mnn"), "it has no 'mnn'"),
    "another key": (at("nett", 1), "has an entry 'nett' that is not known; did you mean 'net'?"),
    "MNN's own": (lambda raw: raw["net"], "is a model in MNN's own JSON"),
    "newer form": (at("graphkit", 2), "form 2 is not known"),
    "form true": (at("graphkit", True), "form true is not known"),
    "newer MNN": (at("mnn", "99.0.0"), "no table of MNN '99.0.0'"),
    "MNN list": (at("mnn", []), "no table of MNN a list of 0"),
    "net a list": (at("net", []), "expected an object with fields of Net, got a list of 0"),
    "ops an object": (at("net.oplists", {}), "oplists: expected a list, got an object"),
    "ops a text": (at("net.oplists", "ops"), "oplists: expected a list, got 'ops'"),
    "op a list": (at("net.oplists.0", []), "ops[0]: expected an object with fields of Op, got a list of 0"),
    "op null": (at("net.oplists.0", None), "ops[0]: expected an object with fields of Op, got null"),
    "common a list": (at(COMMON, [1]), "ops[c].main.common: expected an object with fields of Convolution2DCommon"),
    "main a list": (at(f"{CONV}.main", [1]), "ops[c].main: expected an object with fields of Convolution2D"),
    "unknown field": (
        at(f"{COMMON}.strideXX", 1),
        "ops[c].main.common: Convolution2DCommon has no field 'strideXX'; did you mean 'strideX'?",
    ),
    "unknown field of the net": (at("net.layers", []), "net: Net has no field 'layers'"),
    "unknown enum": (at(f"{COMMON}.padMode", "SAMEE"), "ops[c].main.common.padMode: PadMode has no 'SAMEE'; did"),
    "unknown type": (at(f"{CONV}.type", "Convolutoin"), "ops[c].type: OpType has no 'Convolutoin'; did you mean"),
    "enum a list": (at(f"{CONV}.type", ["Convolution"]), "ops[c].type: expected a name of OpType, got a list of 1"),
    "enum true": (at(f"{CONV}.type", True), "ops[c].type: expected a name of OpType, got true"),
    "enum out of its byte": (at(f"{COMMON}.padMode", 300), "ops[c].main.common.padMode: 300 is outside the range"),
    "unknown table": (at(f"{CONV}.main_type", "Conv2D"), "ops[c].main_type: no operator has parameters 'Conv2D'"),
    "wrong union type": (at(f"{CONV}.main_type", "Pool"), "ops[c].main: Pool has no field 'common'"),
    "union none": (at(f"{CONV}.main_type", "NONE"), "ops[c].main: main_type 'NONE' has no table"),
    "union number": (at(f"{CONV}.main_type", 250), "ops[c].main: main_type 250 has no table"),
    "union a big number": (at(f"{CONV}.main_type", 256), "ops[c].main_type: 256 is outside the range"),
    "no union type": (without(f"{CONV}.main_type"), "ops[c]: has 'main' and no 'main_type'"),
    "name a number": (at(f"{CONV}.name", 7), "ops[1].name: expected text, got 7"),
    "half a pair": (at(f"{CONV}.name", "a\ud83d"), "name: U+D83D is no character"),
    "null": (at(f"{COMMON}.strideX", None), "ops[c].main.common.strideX: expected a whole number, got null"),
    "deep functions": (at("net.oplists.0", EXTRA), "tables are nested more than 64 deep"),
    "in a subgraph": (at("net.subgraphs.0.nodes.0.main.opType", "SINN"), "subgraphs[body].ops[b].main.opType: Unary"),
    "subgraph a text": (at("net.subgraphs.0", "body"), "subgraphs[0]: expected an object with fields of SubGraphProto"),
}
NUMBERS: dict[str, tuple[Change, str]] = {
    "bool for int": (at(f"{COMMON}.strideX", True), "ops[c].main.common.strideX: expected a whole number, got true"),
    "float for int": (at(f"{COMMON}.strideX", 2.0), "ops[c].main.common.strideX: expected a whole number, got 2.0"),
    "text for int": (at(f"{COMMON}.strideX", "2"), "ops[c].main.common.strideX: expected a whole number, got '2'"),
    "int for bool": (at(f"{COMMON}.relu", 1), "ops[c].main.common.relu: expected true or false, got 1"),
    "int32": (at(f"{COMMON}.strideX", 2**31), "ops[c].main.common.strideX: 2147483648 is outside the range of int"),
    "giant": (at(f"{COMMON}.strideX", HUGE), "strideX: a number of more than 30 digits is outside the range"),
    "in a list": (at("net.oplists.0.main.dims.2", 2**40), "ops[x].main.dims[2]: 1099511627776 is outside the range"),
    "bool in a list": (at("net.oplists.0.main.dims.2", True), "ops[x].main.dims[2]: expected a whole number, got true"),
    "float in a list": (at("net.oplists.0.main.dims.2", 1.5), "ops[x].main.dims[2]: expected a whole number, got 1.5"),
    "list in a list": (at("net.oplists.0.main.dims.2", [1]), "ops[x].main.dims[2]: expected a whole number, got a"),
    "list for int": (at(f"{COMMON}.strideX", [2]), "strideX: expected a whole number, got a list of 1"),
    "int for a list": (at("net.oplists.0.main.dims", 3), "ops[x].main.dims: expected a list of numbers, got 3"),
    "text for floats": (at(f"{CONV}.main.bias", "0.5"), "ops[c].main.bias: expected a list of numbers, got '0.5'"),
    "word among floats": (at(f"{CONV}.main.bias", [0.5, "half"]), "main.bias[1]: expected a number, got 'half'"),
    "bool among floats": (at(f"{CONV}.main.bias", [True]), "ops[c].main.bias[0]: expected a number, got true"),
    "too large a float": (at(f"{CONV}.main.bias", [1e39]), "ops[c].main.bias[0]: 1e+39 does not fit a 32-bit float"),
    "too small a float": (at(f"{CONV}.main.bias", [1e-60]), "ops[c].main.bias[0]: 1e-60 is too small"),
    "giant among floats": (at(f"{CONV}.main.bias", [HUGE]), "bias[0]: a number of more than 30 digits does not fit"),
    "NaN": (at(f"{CONV}.main.bias", [float("nan")]), "ops[c].main.bias[0]: nan does not fit a 32-bit float"),
    "Infinity": (at(f"{CONV}.main.bias", [float("inf")]), "ops[c].main.bias[0]: inf does not fit a 32-bit float"),
    "NaN for int": (at(f"{COMMON}.strideX", float("nan")), "strideX: expected a whole number, got nan"),
    "bad bits": (at(f"{CONV}.main.bias", ["0x7fc"]), "ops[c].main.bias[0]: expected a number, got '0x7fc'"),
    "long list of floats for ints": (
        at("net.oplists.0.main.dims", [1.25] * 600), "ops[x].main.dims[0]: expected a whole number, got 1.25"
    ),
    "long list out of range": (
        at("net.oplists.0.main.dims", [*range(600), 2**33]), "ops[x].main.dims[600]: 8589934592 is outside the range"
    ),
    "long list of giants": (at(f"{CONV}.main.bias", [0.5] * 600 + [1e300]), "main.bias[600]: 1e+300 does not fit"),
    "long list of digits": (at("net.oplists.0.main.dims", [10**1200]), "ops[x].main.dims"),
    "long list for a name": (at(f"{CONV}.name", [1] * 600), "ops[1].name: expected text, got a long list of numbers"),
}  # fmt: skip
TENSORS: dict[str, tuple[Change, str]] = {
    "another name": (at(f"{CONV}.inputIndexes", ["0:y"]), "ops[c].inputIndexes[0]: tensor 0 is named 'x', not 'y'"),
    "no such name": (at(f"{CONV}.inputIndexes", ["0:z"]), "ops[c].inputIndexes[0]: tensor 0 is named 'x', not 'z'"),
    "another index": (at(f"{CONV}.outputIndexes", ["2:c"]), "ops[c].outputIndexes[0]: tensor 2 is named 'y', not 'c'"),
    "no index": (at(f"{CONV}.inputIndexes", ["x"]), "expected a tensor as \"index:name\", got 'x'; 'x' is tensor 0"),
    "index too large": (at(f"{CONV}.inputIndexes", ["9:x"]), "ops[c].inputIndexes[0]: there is no tensor 9; the graph"),
    "renamed at one place": (at("net.tensorName.0", "data"), "ops[x].outputIndexes[0]: tensor 0 is named 'data', not"),
    "names gone": (without("net.tensorName"), "there is no tensor 2; the graph has 0"),
    "names a text": (at("net.tensorName", "x"), "tensorName: expected a list, got 'x'"),
    "name a number": (at("net.tensorName.1", 4), "tensorName[1]: expected text, got 4"),
    "subgraph's own": (
        at("net.subgraphs.0.nodes.0.inputIndexes", ["0:x"]),
        "subgraphs[body].ops[b].inputIndexes[0]: tensor 0 is named 'a', not 'x'",
    ),
    "subgraph's inputs": (
        at("net.subgraphs.0.inputs", ["1:a"]),
        "subgraphs[body].inputs[0]: tensor 1 is named 'b', not",
    ),
    "described": (at("net.extraTensorDescribe.0.index", "2:z"), "extraTensorDescribe[0].index: tensor 2 is named 'y'"),
}
ARRAYS: dict[str, tuple[Change, str]] = {
    "no such array": (at(f"{WEIGHT}.array", "w"), "ops[c].main.weight: 'm.safetensors' holds no array 'w'"),
    "array a number": (at(f"{WEIGHT}.array", 3), "ops[c].main.weight: array: expected the name of an array, got 3"),
    "1 GB claimed": (at(f"{WEIGHT}.length", 1 << 28), "ops[c].main.weight: expected 268435456 elements of float32, ar"),
    "length a text": (at(f"{WEIGHT}.length", "576"), "ops[c].main.weight: expected '576' elements of float32"),
    "length true": (at(f"{WEIGHT}.length", True), "ops[c].main.weight: expected true elements of float32"),
    "another dtype": (at(f"{WEIGHT}.dtype", "int8"), "ops[c].main.weight: has dtype 'int8', the field takes float32"),
    "another hash": (at(f"{WEIGHT}.sha256", "0" * 64), "ops[c].main.weight: array 'ops[c].main.weight' is not the one"),
    "hash a number": (at(f"{WEIGHT}.sha256", 0), "ops[c].main.weight: array 'ops[c].main.weight' is not the one that"),
    "an empty object": (at(WEIGHT, {}), "ops[c].main.weight: expected a list"),
    "another object": (at(WEIGHT, {"dtype": "float32", "hex": ""}), "ops[c].main.weight: expected a list"),
    "base64 cut": (at(WEIGHT, {"dtype": "float32", "base64": "AAA"}), "ops[c].main.weight: is no base64"),
    "base64 of 3 bytes": (at(WEIGHT, {"dtype": "float32", "base64": "AAAA"}), "3 bytes are no whole number of float32"),
    "base64 a number": (at(WEIGHT, {"dtype": "float32", "base64": 1}), "weight: base64: expected text, got 1"),
    "long base64 cut": (at(WEIGHT, {"dtype": "float32", "base64": "A" * 2001}), "ops[c].main.weight: is no base64"),
    "long base64 filled": (at(WEIGHT, {"dtype": "float32", "base64": "=" * 2000}), "ops[c].main.weight: is no base64"),
    "no sidecar": (without("sidecar"), "names array 'ops[c].main.weight', but the file names no sidecar"),
    "sidecar a text": (at("sidecar", "m.safetensors"), "sidecar: expected an object with file, got 'm.safetensors'"),
    "sidecar a number": (at("sidecar.file", 1), "sidecar.file: expected the name of a file, got 1"),
    "sidecar missing": (at("sidecar.file", "gone.st"), "its arrays are in 'gone.st', which is not there"),
    "sidecar above": (at("sidecar.file", "../m.safetensors"), "'../m.safetensors' is not in the folder"),
    "sidecar elsewhere": (at("sidecar.file", "/etc/passwd"), "'/etc/passwd' is not in the folder of the JSON file"),
    "sidecar on Windows": (at("sidecar.file", "C:\\x.st"), "is not in the folder of the JSON file"),
    "sidecar the folder": (at("sidecar.file", "."), "'.' is not in the folder of the JSON file"),
    "sidecar NUL": (at("sidecar.file", "a\0b"), "is not in the folder of the JSON file"),
    "sidecar too long": (at("sidecar.file", "a" * 5000), f"'{'a' * 57}…' cannot be read"),
    "sidecar itself": (at("sidecar.file", "m.json"), "'m.json' is no safetensors file, or it is cut short"),
    "weights missing": (at("weights", {"file": "w", "bytes": 1}), "weights: 'w' is not there"),
    "weights cut": (at("weights", {"file": "m.safetensors", "bytes": 1}), "bytes, expected 1"),
    "weights above": (at("weights", {"file": "../w", "bytes": 1}), "weights.file: '../w' is not in the folder"),
}
CASES = {**STRUCTURE, **NUMBERS, **{f"tensor {k}": v for k, v in TENSORS.items()}, **ARRAYS}
GOOD = '{"mnn": "3.6.1", "graphkit": 1, "net": {"oplists": [{"name": "n", "type": "ReLU"}]}}'
TEXTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "no JSON": (b"MNN", "line 1 column 1: expecting value"),
    "binary": (bytes(range(256)) * 4, "is not UTF-8 text"),
    "zeros": (bytes(1000), "line 1 column 1"),
    "cut short": (GOOD[:-3].encode(), "line 1 column 82"),
    "cut in an operator": (b'{"net": {"oplists": [\n{"name":"conv1","type":"ReLU",', "line 2 column 31: expecting"),
    "Latin-1": (GOOD.replace('"n"', '"\xe9"').encode("latin-1"), "line 1: is not UTF-8 text"),
    "UTF-16": (GOOD.encode("utf-16"), "is not UTF-8 text"),
    "nested lists": (b"[" * 200_000, "is nested too deep"),
    "nested objects": (b'{"net":' * 200_000, "is nested too deep"),
    "a key twice": (GOOD.replace('"type"', '"name"').encode(), "ops[ReLU]: holds 'name' twice"),
    "a key twice above": (GOOD.replace('"mnn"', '"graphkit"').encode(), "holds 'graphkit' twice"),
    "thousands of digits": (GOOD.replace('"n"', "9" * 5000).encode(), "holds a number of thousands of digits"),
    "comma too many": (GOOD.replace("}]", "},]").encode(), "line 1 column"),
    "two documents": ((GOOD + GOOD).encode(), "extra data"),
    "comment": (b"// mine\n" + GOOD.encode(), "line 1 column 1: expecting value"),
    "quotes that never end": (b'{"net": "' + b'\\"' * 400_000, "unterminated string"),
    "many values": (b"[" + b"{}," * 4_100_000 + b"{}]", "holds more than 4,000,000 values"),
    "much text": (b'["' + b"a" * (129 << 20) + b'"]', "holds more than 128 MB besides its arrays"),
}  # fmt: skip


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """The JSON form of a small document."""
    return to_json(small(), tmp_path / "m.json").json


def refused(path: Path, words: str) -> None:
    """Assert that a file is refused, and why."""
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        from_json(path)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith((str(path), path.parent.name, "m.safetensors"))


@pytest.mark.parametrize("case", CASES)
def test_wrong_values(good: Path, case: str) -> None:
    change, words = CASES[case]
    good.write_text(json.dumps(change(json.loads(good.read_text()))))
    refused(good, words)


@pytest.mark.parametrize("case", TEXTS)
def test_wrong_text(tmp_path: Path, case: str) -> None:
    data, words = TEXTS[case]
    (tmp_path / "m.json").write_bytes(data)
    refused(tmp_path / "m.json", words)


def test_a_syntax_error_names_the_operator(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text('{"net": {"oplists": [\n{"name":"a"},\n{"name":"conv1","type":Conv}')
    with pytest.raises(ModelError) as caught:
        from_json(tmp_path / "m.json")
    assert caught.value.node == "conv1"
    assert "line 3 column 24: expecting value" in str(caught.value)


def test_what_to_do_about_a_name_that_was_changed_alone(good: Path) -> None:
    good.write_text(good.read_text().replace('"0:x"', '"0:data"'))
    with pytest.raises(ModelError) as caught:
        from_json(good)
    assert "graphkit mnn rename" in str(caught.value.hint)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        from_json(tmp_path / "no.json")
    with pytest.raises(ModelError, match="cannot be read"):
        from_json(tmp_path)


@pytest.mark.parametrize("size", [0, 3, 8, 20, 100, 200, 1000, 2000])
def test_a_sidecar_that_was_cut(good: Path, size: int) -> None:
    sidecar = good.with_name("m.safetensors")
    sidecar.write_bytes(sidecar.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"'m\.safetensors' (cannot be read|is no safetensors|is cut short)"):
        from_json(good)


def test_a_sidecar_whose_bytes_changed(good: Path) -> None:
    sidecar = good.with_name("m.safetensors")
    data = bytearray(sidecar.read_bytes())
    data[-100] ^= 1
    sidecar.write_bytes(data)
    refused(good, "ops[c].main.weight: array 'ops[c].main.weight' is not the one that was written")


HEADERS: dict[str, tuple[Any, str]] = {
    "a list": ([], "has no header of names"),
    "an entry a number": ({"w": 1}, "describes its array 'w' wrongly"),
    "no dtype": ({"w": {"shape": [1], "data_offsets": [0, 4]}}, "describes its array 'w' wrongly"),
    "another dtype": ({"w": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, "describes its array 'w' wrongly"),
    "shape below 0": ({"w": {"dtype": "I8", "shape": [-4, -1], "data_offsets": [0, 4]}}, "array 'w' wrongly"),
    "shape of 2^80": ({"w": {"dtype": "I8", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}}, "array 'w' wrongly"),
    "start below 0": ({"w": {"dtype": "I8", "shape": [8], "data_offsets": [-4, 4]}}, "describes its array 'w' wrongly"),
    "end before start": ({"w": {"dtype": "I8", "shape": [0], "data_offsets": [4, 0]}}, "describes its array 'w' wrong"),
    "another size": ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "describes its array 'w' wrongly"),
    "beyond the end": ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, "ends at byte 8 of 4"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_sidecar_with_a_wrong_header(good: Path, case: str) -> None:
    header, words = HEADERS[case]
    text = json.dumps(header).encode()
    good.with_name("m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    refused(good, words)


def test_a_sidecar_whose_header_is_no_json(good: Path) -> None:
    good.with_name("m.safetensors").write_bytes(struct.pack("<Q", 4) + b"\xff{}}")
    with pytest.raises(ModelError, match=r"m\.safetensors"):
        from_json(good)


def test_a_link_out_of_the_folder_is_refused(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "m.json").write_bytes(good.read_bytes())
    (folder / "m.safetensors").symlink_to(tmp_path / "m.safetensors")
    refused(folder / "m.json", "sidecar.file: 'm.safetensors' is not in the folder of the JSON file")


_WATCH = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
from graphkit.errors import ModelError
from graphkit.mnn.document.json_form import from_json
for path in sorted(Path(sys.argv[1]).glob("*.json")):
    try:
        from_json(path)
        sys.exit(f"{path.name} was read")
    except ModelError:
        pass
"""


def test_all_of_it_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    good = to_json(small(), tmp_path / "good" / "m.json").json
    text = good.read_text()
    good.with_name("m.safetensors").rename(tmp_path / "m.safetensors")
    for number, (change, _) in enumerate(CASES.values()):
        (tmp_path / f"case-{number}.json").write_text(json.dumps(change(json.loads(text))))
    for number, (data, _) in enumerate(TEXTS.values()):
        (tmp_path / f"text-{number}.json").write_bytes(data)
    done = subprocess.run([sys.executable, "-c", _WATCH, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
