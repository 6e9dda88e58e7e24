"""Renaming operators and tensors: everywhere the name is, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import IMAGE, LOOP, Array, computed, convert, convert_file, op_of, random, refused

from graphkit.mnn.document import Document, read
from graphkit.mnn.document.edits import rename, rename_op, rename_tensor, set_value
from graphkit.mnn.document.tree import Table

After = Callable[..., dict[str, Array]]


def test_an_output_is_renamed_with_its_operator(cnn: Document, before: dict[str, Array], after: After) -> None:
    edits = rename(cnn, "y", "prob")
    assert [edit.where for edit in edits] == ["tensors[8]", "ops[prob]"]
    found = after(cnn)
    assert list(found) == ["prob"]
    np.testing.assert_array_equal(found["prob"], before["y"])


def test_an_input_is_renamed(cnn: Document, before: dict[str, Array], after: After) -> None:
    rename(cnn, "x", "image")
    np.testing.assert_array_equal(after(cnn, {"image": IMAGE["x"]})["y"], before["y"])


def test_only_the_operator_or_only_the_tensor(cnn: Document) -> None:
    rename_op(cnn, "c", "conv")
    assert "c" in cnn.net["tensorName"]
    rename_tensor(cnn, 2, "conv_out")
    assert cnn.net["tensorName"][2] == "conv_out"
    assert op_of(cnn, "conv").ints("outputIndexes") == (2,)


def test_descriptions_of_tensors_are_renamed(cnn: Document) -> None:
    described = cnn.schema.tables["TensorDescribe"]
    table = Table(described, cnn.schema, {"index": 3, "name": "t"})
    other = Table(described, cnn.schema, {"index": 2, "name": "t"})
    cnn.net.fields["extraTensorDescribe"] = [table, other]
    rename_tensor(cnn, "t", "tanh")
    assert (table["name"], other["name"]) == ("tanh", "t")


def test_a_tensor_that_shares_its_name_is_renamed_by_index_only(cnn: Document) -> None:
    cnn.net["tensorName"][3] = "y"
    hint = refused(cnn, lambda: rename_tensor(cnn, "y", "z"), "2 tensors of the main graph are named 'y': 3, 8")
    assert "index" in hint
    rename_tensor(cnn, 3, "z")
    assert cnn.net["tensorName"][3] == "z"
    assert cnn.net["outputName"] == ["y"]


def test_names_of_a_loop_s_body(folder: Path, after: After) -> None:
    path = convert(folder / "loop.mnn", LOOP)
    feeds = {"x": random(2, 3), "n": np.int32(3)}
    right = computed(path, feeds)["y"]
    loop = read(path)
    assert [edit.where for edit in rename(loop, "v", "state")] == [
        "subgraphs[y/Loop/body].tensors[0]",
        "subgraphs[y/Loop/body].ops[state]",
    ]
    np.testing.assert_array_equal(after(loop, feeds)["y"], right)
    refused(loop, lambda: rename(loop, "v", "w"), "no operator or tensor is named 'v'")
    refused(loop, lambda: rename(loop, "x", "w", graph="y/Loop/body"), "no operator or tensor is named 'x'")
    refused(loop, lambda: rename(loop, "x", "w", graph="body"), "no subgraph is named 'body'")


def test_names_that_an_if_hands_over(model_path: Callable[[str], Path], folder: Path, after: After) -> None:
    """Both branches of silero_vad read `input` and `state`; the If knows them by these names."""
    path = convert_file(model_path("silero_vad"), folder / "silero_vad.mnn")
    feeds = {"input": random(1, 512) / 4, "state": random(2, 1, 128), "sr": np.int32(16000)}
    right = computed(path, feeds)
    doc = read(path)
    shared = "If_0_then_branch__Inline_0__/decoder/If_output_0"
    hint = refused(doc, lambda: rename(doc, shared, "x"), f"'{shared}' is in ")
    assert "--graph" in hint
    rename(doc, "input", "samples", graph="If_0_then_branch")
    call = op_of(doc, "If_0_outputs_0")["main"]
    assert [names["data"] for names in call["aliases_inputs"][1:]] == [["input", "samples"], ["state"]]
    rename(doc, "input", "samples", graph="If_0_else_branch")
    assert call["aliases_inputs"][1]["data"] == ["samples"]
    set_value(doc, "subgraphs[If_0_then_branch].tensors[If_0_then_branch__Introduce_0_outputs_0]", "probability")
    assert call["aliases_outputs"][0]["data"] == ["probability", "If_0_else_branch__Introduce_0_outputs_0"]
    found = after(doc, feeds)
    for name, value in right.items():
        np.testing.assert_array_equal(found[name], value)


def test_a_loop_s_aliases(cnn: Document) -> None:
    """MNN's other converters write While operators that know their graphs' tensors by name."""

    def make(kind: str, **fields: Any) -> Table:
        return Table(cnn.schema.tables[kind], cnn.schema, fields)

    call = make(
        "WhileParam",
        cond_graph="cond",
        body_graph="body",
        aliases_inputs=[make("StringVec", data=["a"])],
        aliases_outputs=["b"],
        aliases_updates=[make("StringVec", data=["b"])],
    )
    cnn.net.fields["subgraphs"] = [
        make("SubGraphProto", name=name, tensors=["a", "b"], nodes=[]) for name in ("cond", "body")
    ]
    op_of(cnn, "t").fields.update(main=call, main_type=cnn.schema.member_number("WhileParam"))
    rename_tensor(cnn, "a", "first", graph="body")
    assert call["aliases_inputs"][0]["data"] == ["a", "first"]
    refused(cnn, lambda: rename_tensor(cnn, "b", "second", graph="body"), "the condition and the body of a loop both")
    cnn.net["subgraphs"][0]["tensors"][1] = "c"
    rename_tensor(cnn, "b", "second", graph="body")
    assert (call["aliases_outputs"], call["aliases_updates"][0]["data"]) == (["second"], ["second"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cc", "d", "no operator or tensor is named 'cc'"),
        ("c", "t", "'t' already is an operator of the main graph"),
        ("c", "x___tr4c", "'x___tr4c' already is"),
        ("c", "", "a new name cannot be empty"),
        ("tt", "d", "no operator or tensor is named 'tt'"),
    ],
)
def test_renaming_that_is_refused(cnn: Document, old: str, new: str, message: str) -> None:
    refused(cnn, lambda: rename(cnn, old, new), message)


def test_both_are_checked_before_either_is_renamed(cnn: Document) -> None:
    op_of(cnn, "t").fields["name"] = "free"
    refused(cnn, lambda: rename(cnn, "c", "free"), "'free' already is an operator of the main graph")
