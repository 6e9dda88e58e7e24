"""Faults planted in .mnn files, and faults that MNN has by nature: are they found exactly, and none invented?

    python benchmarks/planted.py [-o FOLDER] [--only planted|natural] [MODEL …]

Each model is converted, faults are written into the .mnn file (`tests/planted.py`), and `graphkit bisect` gets the ONNX
model, the file and natural inputs. Found exactly: the faults named are those planted, each at its MNN operator, its
ONNX node and the kind "fault in the file" (or of quantization); invented: any other. The sound file of each model must
have none. The natural faults are those that MNN 3.6.1 has on the plain road, without our passes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._fault_cases import SUBJECTS
from benchmarks._faults import KINDS, MATMUL, At, Case, Feeds, Subject, plants
from benchmarks._naturals import NATURALS, Natural
from benchmarks._quant import RESULTS, head
from benchmarks._report import Bar, Table
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.verification.bisect.answer import BisectResult, Fault
from graphkit.verification.bisect.locate_faults import bisect_layers
from graphkit.verification.bisect.regions import places

_STEPS = 4  # from the value that an MNN operator is named after back to the node with the weights


@dataclass(frozen=True)
class Row:
    """One bisection and what the code that judges it says: faults that were planted, found at the right place, and
    others; `said` is the answer's first line; `why` is empty when everything is right."""

    model: str
    kind: str
    what: str
    planted: int
    found: int
    invented: int
    seconds: float
    said: str
    why: str = ""

    @property
    def ok(self) -> bool:
        """All found and nothing else."""
        return not self.why and self.found == self.planted and not self.invented

    def cells(self) -> list[str]:
        """The cells of the table."""
        verdict = "exactly" if self.ok else f"**{self.why or 'no'}**"
        if not self.planted:
            verdict = "nothing, right" if self.ok else verdict
        counts = [str(self.planted), str(self.found), str(self.invented)]
        return [self.model, self.kind, self.what, *counts, verdict, f"{self.seconds:.1f}"]


def rows(subject: Subject, folder: Path) -> list[Row]:
    """All rows of one model."""
    source = subject.source()
    model = source if subject.passes is None else optimize(source, subject.passes, verify="none").model
    usual = subject.feeds()
    files: dict[int, Path] = {}
    made = []
    for case in (Case("nothing planted", "–"), Case("nothing planted", "W8", bits=8), *subject.cases(model)):
        if case.bits not in files:
            options = {"weightQuantBits": case.bits} if case.bits else {}
            model, files[case.bits] = plants.converted(model, folder, f"{subject.name}-{case.bits}", **options)
        made.append(_row(subject, case, model, files[case.bits], case.feeds or usual))
        print(" | ".join(made[-1].cells()), "|", made[-1].said, flush=True)
    return made


def _row(subject: Subject, case: Case, model: Model, good: Path, feeds: Sequence[Feeds]) -> Row:
    bad = plants.planted(good, good.with_name("planted.mnn"), *case.plants)
    start = time.perf_counter()
    try:
        result = bisect_layers(model, bad, inputs=feeds, suggestions=False)
    except GraphkitError as error:
        return Row(subject.name, case.kind, case.what, len(case.at), 0, 0, time.perf_counter() - start, "", str(error))
    seconds = time.perf_counter() - start
    hits = [at for at in case.at if any(_is_at(model, fault, at) for fault in result.faults)]
    others = [fault for fault in result.faults if not any(_is_at(model, fault, at) for at in case.at)]
    why = "; ".join(str(fault)[:160] for fault in others)
    if not case.at and not result.ok:
        why = why or result.answer
    if case.unseen and not why and not _unseen(model, bad, feeds[: case.unseen]):
        why = "the fault shows at the first shape too"
    return Row(subject.name, case.kind, case.what, len(case.at), len(hits), len(others), seconds, result.answer, why)


def _is_at(model: Model, fault: Fault, at: At) -> bool:
    """True when a fault is told of this MNN operator, of the ONNX node behind it, and as one of the file."""
    right_kind = fault.kind == "file" or (fault.kind == "quantization" and fault.found.alone == "right")
    right_op = fault.row is not None and (fault.row.mnn_op == at.mnn_op or f"'{at.mnn_op}'" in fault.found.reason)
    return right_kind and right_op and fault.op == at.op and fault.node == _behind(model, at)


