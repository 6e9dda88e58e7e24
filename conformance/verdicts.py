"""Verdicts on disk: one test a line, all roads side by side, so that a change reads well as a difference."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.roads import Result

FILE = Path(__file__).with_name("verdicts.json")
_DETAIL = 300  # characters of a reason that are kept


def write(results: Iterable[Result], path: Path) -> None:
    """Write `{test: {road: verdict or [verdict, detail, operators]}}`."""
    tests: dict[str, dict[str, object]] = defaultdict(dict)
    for result in sorted(results, key=lambda result: (result.case, _ROADS.index(result.road))):
        plain = result.verdict == "right"
        detail = result.detail[:_DETAIL]
        tests[result.case][result.road] = "right" if plain else [result.verdict, detail, list(result.nodes)]
    lines = [f"{json.dumps(name)}: {json.dumps(roads, ensure_ascii=False)}" for name, roads in tests.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


_ROADS = ("plain", "graphkit", "check")


def read(path: Path) -> list[Result]:
    """Verdicts from a file of `write`, or from a list of results as objects."""
    data = json.loads(path.read_text("utf-8"))
    if isinstance(data, list):
        return [Result(**{**row, "nodes": tuple(row.get("nodes", ()))}) for row in data]
    return [_result(case, road, told) for case, roads in data.items() for road, told in roads.items()]


def _result(case: str, road: str, told: str | list[object]) -> Result:
    if isinstance(told, str):
        return Result(case, road, told)  # type: ignore[arg-type]
    verdict, detail, nodes = told
    return Result(case, road, verdict, str(detail), tuple(nodes))  # type: ignore[arg-type]


def by_road(results: Iterable[Result]) -> Mapping[str, dict[str, Result]]:
    """Results by road and test."""
    found: dict[str, dict[str, Result]] = defaultdict(dict)
    for result in results:
        found[result.road][result.case] = result
    return found
