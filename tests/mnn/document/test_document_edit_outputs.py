"""Outputs added, removed and put in an order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from converted import Array, refused

from graphkit.mnn.document import Document
from graphkit.mnn.document.edits import (
    add_outputs,
    remove_outputs,
    set_outputs,
)

After = Callable[..., dict[str, Array]]


def test_an_intermediate_output(cnn: Document, before: dict[str, Array], after: After) -> None:
    add_outputs(cnn, ["m", 3])
    found = after(cnn)
    assert list(found) == ["y", "m", "t"]
    for name, value in found.items():
        np.testing.assert_array_equal(value, before[name])


def test_outputs_in_an_order(cnn: Document, before: dict[str, Array], after: After) -> None:
    set_outputs(cnn, ["p", "y"])
    found = after(cnn)
    assert list(found) == ["p", "y"]
    np.testing.assert_array_equal(found["p"], before["p"])
    remove_outputs(cnn, ["y"])
    assert cnn.net["outputName"] == ["p"]
    add_outputs(cnn, ["t", "c"])
    remove_outputs(cnn, ["2", "p"])
    assert cnn.net["outputName"] == ["t"]


def test_a_tensor_without_a_name_of_its_own(cnn: Document, before: dict[str, Array], after: After) -> None:
    cnn.net["tensorName"][5] = cnn.net["tensorName"][3] = "same"
    cnn.net["tensorName"][6] = ""
    hint = refused(cnn, lambda: add_outputs(cnn, ["same"]), "2 tensors of the main graph are named 'same': 3, 5")
    assert "index" in hint
    edits = add_outputs(cnn, [5, "6"])
    assert [edit.detail for edit in edits if edit.action == "rename"] == [
        "tensor 5 is 'same_5': another has the name 'same' too",
        "tensor 6 is 'tensor_6': it had no name",
    ]
    found = after(cnn)
    assert list(found) == ["y", "same_5", "tensor_6"]
    np.testing.assert_array_equal(found["same_5"], before["m"])
    np.testing.assert_array_equal(found["tensor_6"], before["p"])


def test_an_output_whose_name_others_have(cnn: Document) -> None:
    cnn.net["tensorName"][3] = "y"
    refused(cnn, lambda: add_outputs(cnn, [3]), "'y' is an output already, and 2 tensors have that name")
    set_outputs(cnn, [3])
    assert cnn.net["outputName"] == ["y_3"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda doc: add_outputs(doc, ["n"]), "no tensor is named 'n'"),
        (lambda doc: add_outputs(doc, ["m", "y"]), "'y' would be an output twice"),
        (lambda doc: add_outputs(doc, ["m", 5]), "'m' would be an output twice"),
        (lambda doc: add_outputs(doc, [9]), "there is no index 9 among the 9 tensors of the main graph"),
        (lambda doc: remove_outputs(doc, ["y"]), "a model without outputs computes nothing"),
        (lambda doc: remove_outputs(doc, ["m"]), "no output is named 'm'"),
        (lambda doc: remove_outputs(doc, ["3"]), "there is no output 3"),
        (lambda doc: set_outputs(doc, []), "a model without outputs computes nothing"),
        (lambda doc: set_outputs(doc, ["m", "m"]), "'m' would be an output twice"),
    ],
)
def test_outputs_that_are_refused(cnn: Document, edit: Callable[[Document], Any], message: str) -> None:
    refused(cnn, lambda: edit(cnn), message)


def test_a_tensor_that_nothing_writes_is_no_output(cnn: Document) -> None:
    cnn.net["tensorName"].append("left")
    refused(cnn, lambda: add_outputs(cnn, ["left"]), "no operator writes tensor 'left', and none reads it")
