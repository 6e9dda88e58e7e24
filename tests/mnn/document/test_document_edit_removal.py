"""Operators taken out of main graphs and subgraphs: what MNN computes then, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from converted import IMAGE, LOOP, Array, convert, op_of, random, refused

from graphkit.mnn.document import Document, read
from graphkit.mnn.document.edits import (
    remove_op,
    set_outputs,
)
from graphkit.mnn.document.tree import Table

After = Callable[..., dict[str, Array]]


def test_an_operator_in_the_middle_is_removed(cnn: Document, before: dict[str, Array], after: After) -> None:
    edit = remove_op(cnn, "t")
    assert edit.detail == "removed 't' (UnaryOp); 'm' now reads 'c'"
    found = after(cnn, IMAGE, ["y", "c", "m"])
    np.testing.assert_allclose(found["m"], 2 * found["c"], rtol=1e-6)
    assert not np.allclose(found["m"], before["m"])


def test_an_operator_with_a_constant_is_removed(cnn: Document, before: dict[str, Array], after: After) -> None:
    edit = remove_op(cnn, "m")
    assert edit.detail == "removed 'm' (BinaryOp); 'p' now reads 't'; constants that only it read went too: 'two'"
    assert len(cnn.net["oplists"]) == 7
    found = after(cnn, IMAGE, ["p"])["p"]
    np.testing.assert_allclose(found, before["p"] / 2, rtol=1e-6)


def test_the_last_operator_leaves_its_output_s_name(cnn: Document, before: dict[str, Array], after: After) -> None:
    edit = remove_op(cnn, "y__before_tr")
    assert edit.detail == "removed 'y__before_tr' (ConvertTensor); 'y' now writes 'y'"
    np.testing.assert_array_equal(after(cnn)["y"], before["y"])
    remove_op(cnn, "y")
    np.testing.assert_array_equal(after(cnn)["y"], before["p"])


def test_who_reads_the_source_of_a_removed_output_reads_the_output(cnn: Document, after: After) -> None:
    """`t` is read by `m` and by the removed operator, which made an output of it."""
    set_outputs(cnn, ["m", "y"])
    edit = remove_op(cnn, "m")
    assert "'t' now writes 'm'" in edit.detail
    found = after(cnn)
    np.testing.assert_array_equal(found["y"], after(cnn, IMAGE, ["y"])["y"])
    assert op_of(cnn, "p").ints("inputIndexes") == op_of(cnn, "t").ints("outputIndexes") == (5,)


def test_an_operator_that_nobody_needs(cnn: Document, before: dict[str, Array], after: After) -> None:
    set_outputs(cnn, ["p"])
    assert remove_op(cnn, "y__before_tr").detail == "removed 'y__before_tr' (ConvertTensor)"
    assert remove_op(cnn, 7).detail == "removed 'y' (UnaryOp)"
    np.testing.assert_array_equal(after(cnn)["p"], before["p"])


def test_descriptions_of_a_removed_tensor_go(cnn: Document) -> None:
    described = cnn.schema.tables["TensorDescribe"]
    cnn.net.fields["extraTensorDescribe"] = [
        Table(described, cnn.schema, {"index": at}) for at in range(len(cnn.net["tensorName"]))
    ]
    remove_op(cnn, "m")
    assert [entry["index"] for entry in cnn.net["extraTensorDescribe"]] == [0, 1, 2, 3, 6, 7, 8]


def test_an_operator_of_a_loop_s_body_is_removed(folder: Path, after: After) -> None:
    loop = read(convert(folder / "loop2.mnn", LOOP))
    remove_op(loop, "t")
    image = random(2, 3)
    np.testing.assert_allclose(after(loop, {"x": image, "n": np.int32(3)})["y"], 8 * image, rtol=1e-6)


def test_an_output_of_a_body_stays(folder: Path, after: After) -> None:
    text = LOOP.replace("t = Tanh(v) vo = Add(t, v)", "t = Add(v, v) vo = Tanh(t)")
    loop = read(convert(folder / "loop3.mnn", text))
    assert "'t' now writes 'vo'" in remove_op(loop, "vo", graph="y/Loop/body").detail
    image = random(2, 3)
    np.testing.assert_allclose(after(loop, {"x": image, "n": np.int32(3)})["y"], 8 * image, rtol=1e-6)


def test_two_inputs_are_no_choice(folder: Path) -> None:
    text = "g (float[2, 3] a, float[2, 3] b) => (float[2, 3] y) { s = Sub(a, b) y = Tanh(s) }"
    doc = read(convert(folder / "two.mnn", text))
    hint = refused(doc, lambda: remove_op(doc, "s"), "has 2 data inputs ('a', 'b'); which of them")
    assert "inputIndexes" in hint


def test_several_results_are_no_choice(folder: Path) -> None:
    text = """g (float[2, 4] x) => (float[2, 2] y, float[2, 2] z)
        { a, b = Split<axis = 1, num_outputs = 2>(x) y = Tanh(a) z = Exp(b) }"""
    doc = read(convert(folder / "split.mnn", text))
    split = next(op["name"] for op in doc.net["oplists"] if op.label("type") == "Slice")
    refused(doc, lambda: remove_op(doc, split), "has 2 results in use")


def test_an_output_never_becomes_an_input(folder: Path) -> None:
    doc = read(convert(folder / "one.mnn", "g (float[2] x) => (float[2] y) { y = Tanh(x) }"))
    refused(doc, lambda: remove_op(doc, "y"), "the output 'y' would be the input 'x' itself")


def test_two_outputs_never_become_one(cnn: Document) -> None:
    set_outputs(cnn, ["t", "m", "y"])
    hint = refused(cnn, lambda: remove_op(cnn, "m"), "the outputs 't' and 'm' would be one")
    assert "outputs remove" in hint


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("x", "'x' (Input) is an input of the model, and its result is in use"),
        ("two", "'two' (Const) reads nothing, and its result is in use ('two' by 'm')"),
        ("q", "no operator is named 'q'"),
        (20, "there is no index 20 among the 9 operators of the main graph"),
        ("20", "there is no index 20"),
    ],
)
def test_removing_that_is_refused(cnn: Document, op: str | int, message: str) -> None:
    refused(cnn, lambda: remove_op(cnn, op), message)


def test_an_operator_that_reads_constants_only(cnn: Document) -> None:
    op_of(cnn, "m").fields["inputIndexes"] = np.array([4, 4], "<i4")
    op_of(cnn, "p").fields["inputIndexes"] = np.array([5], "<i4")
    refused(cnn, lambda: remove_op(cnn, "m"), "has 1 inputs, all constant")


def test_tensors_that_the_file_does_not_have(cnn: Document) -> None:
    """A file that is damaged so may be what somebody wants to repair."""
    for name in ("t", "m"):
        op_of(cnn, name).fields["inputIndexes"] = np.array([77, 3], "<i4")
    refused(cnn, lambda: remove_op(cnn, "m"), "has 2 data inputs ('number 77', 't')")
    op_of(cnn, "m").fields["inputIndexes"] = np.array([77], "<i4")
    assert "'p' now reads 'number 77'" in remove_op(cnn, "m").detail
