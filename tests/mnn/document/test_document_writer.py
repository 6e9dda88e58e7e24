"""Documents survive writing and reading; what a file cannot hold is refused with the place."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from documents import SCHEMA, ints, op, random_document, small, table
from flatbytes import places
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphkit.errors import ModelError
from graphkit.mnn.document import Document, _writer, dump, parse
from graphkit.mnn.document.tree import Table, first_difference


def test_a_document_comes_back_as_it_was() -> None:
    made = small()
    data = dump(made)
    back = parse(data)
    assert first_difference(made.net, back.net) is None
    assert (back.version, back.schema) == ("3.6.1", SCHEMA)
    assert dump(back) == data


@given(st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_tables_come_back_as_they_were(draw: random.Random) -> None:
    made = random_document(draw)
    data = dump(made)
    assert first_difference(made.net, parse(data).net) is None
    assert places(data)  # asserts the alignment that MNN asks for


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_every_bit_of_a_float_survives(bits: int) -> None:
    value = np.array([bits], "<u4").view("<f4")[0]
    made = Document(table("Net", oplists=[op("ELU", "e", (), (), table("ELU", alpha=value))]), SCHEMA, "")
    found = parse(dump(made)).net["oplists"][0]["main"]["alpha"]
    assert type(found) is np.float32
    assert found.tobytes() == value.tobytes()


def test_absent_is_not_empty_and_not_the_default() -> None:
    kinds = [op("Input", "a", (), (), table("Input", **f)) for f in ({}, {"dims": ints()}, {"dtype": 1})]
    back = parse(dump(Document(table("Net", oplists=kinds, outputName=[]), SCHEMA, ""))).net
    assert [list(o["main"].fields) for o in back["oplists"]] == [[], ["dims"], ["dtype"]]
    assert back["outputName"] == []
    assert "tensorName" not in back


def test_tables_of_the_same_fields_share_their_vtable() -> None:
    one, many = (len(dump(Document(table("Net", oplists=[table("Op", type=5)] * n), SCHEMA, ""))) for n in (1, 101))
    assert many - one == 100 * (4 + 4 + 4)  # a reference, the offset to the vtable, the number


def test_long_arrays_lie_on_sixteen_bytes_in_the_order_of_the_tables() -> None:
    data = dump(small())
    weight = parse(data).net["oplists"][1]["main"]["weight"]
    assert data.index(weight.tobytes()) % 16 == 0
    assert data.endswith(weight.tobytes())


def test_arrays_that_are_not_contiguous() -> None:
    made = small()
    made.net["oplists"][1]["main"].fields["weight"] = np.arange(2000, dtype="<f4")[::-2]
    made.net["oplists"][1]["main"].fields["bias"] = np.arange(20, dtype="<f4")[::3]
    assert first_difference(made.net, parse(dump(made)).net) is None


def _op(made: Document) -> dict[str, Any]:
    return made.net["oplists"][1].fields


BAD: dict[str, tuple[Callable[[Document], object], str]] = {
    "a number that is too large": (lambda d: _op(d).update(type=2**31), r"oplists\[1\]\.type: .*2147483648"),
    "a text for a number": (lambda d: _op(d).update(type="Convolution"), r"oplists\[1\]\.type: .*'Convolution'"),
    "None": (lambda d: _op(d).update(name=None), r"oplists\[1\]\.name: text belongs here, not None"),
    "a float that is too large": (
        lambda d: d.net["extraTensorDescribe"][0]["quantInfo"].fields.update(scale=1e300),
        r"extraTensorDescribe\[0\]\.quantInfo\.scale",
    ),
    "a byte that is too large": (lambda d: _op(d).update(defaultDimentionFormat=300), "defaultDimentionFormat"),
    "a lone surrogate": (lambda d: d.net["tensorName"].append("\ud800"), r"tensorName\[3\]: .*no bytes in UTF-8"),
    "a number for a text": (lambda d: d.net["outputName"].append(3), r"outputName\[1\]: text belongs here, not 3"),
    "a list for an array": (lambda d: _op(d).update(inputIndexes=[0]), r"inputIndexes: .*array of int32"),
    "another type of array": (lambda d: _op(d).update(inputIndexes=np.zeros(1)), r"float64\[1\]"),
    "an array of two dimensions": (lambda d: _op(d).update(inputIndexes=ints(0)[None]), r"int32\[1, 1\]"),
    "a text for a list": (lambda d: d.net.fields.update(outputName="y"), "outputName: a list belongs here, not 'y'"),
    "an array for a list": (lambda d: d.net.fields.update(oplists=ints(1)), "oplists: a list belongs here"),
    "another table": (
        lambda d: d.net["oplists"].append(d.net),
        r"oplists\[3\]: a table Op .* not a table Net",
    ),
    "a field that is none": (lambda d: _op(d).update(nam="c"), r"oplists\[1\]: Op has no field 'nam'"),
    "parameters of another kind": (lambda d: _op(d).update(main_type=5), "main_type says BatchNorm, but a table Conv"),
    "parameters of no kind": (lambda d: _op(d).pop("main_type"), "main_type says NONE, but a table Convolution2D"),
    "parameters of an unknown kind": (lambda d: _op(d).update(main_type=200), "main_type says number 200"),
    "a table within itself": (lambda d: _loop(d.net), "nested more than 64 deep"),
}


def _loop(net: Table) -> None:
    command = table("RegionCommand")
    command.fields["op"] = op("While", "w", (), (), table("LoopParam", commands=[command]))
    net["oplists"].append(command["op"])


@pytest.mark.parametrize("name", BAD)
def test_what_a_file_cannot_hold_is_named(name: str) -> None:
    made = small()
    change, message = BAD[name]
    change(made)
    with pytest.raises(ModelError, match=message):
        dump(made)


def test_tables_used_again_and_again_end_at_what_mnn_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "MAX_TABLES", 1000)
    inner = op("UnaryOp", "u", (), ())
    for _ in range(15):
        commands = [table("RegionCommand", op=inner)] * 4
        inner = op("While", "w", (), (), table("LoopParam", commands=commands))
    with pytest.raises(ModelError, match="more than 1,000 tables"):
        dump(Document(table("Net", oplists=[inner]), SCHEMA, ""))


def test_more_than_two_gigabytes_are_refused_before_anything_is_written() -> None:
    made = small()
    huge = np.broadcast_to(np.float32(0), (2**29,))
    made.net["oplists"][1]["main"].fields["weight"] = huge
    with pytest.raises(ModelError, match=r"2,147,48\d,\d+ bytes .*at most 2,147,483,647") as caught:
        dump(made)
    assert "saveExternalData" in str(caught.value.hint)
