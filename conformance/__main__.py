"""`python -m conformance`: run the backend tests down a road and say what came of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import click

from conformance import cases, pool, probes, roads, table, verdicts

_ENOUGH = 85.0  # percent of the backend tests that must be right on graphkit's road


@click.command()
@click.option("--road", "chosen", type=click.Choice(["plain", "graphkit", "check"]), multiple=True)
@click.option("--only", default="*", help="Tests whose name fits this pattern; several with commas.")
@click.option("--step", default=1, type=click.IntRange(min=1), help="Every N-th of them.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the verdicts go (JSON).")
@click.option("--jobs", default=2, help="Processes.")
@click.option("--publish", is_flag=True, help="Write conformance/verdicts.json and docs/conformance.md.")
@click.option("--strict", is_flag=True, help="End 1 unless graphkit's road is safe, right enough, and as check says.")
def main(
    chosen: tuple[roads.Road, ...], only: str, step: int, output: Path | None, jobs: int, publish: bool, strict: bool
) -> None:
    """Run ONNX's backend tests, and our probes, through MNN."""
    chosen = chosen or ("graphkit",)
    patterns = only.split(",")
    everything = [*cases.runnable(), *probes.probes()]
    tests = [case for case in everything if any(fnmatch(case.name, p) for p in patterns)][::step]
    results = run([(case, road) for road in chosen for case in tests], jobs)
    for road in chosen:
        counts = Counter(result.verdict for result in results if result.road == road)
        click.echo(f"{road}: {sum(counts.values())} cases: {dict(counts)}")
    if output is not None:
        output.write_text(json.dumps([asdict(result) for result in results], indent=0) + "\n", encoding="utf-8")
    if publish:
        verdicts.write(results, verdicts.FILE)
        table.publish(results)
    found = problems(results)
    for line in found if strict else ():
        click.echo(f"error: {line}", err=True)
    raise click.exceptions.Exit(1 if strict and found else 0)


def run(work: Sequence[roads.Job], jobs: int) -> list[roads.Result]:
    """Do all the work; tell on stderr what is not right. Results are sorted by road and test."""
    results: list[roads.Result] = []
    for done, result in enumerate(pool.run(roads.travel, work, _lost, jobs), 1):
        results.append(result)
        if result.verdict != "right":
            click.echo(f"{done}/{len(work)} {result.road} {result.case}: {result.verdict}: {result.detail}", err=True)
    return sorted(results, key=lambda result: (result.road, result.case))


def problems(results: Sequence[roads.Result]) -> list[str]:
    """What must not be: results on graphkit's road that are neither right nor refused, too few right ones, and tests
    of which `check` says something else than conversion does.
    """
    roads_ = verdicts.by_road(results)
    ours = roads_.get("graphkit", {})
    found = [f"{name}: {result.verdict}: {result.detail}" for name, result in sorted(ours.items()) if not _safe(result)]
    tests = [result for name, result in ours.items() if not name.startswith(probes.PREFIX)]
    share = 100 * sum(result.verdict == "right" for result in tests) / len(tests) if tests else 100.0
    if share < _ENOUGH:
        found.append(f"{share:.1f} % right, which is under {_ENOUGH:g} %")
    clear, alarms = table.disagreements(roads_)
    found += [f"{name}: check says that nothing is left, and conversion does not get it right" for name in clear]
    return found + [f"{name}: check says that faults are left, and conversion gets it right" for name in alarms]


def _safe(result: roads.Result) -> bool:
    return result.verdict == "right" or (result.verdict == "refused" and bool(result.nodes))


def _lost(job: roads.Job, why: str) -> roads.Result:
    case, road = job
    return roads.Result(case.name, road, "crashed", why)


if __name__ == "__main__":
    main()
