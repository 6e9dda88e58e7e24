"""Options of passes: text becomes typed values, and what does not fit is said plainly."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pytest

from graphkit.errors import UsageError
from graphkit.options import build, convert, suggest


@dataclass(frozen=True)
class Sample:
    name: ClassVar[str] = "sample"
    max_bytes: int = 64
    ratio: float = 0.5
    deep: bool = False
    mode: Literal["rtn", "mse"] = "rtn"
    bits: Literal[4, 8] = 8
    layers: tuple[str, ...] = ()
    limit: int | None = None
    block: int | str = 32
    made: int = field(default=3, init=False)

    def __post_init__(self) -> None:
        if self.max_bytes == 13:
            raise ValueError("13 is no good")


@dataclass(frozen=True)
class Free:
    free_options: ClassVar[str] = "dims"
    strict: bool = False
    dims: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Needy:
    path: str


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("max_bytes", "12", 12),
        ("max-bytes", "-3", -3),
        ("max_bytes", "2KB", 2048),
        ("max_bytes", "1.5MiB", 3 << 19),
        ("max_bytes", "1g", 1 << 30),
        ("max_bytes", "9007199254740993", 9007199254740993),
        ("ratio", "1e-3", 1e-3),
        ("ratio", "inf", float("inf")),
        ("deep", "Yes", True),
        ("deep", "off", False),
        ("mode", "mse", "mse"),
        ("bits", "4", 4),
        ("layers", "a;b", ("a", "b")),
        ("layers", "", ()),
        ("limit", "none", None),
        ("limit", "7", 7),
        ("block", "64", 64),
        ("block", "all", "all"),
    ],
)
def test_values(key: str, text: str, value: object) -> None:
    built = build(Sample, [(key, text)])
    assert getattr(built, key.replace("-", "_")) == value
    assert type(getattr(built, key.replace("-", "_"))) is type(value)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([("max_bytes", "much")], "'max_bytes' needs a whole number, not 'much'"),
        ([("max_bytes", "1.5")], "needs a whole number"),
        ([("ratio", "x")], "needs a number"),
        ([("ratio", "nan")], "needs a number"),
        ([("deep", "maybe")], "needs true or false"),
        ([("mode", "mze")], "one of rtn, mse, not 'mze'; did you mean 'mse'"),
        ([("bits", "5")], "one of 4, 8"),
        ([("limit", "no")], "needs a whole number"),
        ([("maxbytes", "1")], "unknown option 'maxbytes'; did you mean 'max_bytes'"),
        ([("zzz", "1")], r"unknown option 'zzz' \(options: max_bytes, ratio"),
        ([("made", "1")], "unknown option 'made'"),
        ([("max_bytes", "1"), ("max-bytes", "2")], "given twice"),
        ([("max_bytes", "13")], "13 is no good"),
    ],
)
def test_errors(options: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        build(Sample, options)


def test_free_options_take_any_name() -> None:
    assert build(Free, [("batch", "1"), ("strict", "on"), ("seq-len", "8")]) == Free(
        True, (("batch", "1"), ("seq-len", "8"))
    )
    with pytest.raises(UsageError, match="given twice"):
        build(Free, [("batch", "1"), ("batch", "2")])


def test_options_without_a_default_are_asked_for() -> None:
    with pytest.raises(UsageError, match="option 'path' is required"):
        build(Needy, [])
    assert build(Needy, [("path", "x")]) == Needy("x")


def test_suggestions_and_types_nobody_can_write() -> None:
    assert suggest("cleanupp", ["cleanup", "cse"]) == "; did you mean 'cleanup'?"
    assert suggest("zzz", ["cleanup"]) == ""
    with pytest.raises(UsageError, match="'x' needs"):
        convert("1", dict, "x")
