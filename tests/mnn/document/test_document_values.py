"""Single values as JSON values and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphkit.errors import ModelError
from graphkit.mnn.document.schema import Field
from graphkit.mnn.document.tree import first_difference
from graphkit.mnn.document.values import from_plain, table_from_plain, to_plain
from tests.documents import SCHEMA, ints, op, table


def field(type_: str, name: str) -> Field:
    """A field of the schema."""
    found: Field = SCHEMA.tables[type_].fields[name]
    return found


EPSILON = field("LayerNorm", "epsilon")
GAMMA = field("LayerNorm", "gamma")


@given(st.integers(0, 2**32 - 1))
def test_floats_keep_every_bit(bits: int) -> None:
    value = np.array([bits], "<u4").view("<f4")[0]
    plain = json.loads(json.dumps(to_plain(value, EPSILON, SCHEMA), allow_nan=False))
    found = from_plain(plain, EPSILON, SCHEMA, "e")
    assert type(found) is np.float32
    assert found.tobytes() == value.tobytes()


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_arrays_of_floats_keep_every_bit(bits: list[int]) -> None:
    values = np.array(bits, "<u4").view("<f4")
    plain = json.loads(json.dumps(to_plain(values, GAMMA, SCHEMA), allow_nan=False))
    assert first_difference(from_plain(plain, GAMMA, SCHEMA, "g"), values) is None


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float32(0.1), 0.1), (np.float32(1e-12), 1e-12), (np.float32(1e-45), 1e-45), (np.float32(2), 2.0),
        (np.float32(16777217), 16777216.0), (np.float32(3.4028235e38), 3.4028235e38),
        (np.float32("nan"), "nan"), (np.float32("inf"), "inf"), (np.float32("-inf"), "-inf"),
        (np.uint32(0xFFC00000).view(np.float32), "0xffc00000"), (np.uint32(0x7F800001).view(np.float32), "0x7f800001"),
    ],
)  # fmt: skip
def test_floats_are_as_short_as_they_can_be(value: Any, plain: Any) -> None:
    assert to_plain(value, EPSILON, SCHEMA) == plain
    assert type(to_plain(value, EPSILON, SCHEMA)) is type(plain)


def test_minus_zero_is_not_zero() -> None:
    assert str(to_plain(np.float32(-0.0), EPSILON, SCHEMA)) == "-0.0"
    assert np.signbit(from_plain(-0.0, EPSILON, SCHEMA, "e"))


def test_enums_bools_and_members_by_name() -> None:
    assert to_plain(2, field("Convolution2DCommon", "padMode"), SCHEMA) == "SAME"
    assert to_plain(77, field("Convolution2DCommon", "padMode"), SCHEMA) == 77
    assert to_plain(9, field("Op", "main_type"), SCHEMA) == "Convolution2D"
    assert to_plain(200, field("Op", "main_type"), SCHEMA) == 200
    assert to_plain(True, field("Convolution2DCommon", "relu"), SCHEMA) is True
    assert to_plain(7, field("Convolution2DCommon", "relu"), SCHEMA) == 7
    kinds = field("ListValue", "type")
    assert to_plain(np.array([1, 3, 99], "<i4"), kinds, SCHEMA) == ["DT_FLOAT", "DT_INT32", 99]
    assert from_plain(["DT_FLOAT", 3, 99], kinds, SCHEMA, "k").tolist() == [1, 3, 99]
    bools = field("ListValue", "b")
    assert to_plain(np.array([1, 0, 7], "u1"), bools, SCHEMA) == [True, False, 7]
    assert from_plain([True, False, 7], bools, SCHEMA, "b").tolist() == [1, 0, 7]


def test_numbers_of_enums_are_taken_too() -> None:
    assert from_plain(2, field("Convolution2DCommon", "padMode"), SCHEMA, "p") == 2
    assert from_plain(9, field("Op", "main_type"), SCHEMA, "m") == 9


def test_tables_are_objects_of_the_fields_that_they_hold() -> None:
    made = op("Input", "x", (), (0,), table("Input", dims=ints(1, -1), dtype=1))
    plain = to_plain([made], SCHEMA.root.fields["oplists"], SCHEMA)
    assert plain == [
        {
            "name": "x", "type": "Input", "main_type": "Input", "inputIndexes": [], "outputIndexes": [0],
            "main": {"dims": [1, -1], "dtype": "DT_FLOAT"},
        }
    ]  # fmt: skip
    assert list(plain[0]) == ["name", "type", "main_type", "inputIndexes", "outputIndexes", "main"]
    found = from_plain(plain, SCHEMA.root.fields["oplists"], SCHEMA, "ops")
    assert first_difference([made], found) is None
    assert list(found[0].fields) == [name for name in SCHEMA.tables["Op"].fields if name in made]


def test_a_union_is_read_by_the_member_that_is_named() -> None:
    main = field("Op", "main")
    found = from_plain({"axis": 1}, main, SCHEMA, "main", member="Axis")
    assert (found.type.name, found["axis"]) == ("Axis", 1)
    with pytest.raises(ModelError, match="main: which table this is must be said by main_type"):
        from_plain({"axis": 1}, main, SCHEMA, "main")


def test_a_table_by_itself() -> None:
    found = table_from_plain({"kernelX": 3}, SCHEMA.tables["Convolution2DCommon"], SCHEMA, "common")
    assert found.fields == {"kernelX": 3}


@pytest.mark.parametrize(
    ("place", "raw", "message"),
    [
        (("Blob", "int64s"), [2**63], r"f\[0\]: 9223372036854775808 is outside the range of long"),
        (("Blob", "uint8s"), [0, -1], r"f\[1\]: -1 is outside the range of ubyte"),
        (("IDSTQuan", "alphaFp16"), [65536], r"f\[0\]: 65536 is outside the range of ushort"),
        (("IDSTQuan", "weightSize"), 2**32, "f: 4294967296 is outside the range of uint32"),
        (("Blob", "strings"), ["a", 1], r"f\[1\]: expected text, got 1"),
        (("ListValue", "b"), [True, 1], r"f\[1\]: expected true or false, got 1"),
        (("ListValue", "type"), ["DT_FLOAT", "FLOAT"], r"f\[1\]: DataType has no 'FLOAT'"),
        (("LayerNorm", "gamma"), [1.0, None], r"f\[1\]: expected a number, got null"),
        (("LayerNorm", "gamma"), {"a": 1}, "f: expected a list of numbers, got an object"),
        (("LayerNorm", "epsilon"), 10**400, "f: a number of more than 30 digits does not fit a 32-bit float"),
    ],
)
def test_what_does_not_fit_is_refused(place: tuple[str, str], raw: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_plain(raw, field(*place), SCHEMA, "f")
