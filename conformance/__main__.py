"""`python -m conformance`: run the backend tests down a road and say what came of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path

import click

from conformance import cases, pool, roads


@click.command()
@click.option("--road", "chosen", type=click.Choice(["plain", "graphkit"]), multiple=True, default=["graphkit"])
@click.option("--only", default="*", help="Tests whose name fits this pattern; several with commas.")
@click.option("--step", default=1, help="Every N-th of them.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the verdicts go (JSON).")
@click.option("--jobs", default=2, help="Processes.")
def main(chosen: tuple[roads.Road, ...], only: str, step: int, output: Path | None, jobs: int) -> None:
    """Run ONNX's backend tests through MNN."""
    patterns = only.split(",")
    tests = [case for case in cases.runnable() if any(fnmatch(case.name, p) for p in patterns)][::step]
    work = [(case, road) for road in chosen for case in tests]
    results = []
    for done, result in enumerate(pool.run(roads.travel, work, _lost, jobs), 1):
        results.append(result)
        if result.verdict != "right":
            click.echo(f"{done}/{len(work)} {result.road} {result.case}: {result.verdict}: {result.detail}", err=True)
    results.sort(key=lambda result: (result.road, result.case))
    for road in chosen:
        counts = Counter(result.verdict for result in results if result.road == road)
        click.echo(f"{road}: {sum(counts.values())} cases: {dict(counts)}")
    if output is not None:
        output.write_text(json.dumps([asdict(result) for result in results], indent=0) + "\n", encoding="utf-8")


def _lost(job: roads.Job, why: str) -> roads.Result:
    case, road = job
    return roads.Result(case.name, road, "crashed", why)


if __name__ == "__main__":
    main()