def _behind(model: Model, at: At) -> str:
    """Label of the nearest node of the type, from the value that the MNN operator is named after backwards."""
    for _, graph in places(Graph.of(model)):
        names = [at.mnn_op.removesuffix(MATMUL)]
        for _ in range(_STEPS):
            nodes = [node for name in names if (node := graph.producer(name)) is not None]
            label = next((node.label for node in nodes if node.op == at.op), None)
            if label is not None:
                return label
            names = [name for node in nodes for name in node.inputs]
    return ""


def _unseen(model: Model, bad: Path, feeds: Sequence[Feeds]) -> bool:
    """True when the file is right on these samples."""
    return bisect_layers(model, bad, inputs=feeds, suggestions=False).ok


def natural_row(natural: Natural) -> tuple[list[str], bool]:
    """A line of the second table, and whether the answer is the right one."""
    start = time.perf_counter()
    result: BisectResult = natural.bisect()
    seconds = time.perf_counter() - start
    found = [(fault.node, fault.op, fault.kind) for fault in result.faults]
    right = found == [(natural.node, natural.op, natural.kind)]
    tried = [*(fault.suggestion for fault in result.faults), result.instead]
    says = next((one.text for one in tried if one is not None and one.works), "–")
    cells = [natural.name, "exactly" if right else "**no**", f"`{result.answer}`", says, f"{seconds:.0f}"]
    print(" | ".join(cells), flush=True)
    return cells, right


def page(planted: Sequence[Row], naturals: Sequence[tuple[list[str], bool]], where: str) -> str:
    """The page in Markdown."""
    right, faults = sum(row.ok for row in planted), sum(row.planted for row in planted)
    found, invented = sum(row.found for row in planted), sum(row.invented for row in planted)
    bars = [
        Bar("planted faults are found exactly, all of them, none invented",
            f"{found} of {faults} found, {invented} invented; {right} of {len(planted)} rows right",
            right == len(planted)),
        Bar("natural faults on the plain road: the right node and kind",
            f"{sum(ok for _, ok in naturals)} of {len(naturals)}", all(ok for _, ok in naturals)),
    ]  # fmt: skip
    header = ["model", "fault", "what", "planted", "found", "invented", "verdict", "s"]
    missing = [
        f"- {subject.name}: {', '.join(kind for kind in KINDS if kind not in _kinds(planted, subject.name))}"
        for subject in SUBJECTS
    ]
    parts = [
        where.strip(), "\n".join(bar.markdown() for bar in bars),
        "## Planted\n\nSeconds are wall time of a whole bisection without suggestions, on a machine with other work.",
        Table(header, [row.cells() for row in planted]).markdown(),
        "Not planted, as the model has nothing of the kind (no mask, no If, no operator for it):\n\n"
        + "\n".join(line for line in missing if not line.endswith(": ")),
        "## Natural, on the plain road\n\nNo passes of ours; the first line of the answer, and what it says avoids the "
        "fault (tried on the whole model).",
        Table(["model", "right", "the first line", "avoided by", "s"], [cells for cells, _ in naturals]).markdown(),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _kinds(planted: Sequence[Row], name: str) -> set[str]:
    return {row.kind for row in planted if row.model == name}


def main() -> None:
    """Measure the named models, or all, and write the page."""
    parser = argparse.ArgumentParser(description="Planted and natural faults: found exactly, none invented?")
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--only", choices=["planted", "natural"])
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    planted: list[Row] = []
    for subject in SUBJECTS:
        if args.only != "natural" and (not args.models or subject.name in args.models):
            with tempfile.TemporaryDirectory() as name:
                planted += rows(subject, Path(name))
    chosen = [one for one in NATURALS if args.only != "planted" and (not args.models or one.name in args.models)]
    naturals = [natural_row(one) for one in chosen]
    if not args.models and not args.only:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "planted.md").write_text(
            page(planted, naturals, head("Planted and natural faults", "python benchmarks/planted.py")),
            encoding="utf-8",
        )
    if not all(row.ok for row in planted) or not all(right for _, right in naturals):
        sys.exit(1)


if __name__ == "__main__":
    main()
