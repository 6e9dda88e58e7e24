"""graphkit and its peers side by side, in one run: speed, growth, weights, nodes, MNN operators.

`python benchmarks/optimize.py [--quick] [--only SECTION] [-o FOLDER]` prints the tables. A full run
writes `optimize.md` and `optimize.json` to `benchmarks/results`, any other only to the folder it is given.
Exits with 1 when a result is wrong or a bar is missed. Needs `pip install -e '.[bench,models]'`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _chain, _mnn, _nodes, _weights
from benchmarks._bench import QUICK, Bench, Sizes, say
from benchmarks._report import Section, machine, page

SECTIONS: dict[str, Callable[[Bench], Section]] = {
    "chain": _chain.chain,
    "scaling": _chain.scaling,
    "weights": _weights.weights,
    "nodes": _nodes.nodes,
    "mnn": _mnn.mnn,
}
RESULTS = Path(__file__).with_name("results")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit code."""
    parser = argparse.ArgumentParser(description="Measure graphkit and its peers side by side.")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round, bars not judged")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="this section (may be repeated)")
    parser.add_argument("-o", "--output", type=Path, help="folder for optimize.md and optimize.json")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="graphkit-bench-") as folder:
        bench = Bench(Path(folder), QUICK if options.quick else Sizes())
        sections = run(bench, options.only or list(SECTIONS))
    output = options.output or (None if options.quick or options.only else RESULTS)
    report(sections, command(options), output)
    return int(any(section.faults or not all(bar.met for bar in section.bars) for section in sections))


def run(bench: Bench, names: Sequence[str]) -> list[Section]:
    """Measure sections one after another."""
    sections = []
    for name in names:
        start = time.perf_counter()
        say(f"{name} …")
        sections.append(SECTIONS[name](bench))
        say(f"{name}: {time.perf_counter() - start:.0f} s")
    return sections


def command(options: argparse.Namespace) -> str:
    """The command line again, without the folder."""
    words = ["python benchmarks/optimize.py", *(["--quick"] if options.quick else [])]
    return " ".join([*words, *(f"--only {name}" for name in options.only or ())])


def report(sections: Sequence[Section], line: str, output: Path | None) -> None:
    """Print the tables and, with a folder, write them and the numbers behind them."""
    date, facts = datetime.date.today().isoformat(), machine()
    text = page(sections, facts, date, line)
    sys.stdout.write(text)
    if output is None:
        return
    output.mkdir(parents=True, exist_ok=True)
    (output / "optimize.md").write_text(text, encoding="utf-8")
    found = {section.name: section.to_dict() for section in sections}
    document = {"date": date, "command": line, "machine": facts, "sections": found}
    text = json.dumps(document, indent=1, ensure_ascii=False)
    (output / "optimize.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
