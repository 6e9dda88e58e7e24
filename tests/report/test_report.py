"""Numbers and names as they are printed, JSON's types, and the spinner."""

from __future__ import annotations

import io
import json
import time
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from graphkit.errors import UsageError
from graphkit.report import text
from graphkit.report.console import json_text, plain
from graphkit.report.spinner import Spinner


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, "1 byte"), (212, "212 bytes"), (1000, "1 kB"), (9_994, "9.99 kB"), (90_400_000, "90.4 MB"),
        (999_600, "1 MB"), (2_500_000_000, "2.5 GB"), (5_000_000_000_000, "5000.0 GB"),
    ],
)  # fmt: skip
def test_sizes(value: int, expected: str) -> None:
    assert text.size(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.018, "0.02 s"), (41.2, "41 s"), (125, "2 min 5 s")])
def test_seconds(value: float, expected: str) -> None:
    assert text.seconds(value) == expected


@pytest.mark.parametrize(("value", "expected"), [(None, ""), (0.0, "0"), (2.12e-6, "2.1e-06"), (float("nan"), "nan")])
def test_errors(value: float | None, expected: str) -> None:
    assert text.error(value) == expected


def test_shapes() -> None:
    assert text.shape(("batch", 3, None)) == "[batch,3,?]"
    assert text.shape(None) == "[…]"
    assert text.shape(()) == "[]"


def test_listing() -> None:
    assert text.listing([]) == ""
    assert text.listing(["a"]) == "a"
    assert text.listing(["a", "b", "c"]) == "a, b and c"
    assert text.listing(["a", "b", "c"], 1) == "a and 2 more"


def test_names_cannot_drive_the_terminal() -> None:
    assert text.clean("a\x1b[2Jb\r\x9bc\nd") == "a\\x1b[2Jb\\x0d\\x9bc\nd"


def test_json_has_no_nan() -> None:
    data: dict[Any, Any] = {
        "a": float("nan"),
        "b": np.float32(1.5),
        "c": (np.int64(3), {True}),
        "d": float("-inf"),
        5: None,
    }
    assert json.loads(json_text(data)) == {"a": "nan", "b": 1.5, "c": [3, [True]], "d": "-inf", "5": None}
    assert plain(object).startswith("<class")


def test_the_spinner_starts_late_and_follows() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=80)
    with Spinner(console, "first", delay=0.05) as spinner:
        spinner.update("second")
        deadline = time.monotonic() + 10
        while "second" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
        spinner.update("third\x1b")
    assert "second" in stream.getvalue()
    quick = io.StringIO()
    with Spinner(Console(file=quick, force_terminal=True), "never", delay=30):
        pass
    assert quick.getvalue() == ""


@pytest.mark.parametrize(
    ("written", "count"),
    [("1GB", 10**9), ("500 mb", 5 * 10**8), ("1.5GiB", 3 << 29), ("8.19 kB", 8190), ("77B", 77), (".5KiB", 512)],
)
def test_sizes_are_read_as_they_are_written(written: str, count: int) -> None:
    assert text.parse_size(written) == count


@pytest.mark.parametrize("written", ["", "5", "MB", "60%", "1e3MB", "0B", "0.1B", "9" * 400 + "GB", "²MB", "-1MB"])
def test_what_is_no_size(written: str) -> None:
    with pytest.raises(UsageError) as caught:
        text.parse_size(written)
    assert "size" in caught.value.message
    assert caught.value.hint == "examples: 500MB, 1GB, 1.5GiB"
