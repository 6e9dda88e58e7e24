"""Reading by the schema: views of the file, versions, and what the schema does not know."""

from __future__ import annotations

import time

import numpy as np
import pytest
from documents import SCHEMA, op, small, table
from flatbytes import Raw

from graphkit.errors import ModelError
from graphkit.mnn.document import Document, dump, parse


def test_arrays_are_views_of_the_bytes_and_cannot_be_written() -> None:
    data = dump(small())
    back = parse(data)
    conv = back.net["oplists"][1]["main"]
    for array in (conv["weight"], conv["bias"], back.net["oplists"][0]["inputIndexes"]):
        assert not array.flags.writeable
    assert np.shares_memory(conv["weight"], np.frombuffer(data, "u1"))
    assert conv["weight"].dtype == np.dtype("<f4")
    assert (back.net["oplists"][0]["inputIndexes"].size, type(conv["common"]["relu"])) == (0, bool)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_read(kind: type) -> None:
    assert [view.name for view in parse(kind(dump(small()))).graphs()] == ["", "body"]


def test_graphs_are_live_views() -> None:
    made = small()
    main, body = made.graphs()
    assert (main.where, body.where, body.table) == ("oplists", "subgraphs[0].nodes", made.net["subgraphs"][0])
    assert main.ops is made.net["oplists"]
    assert main.tensors is made.net["tensorName"]
    assert body.ops is made.net["subgraphs"][0]["nodes"]
    assert body.tensors == ["a", "b"]


def newer(**slots: tuple[str, object]) -> bytes:
    """A file of a newer MNN: a field 12 in Net, a field 9 in its operator, whose parameters may be unknown too."""
    raw = Raw()
    raw.table("root", "Net", {12: 8}, oplists=("->", "ops"), extraInfo=("->", "info"))
    raw.table("info", "ExtraInfo", version=("->", "version"))
    raw.text("version", b"4.0.0")
    raw.offsets("ops", ["op", "op"])
    raw.table("op", "Op", {9: 4}, name=("->", "name"), **slots)
    raw.table("main", "UnaryOp", opType=("i", 9))
    raw.text("name", b"new")
    return raw.done()


def test_fields_that_the_schema_does_not_know_are_told_and_not_written() -> None:
    made = parse(newer())
    assert made.version == "4.0.0"
    assert made.net.unknown == (12,)
    assert made.unknown() == [
        "Net: field 12 (MNN 3.6.1 has 12, the first is 0)",
        "oplists[0] and 1 more (Op): field 9 (MNN 3.6.1 has 8, the first is 0)",
    ]
    with pytest.raises(ModelError, match=r"Net holds fields that the format of MNN 3\.6\.1 .* \(number 12\)"):
        dump(made)


@pytest.mark.parametrize(("kind", "slots"), [(200, {"main_type": ("B", 200)}), (0, {})])
def test_parameters_of_an_unknown_kind_are_told(kind: int, slots: dict[str, tuple[str, object]]) -> None:
    made = parse(newer(main=("->", "main"), **slots))
    op = made.net["oplists"][0]
    assert ("main" in op, op.unknown) == (False, (9, 2))
    line = f"oplists[0] and 1 more (Op): main is of a kind that MNN 3.6.1 does not have (number {kind})"
    assert line in made.unknown()


def test_a_shared_table_is_two_tables_in_memory() -> None:
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "ops"))
    raw.offsets("ops", ["op", "op"])
    raw.table("op", "Op", type=("i", 5))
    first, second = parse(raw.done()).net["oplists"]
    assert first is not second


def test_numbers_of_enums_that_the_schema_does_not_know_are_kept() -> None:
    made = parse(dump(Document(table("Net", oplists=[op("ELU", "e", (), ())]), SCHEMA, "")))
    made.net["oplists"][0].fields["type"] = 12345
    assert parse(dump(made)).net["oplists"][0].label("type") == "?12345"


def test_five_thousand_operators_are_read_in_less_than_half_a_second() -> None:
    common = table("Convolution2DCommon", **dict.fromkeys(("kernelX", "kernelY", "strideX", "padX", "group"), 1))
    main = table("Convolution2D", common=common, bias=np.zeros(8, "<f4"))
    ops = [op("Convolution", f"c{k}", (k,), (k + 1,), main) for k in range(5000)]
    data = dump(Document(table("Net", oplists=ops, tensorName=[f"t{k}" for k in range(5001)]), SCHEMA, ""))
    start = time.process_time()
    assert parse(data).net["oplists"][4999].ints("inputIndexes") == (4999,)
    assert time.process_time() - start < 0.5


def test_integers_of_every_size() -> None:
    blob = table("Blob", int8s=np.array([-128, 127], "i1"), int64s=np.array([-(2**63), 2**63 - 1], "<i8"))
    quan = table(
        "IDSTQuan", alphaFp16=np.array([65535], "<u2"), index=np.array([2**32 - 1], "<u4"), weightSize=2**32 - 1
    )
    ops = [op("Const", "b", (), (0,), blob)]
    ops.append(op("Convolution", "c", (0,), (1,), table("Convolution2D", quanParameter=quan)))
    blob, conv = (o["main"] for o in parse(dump(Document(table("Net", oplists=ops), SCHEMA, ""))).net["oplists"])
    assert blob.ints("int8s") + blob.ints("int64s") == (-128, 127, -(2**63), 2**63 - 1)
    quan = conv["quanParameter"]
    assert (quan.ints("alphaFp16"), quan.ints("index"), quan["weightSize"]) == ((65535,), (2**32 - 1,), 2**32 - 1)
