"""Make or re-check the table of operators from the verdicts of both roads: `python -m conformance.operators`.

What the table says by hand stays as long as no test contradicts it; what was learned is learned again. A sentence
(`why`, `fix`) that somebody put to a learned condition stays with it as long as its tests stay the same.
"""

from __future__ import annotations

import tempfile
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import click
import onnx

from conformance import cases, probes, verdicts
from conformance.attribute import Blamed, Evidence, attribute
from conformance.features import Example, examples, right_model
from conformance.learn import cover
from conformance.words import reason
from graphkit.knowledge import EFFECTS, Condition, Effect, Feature, Knowledge, Operator, load, write
from graphkit.mnn.process import run_child

TABLE = Path(__file__).parents[1] / "graphkit" / "mnn" / "operators.json"


@dataclass
class Report:
    """What a person should look at after a run.

    contradicted: conditions by hand that a right form meets. exact: forms that nothing general explains. unexplained:
    bad examples without a node to blame. stale: verdicts of graphs that the passes no longer make. alarms: right
    examples with a fault of structure.
    """

    contradicted: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line for each."""
        return [f"{title}: {line}" for title, lines in vars(self).items() for line in sorted(lines)]


def make(old: Knowledge, seen: Sequence[Example], drop: bool = False) -> tuple[Knowledge, Report]:
    """The table that the examples show, and what to look at. drop: leave out what a test contradicts."""
    evidence, report = attribute(seen), Report()
    report.unexplained += [_line(item) for item in evidence.unresolved]
    report.stale += [_line(item) for item in evidence.stale]
    passed = [item for item in seen if item.right and item.road == "graphkit"]
    report.alarms += [f"{item.case}: {item.structural[0]}" for item in passed if item.structural]
    names = {*evidence.counts, *old.known, *(op for op, row in old.operators.items() if _by_hand(row))}
    rows = {op: _row(op, old.operators.get(op), evidence, old.known, report, drop) for op in sorted(names)}
    return replace(old, operators=rows), report


def _line(example: Example) -> str:
    return " ".join(f"{example.road} {example.case}: {example.detail}".split())


def _by_hand(row: Operator) -> list[Condition]:
    return [condition for condition in row.bad if condition.origin == "hand"]


def _said(condition: Condition, op: str, known: Set[str]) -> Condition:
    lacking = not condition.when and condition.effect == "refused" and op.rsplit("::", 1)[-1] not in known
    return replace(condition, why="MNN has no such operator") if lacking else condition


def _row(op: str, old: Operator | None, evidence: Evidence, known: Set[str], report: Report, drop: bool) -> Operator:
    bad, good, lucky = evidence.bad[op], evidence.good(op, True), evidence.good(op, False)
    kept = []
    for condition in _by_hand(old) if old is not None else []:
        against = sum(condition.holds(form) for form in good)
        if against:
            report.contradicted.append(f"{op} {dict(condition.when)}: right in {against} forms")
        if not (against and drop):
            kept.append(condition)
    open_ = [item for item in bad if not any(condition.holds(item.node.features) for condition in kept)]
    together = [item for item in open_ if (good or lucky) and _not_alone(item)]
    open_ = [item for item in open_ if item not in together]
    learned, rest = cover([item.node.features for item in open_], good, lucky)
    for item in learned:
        kept.append(_condition(dict(item.when), [open_[n] for n in item.covers], "learned", evidence.mended))
    for one in [*(open_[number] for number in rest), *together]:
        if not any(condition.holds(one.node.features) for condition in kept):
            kept.append(_condition(_form(one.node.features), [one], "exact", evidence.mended))
            report.exact.append(f"{op}: {one.example.road} {one.example.case}")
    kept = [_said(_curated(condition, old), op, known) for condition in kept]
    counts = {name: number for name, number in evidence.counts[op].items() if number}
    return Operator(_verdict(kept, counts), tuple(kept), counts)


def _not_alone(blamed: Blamed) -> bool:
    """True when the node's own form does not tell why: its neighbours or its body count."""
    return blamed.example.whole or blamed.node.op in ("If", "Loop", "Scan")


def _form(found: Mapping[str, Feature]) -> dict[str, Any]:
    """Features that tell a form from all others, without those that follow from them."""
    kept = {name: found[name] for name in sorted(found) if name.startswith(_TELLING) and found[name] == found[name]}
    return {name: value for name, value in kept.items() if value != "" or not name.startswith("attr.")}


_TELLING = (
    "dtype.",
    "rank.",
    "dynamic.",
    "dims.",
    "attr.",
    "const.",
    "values.",
    "value.",
    "since",
    "nonneg.",
    "given.",
    "written",
)


