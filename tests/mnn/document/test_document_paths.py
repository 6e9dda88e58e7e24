"""Values of a document by path: what each path means, what is refused and how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import LOOP, computed, convert, op_of, random

from graphkit.errors import UsageError
from graphkit.mnn.document import Document, dump, parse, read, write
from graphkit.mnn.document._path_text import parse_path, quoted, split_assignment
from graphkit.mnn.document.paths import get, get_plain, set_text, set_value
from graphkit.mnn.document.tree import Table, first_difference


@pytest.fixture(scope="module")
def loop_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(tmp_path_factory.mktemp("loop") / "loop.mnn", LOOP)


@pytest.fixture
def loop(loop_file: Path) -> Document:
    return read(loop_file)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("inputs[x].dims", [1, 3, 8, 8]),
        ("inputs[0].dims[1]", 3),
        ("inputs[-1].dtype", "DT_FLOAT"),
        ("inputs", {"x": {"dims": [1, 3, 8, 8], "dtype": "DT_FLOAT", "dformat": "NCHW"}}),
        ("inputs[x]", {"dims": [1, 3, 8, 8], "dtype": "DT_FLOAT", "dformat": "NCHW"}),
        ("outputs", ["y"]),
        ("outputs[0]", "y"),
        ("tensors[c]", "c"),
        ("tensorName[2]", "c"),
        ("ops[c].type", "Convolution"),
        ("oplists[2].name", "c"),
        ("ops[c].main_type", "Convolution2D"),
        ("ops[c].main.common.padX", 1),
        ("ops[c].main.common.relu", False),
        ("ops[c].main.common.pads", [1, 1, 1, 1]),
        ("ops[two].main.float32s", [2.0]),
        ("ops[c].main.quanParameter", None),
        ("extraInfo.version", "3.6.1"),
    ],
)
def test_what_a_path_gives(cnn: Document, path: str, value: Any) -> None:
    assert get_plain(cnn, path) == value


def test_get_gives_the_document_s_own_values(cnn: Document) -> None:
    assert get(cnn, "ops[c]") is op_of(cnn, "c")
    assert get(cnn, "ops[c].main.weight") is op_of(cnn, "c")["main"]["weight"]
    assert get(cnn, "ops") is cnn.net["oplists"]
    assert get(cnn, "ops[p].main.type") == "MAXPOOL"
    assert get(cnn, "inputs") == {"x": op_of(cnn, "x")["main"]}
    assert get(cnn, "ops[c].main.quanParameter") is None


def test_long_arrays_are_told_or_shown(cnn: Document) -> None:
    weight = op_of(cnn, "c")["main"]["weight"]
    assert get_plain(cnn, "ops[c].main", longest=64)["weight"] == "float32[108]"
    assert get_plain(cnn, "ops[c].main")["weight"] == [float(str(value)) for value in weight]
    assert len(get_plain(cnn, "ops[c].main.weight", longest=64)) == 108


def test_subgraphs(loop: Document) -> None:
    assert get(loop, "subgraphs[y/Loop/body].ops[t].type") == "UnaryOp"
    assert get_plain(loop, "subgraphs[0].nodes[1].outputIndexes") == [1]
    assert get_plain(loop, "subgraphs[0].tensors[v]") == "v"
    assert get_plain(loop, "subgraphs[0].inputs") == [3, 4, 0]
    set_value(loop, "subgraphs[y/Loop/body].ops[t].main.opType", "NEG")
    assert get(loop, "subgraphs[0].ops[1].main.opType") == "NEG"


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('ops["a[0]"].name', ["a[0]", None]),
        ('ops["12"]', ["12"]),
        ("ops[12]", [12]),
        ("ops[-1]", [-1]),
        ("ops[a.b = c/d[e]", ["a.b = c/d[e"]),
        ('ops["\\u00e9\\n"]', ["é\n"]),
        ("a.b.c", [None, None, None]),
    ],
)
def test_brackets(text: str, keys: list[Any]) -> None:
    assert [step.key for step in parse_path(text)] == keys


@pytest.mark.parametrize("name", ["a", "12", "-3", "a]b", "a[b", "", " a", 'q"', "é", "a\nb", '"', "/m/Add_0", "x=y"])
def test_a_quoted_name_reads_back(name: str) -> None:
    (step,) = parse_path(f"ops[{quoted(name)}]")
    assert step.key == name


@pytest.mark.parametrize(
    "text",
    ["", "ops[", "ops[]", "ops[ ]", "ops.", ".a", "a..b", 'ops["a', 'ops["a"x]', "ops[a]b", "a b", "ops[a].", "ü"],
)
def test_what_is_no_path(cnn: Document, text: str) -> None:
    with pytest.raises(UsageError, match="cannot read the path") as caught:
        get(cnn, text)
    assert caught.value.hint is not None
    assert "ops[conv1].main.common.strideX" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a.b=1", ("a.b", "1")),
        ("ops[x=y].name=z=1", ("ops[x=y].name", "z=1")),
        ('ops["]="].name=', ('ops["]="].name', "")),
    ],
)
def test_assignments(text: str, parts: tuple[str, str]) -> None:
    assert split_assignment(text) == parts


def test_an_assignment_of_nothing() -> None:
    with pytest.raises(UsageError, match="assigns nothing"):
        split_assignment("ops[a].name")
    with pytest.raises(UsageError, match="cannot read the path 'a b=1' at ' b=1'"):
        split_assignment("a b=1")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("inputs[y].dims", "no input is named 'y'"),
        ("inputs[1].dims", "there is no index 1 among the 1 inputs"),
        ("inputs.dims", "are 1 inputs; name one"),
        ("inputs[x].name", "Input has no field 'name'"),
        ("ops[cc].name", "no operator is named 'cc'; did you mean 'c'?"),
        ("ops[9].name", "there is no index 9 among the 9 elements of 'ops'"),
        ("ops[-10].name", "there is no index -10"),
        ("opps", "Net has no field 'opps'; did you mean 'ops'?"),
        ("ops[c].main.comon", "Convolution2D has no field 'comon'; did you mean 'common'?"),
        ("ops.name", "'ops' is a list"),
        ("ops[c].main.weight[a]", "elements of 'ops[c].main.weight' have no names"),
        ("ops[c].main.weight[108]", "there is no index 108 among the 108 elements"),
        ("bizCode[0]", "Net.bizCode is no list"),
        ("bizCode.x", "'bizCode' is a value"),
        ("ops[c].main.quanParameter.type", "'ops[c].main.quanParameter' is not in this file"),
        ("subgraphs[b].name", "no subgraph is named 'b'"),
        ("outputs[z]", "no element is named 'z'"),
    ],
)
def test_paths_that_lead_nowhere(cnn: Document, path: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        get(cnn, path)
    assert message in str(caught.value)


def test_an_operator_of_a_subgraph_is_pointed_at(loop: Document) -> None:
    with pytest.raises(UsageError) as caught:
        get(loop, "ops[vo].name")
    assert caught.value.hint == "there is subgraphs[y/Loop/body].ops[vo]"


def test_a_name_that_several_have(cnn: Document) -> None:
    op_of(cnn, "t").fields["name"] = "c"
    with pytest.raises(UsageError, match="2 elements of 'ops' are named 'c'") as caught:
        get(cnn, "ops[c].type")
    assert caught.value.hint == "take one by its index: ops[2], ops[3]"


@pytest.mark.parametrize(
    ("path", "value", "stored"),
    [
        ("ops[c].main.common.strideX", 2, 2),
        ("ops[c].main.common.relu", True, True),
        ("ops[c].main.common.padMode", "SAME", "SAME"),
        ("ops[c].main.common.padMode", 1, "VALID"),
        ("ops[c].name", "first", "first"),
        ("ops[p].main.type", "AVEPOOL", "AVEPOOL"),
        ("outputs", ["y", "m"], ["y", "m"]),
        ("ops[two].main.float32s[0]", "inf", np.float32("inf")),
        ("tensorName[2]", "conv", "conv"),
    ],
)
def test_what_is_set(cnn: Document, path: str, value: Any, stored: Any) -> None:
    before = get_plain(cnn, path)
    edit = set_value(cnn, path, value)
    place = path.replace("ops[c].name", "ops[2].name")
    assert get(cnn, place) == stored
    assert edit.where in (path, "outputs")
    assert before != value
    assert first_difference(parse(dump(cnn)).net, cnn.net) is None


def test_a_list_and_one_element_of_it(cnn: Document) -> None:
    set_value(cnn, "inputs[x].dims", [1, 3, -1, 16])
    set_value(cnn, "inputs[x].dims[2]", 16)
    dims = get(cnn, "inputs[x].dims")
    assert (dims.tolist(), dims.dtype) == ([1, 3, 16, 16], np.dtype("<i4"))


def test_an_array_of_the_file_is_never_written(cnn: Document, cnn_file: Path) -> None:
    before = cnn_file.read_bytes()
    set_value(cnn, "ops[c].main.weight[0]", 5)
    assert get(cnn, "ops[c].main.weight[0]") == np.float32(5)
    assert cnn_file.read_bytes() == before
    assert read(cnn_file).net["oplists"][2]["main"]["weight"][0] != 5


def test_tables_as_a_whole(cnn: Document) -> None:
    common = get_plain(cnn, "ops[c].main.common")
    set_value(cnn, "ops[c].main.common", {**common, "strideX": 4})
    assert get(cnn, "ops[c].main.common.strideX") == 4
    set_value(cnn, "ops[p].main", {"kernelX": 3, "type": "AVEPOOL"})
    pool = get(cnn, "ops[p].main")
    assert isinstance(pool, Table)
    assert list(pool.fields) == ["kernelX", "type"]
    set_value(cnn, "inputs[x]", {"dims": [1, 3, 4, 4], "dtype": "DT_FLOAT", "dformat": "NCHW"})
    assert get_plain(cnn, "inputs[x].dims") == [1, 3, 4, 4]
    set_value(cnn, "ops[-1]", {"name": "new", "type": "Identity", "inputIndexes": [7], "outputIndexes": [8]})
    assert get(cnn, "ops[new].type") == "Identity"


def test_null_takes_a_field_away(cnn: Document) -> None:
    set_value(cnn, "ops[c].main.common.padX", None)
    assert "padX" not in get(cnn, "ops[c].main.common")
    assert get(cnn, "ops[c].main.common.padX") == 0
    set_value(cnn, "ops[c].main", None)
    set_value(cnn, "ops[c].main_type", "NONE")
    assert get(cnn, "ops[c].main") is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("ops[c].main.common.strideX", 2**31, "outside the range of int"),
        ("ops[c].main.common.strideX", 1.5, "expected a whole number, got 1.5"),
        ("ops[c].main.common.strideX", "2", "expected a whole number"),
        ("ops[c].main.common.relu", 1, "expected true or false"),
        ("ops[c].type", "Convolutoin", "did you mean 'Convolution'?"),
        ("ops[c].name", 3, "expected text, got 3"),
        ("ops[c].main.common", {"strideZ": 1}, "no field 'strideZ'; did you mean 'stride"),
        ("ops[c].main.common", 3, "expected an object"),
        ("ops[c].main.weight", [1, "a"], "ops[c].main.weight[1]: expected a number"),
        ("ops[c].main.weight[3]", 1e40, "does not fit a 32-bit float"),
        ("ops[c].main_type", "Pool", "Convolution2D are the parameters that the operator has"),
        ("ops[c].main_type", None, "Convolution2D are the parameters that the operator has"),
        ("ops[x___tr4c].main", {"weight": []}, "TensorConvertInfo has no field 'weight'"),
        ("inputs[x].dims", 3, "expected a list"),
        ("inputs[x].dims[1]", None, "expected a whole number, got null"),
        ("outputs", ["z"], "no tensor is named 'z'"),
        ("outputs", ["y", "y"], "'y' would be an output twice"),
        ("outputs", [], "a model without outputs computes nothing"),
        ("outputs", "y", "expected a list of names"),
        ("outputs[0]", 1, "expected a name"),
        ("outputs[0]", "two words", "no tensor is named 'two words'"),
        ("tensors", ["a"], "names of tensors are set one by one"),
        ("tensors[c]", "t", "'t' already is a tensor of the main graph"),
        ("tensors[c]", "", "a new name cannot be empty"),
    ],
)
def test_what_cannot_be_set(cnn: Document, path: str, value: Any, message: str) -> None:
    before = parse(dump(cnn))
    with pytest.raises(UsageError) as caught:
        set_value(cnn, path, value)
    assert message in str(caught.value)
    assert first_difference(before.net, cnn.net) is None


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("ops[c].name", "first", "first"),
        ("ops[c].name", '"a b"', "a b"),
        ("ops[c].name", "12", "12"),
        ("ops[c].name", "true", "true"),
        ("ops[c].name", "[1", "[1"),
        ("ops[c].name", "null", ""),
        ("ops[c].type", "ReLU6", "ReLU6"),
        ("ops[c].main.common.padX", "2", 2),
        ("ops[c].main.common.relu6", "true", True),
        ("ops[two].main.float32s", "[1e-3]", [1e-3]),
        ("ops[two].main.float32s[0]", "-inf", "-inf"),
        ("ops[two].main.float32s[0]", "NaN", None),
        ("outputs", '["m"]', ["m"]),
        ("outputs[0]", "m", "m"),
        ("tensors[c]", "conv", "conv"),
    ],
)
def test_texts_of_the_command_line(cnn: Document, path: str, text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(UsageError, match="expected a number, got 'NaN'"):
            set_text(cnn, path, text)
        return
    set_text(cnn, path, text)
    place = path.replace("ops[c].name", "ops[2].name").replace("tensors[c]", "tensors[2]")
    assert (get_plain(cnn, place) or "") == value


def test_a_text_that_is_nested_without_end(cnn: Document) -> None:
    with pytest.raises(UsageError, match="expected a list of numbers"):
        set_text(cnn, "inputs[x].dims", "[" * 100_000)


def test_tensors_are_renamed_everywhere(cnn: Document) -> None:
    set_value(cnn, "tensors[y]", "prob")
    assert cnn.net["outputName"] == ["prob"]
    assert cnn.net["tensorName"][8] == "prob"


def test_mnn_runs_at_the_new_size(cnn: Document, tmp_path: Path) -> None:
    """The model at 16 × 16 gives at its upper left what it gives at 8 × 8, where the border does not reach."""
    set_value(cnn, "inputs[x].dims", [1, 3, 16, 16])
    write(cnn, tmp_path / "large.mnn")
    image = random(1, 3, 16, 16)
    assert cnn.source is not None
    small = computed(cnn.source, {"x": image[:, :, :8, :8]})["y"]
    large = computed(tmp_path / "large.mnn", {"x": image})["y"]
    assert large.shape == (1, 4, 8, 8)
    np.testing.assert_allclose(large[:, :, :3, :3], small[:, :, :3, :3], atol=1e-6)
