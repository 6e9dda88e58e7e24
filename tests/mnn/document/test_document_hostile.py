"""Damaged and hostile files end in an error: quickly, in little memory, with the place of the damage."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import SCHEMA, small
from flatbytes import Raw, places
from fuzz_documents import fuzz

from graphkit.errors import ModelError
from graphkit.mnn.document import dump, parse, read

GOOD = dump(small())
PLACES = places(GOOD)
SIZE = len(GOOD)
LOOP = ("B", SCHEMA.member_number("LoopParam"))


def patched(at: int, code: str, number: int) -> bytes:
    data = bytearray(GOOD)
    struct.pack_into(f"<{code}", data, at, number)
    return bytes(data)


def refused(data: bytes) -> str:
    with pytest.raises(ModelError, match="is not an MNN model, or it is damaged") as caught:
        parse(data)
    return str(caught.value)


DAMAGE = {
    **{("offset", n): "I" for n in (0, SIZE, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)},
    **{("element offset", n): "I" for n in (0, SIZE, 2**31 - 1, 2**31, 2**32 - 4, 2**32 - 1)},
    **{("vtable offset", n): "i" for n in (SIZE, -SIZE, 2**31 - 1, -(2**31))},
    **{("vtable length", n): "H" for n in (0, 2, 3, 5, 65534, 65535)},
    **{("table size", n): "H" for n in (0, 1, 3, 65535)},
    **{("slot", n): "H" for n in (1, 2, 3, 65534, 65535)},
    **{("vector length", n): "I" for n in (SIZE, 2**30, 2**31 - 1, 2**31, 2**32 - 1)},
    **{("text length", n): "I" for n in (SIZE, 2**30, 2**31 - 1, 2**31, 2**32 - 1)},
}


@pytest.mark.parametrize(("kind", "number"), DAMAGE)
def test_a_wrong_number_anywhere_is_refused(kind: str, number: int) -> None:
    """Each place of its kind in the file is damaged in turn: 41 kinds of damage, thousands of files."""
    found = [at for what, at in PLACES if what == kind]
    assert found
    for at in found:
        refused(patched(at, DAMAGE[kind, number], number))


@pytest.mark.parametrize("kind", ["vector length", "text length"])
def test_a_length_one_too_large_or_small_is_read_or_refused(kind: str) -> None:
    for at in [at for what, at in PLACES if what == kind]:
        for step in (-1, 1):
            length = struct.unpack_from("<I", GOOD, at)[0] + step
            if length >= 0:
                _read_or_refused(patched(at, "I", length))


def _read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ModelError):
        parse(data)


def test_every_truncation_is_refused() -> None:
    for end in range(SIZE):
        refused(GOOD[:end])


def test_the_place_of_the_damage_is_named() -> None:
    at = GOOD.index(struct.pack("<I", 64) + bytes(256))  # the length of bias
    assert refused(patched(at, "I", 2**31)).endswith(
        "(oplists[1].main.bias: 2147483648 elements reach past the end of the file)"
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"\0" * 7, b"\0" * 4096, b"\xff" * 4096, b"PK\x03\x04" * 99, b"\x08\x07\x12\x07pytorch" * 9, b"{}\n"],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.mnn"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.mnn: is not an MNN model"):
        read(path)


def test_fields_that_lie_on_one_another_are_refused() -> None:
    raw = Raw()
    raw.table("root", "Net", {7: 4}, oplists=("->", "ops"))
    raw.offsets("ops", [])
    assert "lies outside its table or on another field" in refused(raw.done())


def test_a_table_that_is_its_own_vtable_or_child() -> None:
    raw = Raw()
    raw.block("root", struct.pack("<i", 0) + bytes(8))
    refused(raw.done())
    raw = Raw()
    raw.block("ring", b"")  # offsets go forward only: a ring must pass the end of 32 bits
    raw.table("root", "Net", oplists=("->", "ops"))
    raw.offsets("ops", ["op"])
    raw.table("op", "Op", name=("->", "ring"))
    refused(raw.done())


def test_nesting_ends_at_sixty_four() -> None:
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "ops"))
    raw.offsets("ops", ["op0"])
    for k in range(40):
        raw.table(f"op{k}", "Op", main_type=LOOP, main=("->", f"loop{k}"))
        raw.table(f"loop{k}", "LoopParam", commands=("->", f"list{k}"))
        raw.offsets(f"list{k}", [f"command{k}"])
        raw.table(f"command{k}", "RegionCommand", op=("->", f"op{k + 1}"))
    raw.table("op40", "Op", type=("i", 5))
    assert "nested more than 64 deep" in refused(raw.done())


def explosion() -> bytes:
    """Ten levels of loops, each with a hundred references to the same next one: 10^20 tables from 5 kB."""
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "ops"))
    raw.offsets("ops", ["op0"])
    for k in range(10):
        raw.table(f"op{k}", "Op", main_type=LOOP, main=("->", f"loop{k}"))
        raw.table(f"loop{k}", "LoopParam", commands=("->", f"list{k}"))
        raw.offsets(f"list{k}", [f"command{k}"] * 100)
        raw.table(f"command{k}", "RegionCommand", op=("->", f"op{k + 1}"))
    raw.table("op10", "Op", type=("i", 5))
    return raw.done()


def one_table_for_all() -> bytes:
    """A million references to one table of twelve numbers."""
    raw = Raw()
    raw.table("root", "Net", extraTensorDescribe=("->", "list"))
    count = 1_000_000
    raw.offsets("list", [])
    raw.data[-4:] = struct.pack("<I", count)
    raw.data += b"".join(struct.pack("<I", 4 * (count - k) + 16) for k in range(count))
    raw.table("it", "TensorDescribe", index=("i", 3), name=("->", "name"), quantInfo=("->", "info"))
    assert raw.labels["it"] == len(raw.data) - 16
    raw.table("info", "TensorQuantInfo", **dict.fromkeys(("scale", "zero", "min", "max"), ("f", 1.0)))
    raw.text("name", b"name")
    return raw.done()


def texts_within_texts() -> bytes:
    """Half a million texts, each of which holds all that follow."""
    raw = Raw()
    raw.table("root", "Net", tensorName=("->", "list"))
    count = 500_000
    raw.offsets("list", [])
    start = len(raw.data)
    raw.data[-4:] = struct.pack("<I", count)
    raw.data += struct.pack("<I", 4 * count) * count
    end = start + 8 * count
    raw.data += b"".join(struct.pack("<I", end - (start + 4 * count + 4 * k) - 4) for k in range(count)) + bytes(4)
    return raw.done()


def arrays_within_arrays() -> bytes:
    """Thousands of operators whose arrays are one large one."""
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "list"))
    raw.offsets("list", ["op"] * 100_000)
    raw.table("op", "Op", inputIndexes=("->", "array"))
    raw.block("array", struct.pack("<I", 500_000) + bytes(2_000_000))
    return raw.done()


def thirty_thousand_unknown_fields() -> bytes:
    """Operators of unknown kinds with thirty thousand unknown fields each, all at the same place."""
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "list"))
    raw.offsets("list", ["op"] * 200_000)
    raw.table("op", "Op", dict.fromkeys(range(9, 32_000), 4), main=("->", "list"))
    return raw.done()


def a_vtable_for_each_table() -> bytes:
    """Tables without fields that all have vtables of their own."""
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "list"))
    count = 150_000
    raw.offsets("list", [f"op{k}" for k in range(count)])
    for k in range(count):
        raw.table(f"op{k}", "Op")
    return raw.done()


def long_vtables() -> bytes:
    """Tables whose lists of thirty thousand fields overlap, all but their first eight unknown."""
    raw = Raw()
    raw.table("root", "Net", oplists=("->", "list"))
    count = 50_000
    raw.offsets("list", [f"op{k}" for k in range(count)])
    for k in range(count):
        raw.block(f"op{k}", struct.pack("<iHH", -4, 60_000, 4) + bytes(16))
    return raw.done() + bytes(60_000)


BOMBS: list[Callable[[], bytes]] = [
    explosion,
    one_table_for_all,
    texts_within_texts,
    arrays_within_arrays,
    thirty_thousand_unknown_fields,
    a_vtable_for_each_table,
    long_vtables,
]
CHILD = """
import re, sys
from pathlib import Path
from graphkit.errors import ModelError
from graphkit.mnn.document import read
try:
    read(Path(sys.argv[1])).unknown()
except ModelError as error:
    print(error)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.__name__)
def test_bombs_cost_little_memory_and_time(bomb: Callable[[], bytes], tmp_path: Path) -> None:
    path = tmp_path / "bomb.mnn"
    path.write_bytes(bomb())
    start = time.monotonic()
    argv = [sys.executable, "-c", CHILD, str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True)
    *message, kilobytes = done.stdout.splitlines()
    assert time.monotonic() - start < 60
    assert int(kilobytes) < 1_000_000
    if bomb is not a_vtable_for_each_table:  # which is a good file, if a strange one
        assert "damaged" in message[0]


def test_a_fuzzer_finds_nothing_in_two_seconds() -> None:
    assert fuzz(GOOD, seconds=2, draw=random.Random(0)) > 100