def _condition(when: dict[str, Any], bad: Sequence[Blamed], origin: str, mended: Set[str]) -> Condition:
    effects = Counter(item.example.effect for item in bad)
    worst = cast(Effect, max(effects, key=lambda name: (effects[name], -EFFECTS.index(name))))
    example = min(
        (item.example.case for item in bad if item.example.effect == worst), key=lambda name: (len(name), name)
    )
    fixes = Counter(
        (item.example.takers or {}).get((item.node.label, item.node.op))
        for item in bad
        if item.example.road == "plain" and item.example.case in mended
    )
    fix = fixes.most_common(1)[0][0] if fixes else None
    return Condition(when, worst, reason(worst, when), fix, origin, len(bad), example)


def _curated(condition: Condition, old: Operator | None) -> Condition:
    for known in old.bad if old is not None else ():
        if dict(known.when) == dict(condition.when) and known.effect == condition.effect:
            generated = known.why == reason(known.effect, known.when)
            return condition if generated else replace(condition, why=known.why)
    return condition


def _verdict(conditions: Sequence[Condition], counts: Mapping[str, int]) -> str:
    if not conditions:
        return "right" if counts.get("right") else "untested"
    if counts.get("right") or all(condition.when for condition in conditions):
        return "conditional"
    return next(condition.effect for condition in conditions if not condition.when)


def known_operators(timeout: float = 60.0) -> frozenset[str]:
    """Operator types that MNN's converter lists as its own; it matches them by name and ignores domains."""
    with tempfile.TemporaryDirectory() as folder:
        request = {"task": "convert", "argv": ["MNNConvert", "-f", "ONNX", "--OP"]}
        ending = run_child(request, Path(folder), timeout)
    lines = ending.log.splitlines()
    start = next((number for number, line in enumerate(lines) if "support Ops" in line), len(lines))
    names = [line.strip() for line in lines[start + 1 :]]
    return frozenset(name for name in names if name and not name.startswith("Total"))


def held_out(old: Knowledge, seen: Sequence[Example]) -> str:
    """How a table that is learned from half of the tests does on the rest, in words."""
    table, _ = make(old, [example for example in seen if _is_kept(example)])
    tests = [item for item in seen if not _is_kept(item) and not item.structural and _is_fresh(item)]
    clear = [item for item in tests if not item.right and not speaks_against(table, item)]
    alarms = [item for item in tests if item.right and speaks_against(table, item)]
    bad = sum(not item.right for item in tests)
    right = len(tests) - bad
    return f"held out: {len(clear)} of {bad} bad graphs are called clear, {len(alarms)} of {right} right ones bad"


def _is_kept(example: Example) -> bool:
    """True for half of the tests, by their names."""
    return zlib.crc32(example.case.encode()) % 2 == 0


def _is_fresh(example: Example) -> bool:
    """False for verdicts of graphs that the passes no longer make."""
    return not attribute([example]).stale


def speaks_against(knowledge: Knowledge, example: Example) -> bool:
    """True when the table has a fault for a node of the example."""
    for node in example.nodes:
        row = knowledge.operators.get(node.op)
        if row is None and (node.op not in knowledge.known):
            return True
        if row is not None and row.first(node.features) is not None:
            return True
    return False


@click.command()
@click.option("--plain", type=click.Path(path_type=Path, exists=True), default=verdicts.FILE, help="Plain road's.")
@click.option("--ours", type=click.Path(path_type=Path, exists=True), default=verdicts.FILE, help="Graphkit's road's.")
@click.option(
    "--right",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="A model that graphkit converts right: its nodes speak against conditions. May be repeated.",
)
@click.option("--drop", is_flag=True, help="Leave out what stands in the table by hand and a test contradicts.")
@click.option(
    "--held-out", "held_out_", is_flag=True, help="Also tell how a table from half the tests does on the other half."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=TABLE, help="Where the table goes.")
@click.option("--jobs", default=2, help="Processes.")
def main(
    plain: Path, ours: Path, right: tuple[Path, ...], drop: bool, held_out_: bool, output: Path, jobs: int
) -> None:
    """Make the table of operators anew from the verdicts of both roads."""
    from importlib.metadata import version

    results = [result for result in verdicts.read(plain) if result.road == "plain"]
    results += [result for result in verdicts.read(ours) if result.road == "graphkit"]
    seen = examples([*cases.runnable(), *probes.probes()], results, jobs)
    seen += map(right_model, right)
    old = load(TABLE) if TABLE.exists() else Knowledge("", frozenset(), {})
    old = replace(old, mnn=version("MNN"), known=known_operators())
    if held_out_:
        click.echo(held_out(old, seen))
    made, report = make(old, seen, drop)
    write(made, output, onnx=onnx.__version__)
    for line in report.lines():
        click.echo(line, err=True)
    click.echo(f"{len(made.operators)} operators, {sum(len(row.bad) for row in made.operators.values())} conditions")


if __name__ == "__main__":
    main()
