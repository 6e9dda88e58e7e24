"""The benchmark of JSON roads: a small run is whole, and its bars are judged."""

from __future__ import annotations

from pathlib import Path

from benchmarks.mnn_json import ROADS, Cost, Result, bars, page, sections


def test_a_quick_run(tmp_path: Path) -> None:
    (found,) = sections(tmp_path, quick=True)
    assert not found.faults
    rows = found.tables[0].rows
    assert [row[0] for row in rows] == [road.name for road in ROADS]
    assert {row[-1] for row in rows[:4]} == {"identical"}
    assert float(rows[4][-1]) > 0  # MNN's six decimals
    assert "| graphkit, not run |" in page([found])


def test_bars() -> None:
    good, slow = Cost(0.5, 200, 50), Cost(3.0, 400, 50)
    limits = {"cpu": 2.0, "json": 1000.0, "memory": 3.0}
    results = [Result(ROADS[0], good, good, 999, 0, 0.0, True), Result(ROADS[1], slow, slow, 999, 0, 0.0, True)]
    assert [bar.met for bar in bars(results, 100, limits)] == [True, True, True]
    assert [bar.met for bar in bars(results[::-1], 100, limits)] == [False, False, True]
    assert bars(results, 100, {}) == []
