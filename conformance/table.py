"""The page `docs/conformance.md`, made from the verdicts: totals, families of operators, what is left and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import onnx

from conformance import cases, probes, verdicts
from conformance.cases import Case, Excluded
from conformance.roads import Result

PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"
_ORDER = ("right", "refused", "wrong", "failed", "crashed")
_EXAMPLES = 4  # tests named for one reason
_REASON = 110  # characters

_INTRO = """\
# ONNX's backend tests in MNN

Made by `make conformance` (`python -m conformance`): do not edit. Each test of `onnx.backend.test` goes down two roads
to MNN {mnn}, in child processes: **plain** hands the model to MNNConvert as it is, **graphkit** is `graphkit convert`
(the `mnn` preset, MNNConvert, proof). What MNN computes is compared with what the test expects. Integer and boolean
inputs of rank 0 or 1 after the first are bound as initializers, as real exports have axes, shapes and pads.

*right*: MNN computes what the test expects. *refused*: there is no output, exit code 3, and the node is named (plain:
the converter gave up). *wrong*: a file that computes something else, and nobody says so. *failed*: a file that does not
run. *crashed*: the converter or the runtime died.
"""


@dataclass(frozen=True)
class Family:
    """Tests of one operator (or of one kind of whole model), and how they ended down each road."""

    name: str
    counts: Mapping[str, Counter[str]]

    @property
    def total(self) -> int:
        """Number of tests."""
        return max(sum(counts.values()) for counts in self.counts.values())


def page(tests: Sequence[Case | Excluded], results: Mapping[str, Mapping[str, Result]], mnn: str) -> str:
    """The whole page; results by road and test."""
    able = [test for test in tests if isinstance(test, Case)]
    ran = {name for road in results.values() for name in road}
    lines = [_INTRO.format(mnn=mnn), f"onnx {onnx.__version__}, {len(ran):,} of {len(able):,} tests run.", ""]
    lines += ["## Totals", "", *_totals(able, results), ""]
    lines += ["## `graphkit check` against `graphkit convert`", "", *_agreement(results), ""]
    lines += ["## By operator", "", *_families(families(able, results)), ""]
    lines += ["## What graphkit's road refuses, and why", "", *_left(able, results.get("graphkit", {})), ""]
    lines += ["## Tests that cannot be put to MNN", "", *_excluded(tests)]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table in Markdown; cells after the first of numbers are aligned right."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' for _ in head)}|"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _totals(able: Sequence[Case], results: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    rows = []
    for road in ("plain", "graphkit"):
        counts: Counter[str] = Counter(
            results[road][case.name].verdict for case in able if case.name in results.get(road, {})
        )
        total = sum(counts.values())
        if total:
            share = f"{100 * counts['right'] / total:.1f} %"
            rows.append((road, total, *(counts[verdict] for verdict in _ORDER), share))
    yield from _table(("road", "tests", *_ORDER, "share right"), rows)


def disagreements(results: Mapping[str, Mapping[str, Result]]) -> tuple[list[str], list[str]]:
    """Tests that `check` calls clear and conversion does not get right, and the other way round."""
    made, said = results.get("graphkit", {}), results.get("check", {})
    both = sorted(made.keys() & said.keys())
    clear = [name for name in both if said[name].verdict == "right" and made[name].verdict != "right"]
    alarms = [name for name in both if said[name].verdict != "right" and made[name].verdict == "right"]
    return clear, alarms


def _agreement(results: Mapping[str, Mapping[str, Result]]) -> Iterator[str]:
    made, said = results.get("graphkit", {}), results.get("check", {})
    both = made.keys() & said.keys()
    clear, alarms = disagreements(results)
    yield f"On {len(both) - len(clear) - len(alarms):,} of {len(both):,} tests they agree."
    for what, names in (("False all-clears", clear), ("False alarms", alarms)):
        listing = ", ".join(f"`{name}`" for name in names)
        yield f"{what}: {len(names)}{': ' + listing if names else ''}."


def families(able: Sequence[Case], results: Mapping[str, Mapping[str, Result]]) -> list[Family]:
    """Tests by operator, in alphabetical order."""
    names = {case.name: family(case) for case in able}
    # The tests of function bodies ("…_expanded…") belong to the operator that the body is of.
    for name in names:
        stem = name.split("_expanded")[0]
        names[name] = names.get(stem, names[name]) if "_expanded" in name else names[name]
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: {"plain": Counter(), "graphkit": Counter()})
    for case in able:
        for road in ("plain", "graphkit"):
            if case.name in results.get(road, {}):
                counts[names[case.name]][road][results[road][case.name].verdict] += 1
    return [Family(name, counts[name]) for name in sorted(counts)]


def family(case: Case) -> str:
    """The operator that a test is about: its only one, else the one that its name contains, else its kind."""
    graph = onnx.ModelProto.FromString(case.model).graph
    ops = [node.op_type for node in graph.node if node.op_type != "Constant"]
    if len(set(ops)) == 1:
        return ops[0]
    plain = case.name.removeprefix("test_").replace("_", "").lower()
    inside = [op for op in ops if plain.startswith(op.lower())]
    return max(inside, key=len) if inside else f"({case.kind}, several operators)"


def _families(found: Sequence[Family]) -> Iterator[str]:
    rows = [
        (item.name, item.total, *(_short(item.counts[road]) for road in ("plain", "graphkit")))
        for item in found
        if any(set(counts) - {"right"} for counts in item.counts.values())
    ]
    yield "Operators with a test that is not right down one of the roads; all tests of the others are right down both."
    yield ""
    yield from _table(("operator", "tests", "plain", "graphkit"), rows)
    rest = [item.name for item in found if not any(set(counts) - {"right"} for counts in item.counts.values())]
    yield ""
    yield f"Right down both roads ({len(rest)} operators): {', '.join(rest)}."


def _short(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict]) or "–"


def _left(able: Sequence[Case], results: Mapping[str, Result]) -> Iterator[str]:
    groups: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for case in able:
        result = results.get(case.name)
        if result is not None and result.verdict != "right":
            op = result.nodes[0] if result.nodes else family(case)
            groups[op, result.verdict, why(result.detail)].append(case.name)
    rows = []
    for (op, verdict, reason), names in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]))):
        shown = ", ".join(f"`{name}`" for name in sorted(names)[:_EXAMPLES])
        more = f" and {len(names) - _EXAMPLES} more" if len(names) > _EXAMPLES else ""
        rows.append((op, verdict, len(names), reason, shown + more))
    yield from _table(("node", "verdict", "tests", "reason", "tests by name"), rows)


def why(detail: str) -> str:
    """The reason without what differs from test to test."""
    for text, short in _REASONS:
        if text in detail:
            return short
    head = detail.split("; ")[0]
    return head if len(head) <= _REASON else head[: _REASON - 1] + "…"


_REASONS = (
    ("no such operator in MNN", "no such operator in MNN, and no lowering"),
    ("has no elements", "an output without elements, which MNN cannot hand over"),
    ("is random", "its output is random: nothing can prove it"),
    ("nothing tells whether", "nothing runs the original: nothing can prove it"),
    ("is float64", "float64 input, which MNN takes for float32"),
    ("computes nothing", "the model computes nothing"),
    ("instead of", "MNN computes another shape"),
    ("is expected", "MNN computes another shape"),
    ("integers differ", "MNN computes other integers"),
    ("NaN in one", "MNN's result is NaN where it should not be, or the other way round"),
    ("is over", "MNN computes other values"),
    ("cannot run it", "MNN converts it and cannot run it"),
    ("crashed", "MNN crashes"),
    ("did not finish", "MNN does not finish"),
)


def _excluded(tests: Sequence[Case | Excluded]) -> Iterator[str]:
    reasons = Counter(test.reason for test in tests if isinstance(test, Excluded))
    yield from _table(("reason", "tests"), [(reason, number) for reason, number in reasons.most_common()])


def publish(results: Iterable[Result]) -> None:
    """Write the page from these results, probes left out."""
    from importlib.metadata import version

    found = verdicts.by_road(result for result in results if not result.case.startswith(probes.PREFIX))
    PAGE.write_text(page(cases.load(), found, version("MNN")), encoding="utf-8")


@click.command()
@click.argument("files", type=click.Path(path_type=Path, exists=True), nargs=-1)
def main(files: tuple[Path, ...]) -> None:
    """Write docs/conformance.md from verdicts that were written before (default: conformance/verdicts.json)."""
    publish(result for file in files or (verdicts.FILE,) for result in verdicts.read(file))


if __name__ == "__main__":
    main()
