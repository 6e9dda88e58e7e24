"""Tables on narrow terminals, and which error they tell."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from graphkit.compare import Comparison, Tolerance, compare
from graphkit.proof import Check, Proof
from graphkit.report.run import proof_line
from graphkit.report.table import Column, Grid
from graphkit.report.verdict import _rows

NAME = "encoder.layers.0.attention.output"


def printed(table: Grid, width: int) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    console.print(table.fitted(width), crop=False)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def grid() -> Grid:
    table = Grid(
        Column("output"), Column("shape", spare=2), Column("bytes", right=True, spare=1), Column("verdict", wrap=True)
    )
    table.add(NAME, "[1,3,224,224]", "1,234", "error 0.5 is over 0.001 here and there")
    table.add("y", "[1]", "4", "equal")
    return table


def test_a_wide_terminal_shows_all() -> None:
    head, first, second = printed(grid(), 200)
    assert head.split() == ["output", "shape", "bytes", "verdict"]
    assert first.endswith("error 0.5 is over 0.001 here and there")
    assert second.split() == ["y", "[1]", "4", "equal"]


@pytest.mark.parametrize("width", range(20, 120))
def test_no_word_is_ever_broken(width: int) -> None:
    lines = printed(grid(), width)
    text = " ".join(lines).split()
    assert NAME in text
    assert "equal" in text
    for word in ("[1,3,224,224]", "1,234"):
        assert word in text or "(no room for:" in " ".join(lines)
    if not lines[0].startswith(NAME):
        assert all(cell_len(line) <= width for line in lines[:-1])


def test_columns_go_by_their_worth() -> None:
    assert printed(grid(), 80)[-1] == "(no room for: shape)"
    assert printed(grid(), 64)[-1] == "(no room for: shape, bytes)"
    assert printed(grid(), 40) == [
        NAME,
        "  shape    [1,3,224,224]",
        "  bytes    1,234",
        "  verdict  error 0.5 is over 0.001 here and there",
        "y",
        "  shape    [1]",
        "  bytes    4",
        "  verdict  equal",
    ]


def test_cells_cannot_drive_the_terminal() -> None:
    table = Grid(Column("name"))
    table.add("a\x1b[2Jb")
    assert printed(table, 80)[1] == "a\\x1b[2Jb"


def check(scale: float, error: float, shape: tuple[int, ...] = (2,)) -> Check:
    expected = np.full(2, scale, np.float32)
    return Check({"x": shape}, compare({"y": expected}, {"y": expected + np.float32(error)}, Tolerance(rtol=1.0)))


def test_the_summary_is_about_the_worst_relative_error() -> None:
    proof = Proof((check(1000.0, 1.0), check(0.5, 0.25), check(100.0, 2.0)))
    assert proof_line(proof).plain.endswith("(max error 0.25 of 0.5; 1 of the largest is allowed)")
    assert proof.max_error == 0.5


def test_a_number_that_is_unknown_is_not_the_worst() -> None:
    known = check(0.5, 0.25)
    (output,) = known.comparison.outputs
    unknown = dataclasses.replace(output, name="z", max_error=float("nan"), max_abs=float("nan"))
    proof = Proof((dataclasses.replace(known, comparison=Comparison((unknown, output))),))
    assert proof_line(proof).plain.endswith("(max error 0.25 of 0.5; 1 of the largest is allowed)")


def test_samples_of_equal_shapes_share_a_row() -> None:
    proof = Proof((check(1.0, 0.1), check(1.0, 0.5), check(1.0, 0.2), check(1.0, 0.3, (4,))))
    rows = _rows(proof, each=False)
    assert [(row.shapes, row.samples, round(row.worst.max_error, 3)) for row in rows] == [
        ("[2]", 3, 0.5),
        ("[4]", 1, 0.3),
    ]
    assert len(_rows(proof, each=True)) == 4
