"""What our passes do to MNN's own time: the same models from MNNConvert alone and from `graphkit convert`.

    python benchmarks/speed.py [--rounds N]

Each round runs both files in turn, each in a child of its own (A B B A …), on the same input, results read. Reported
are the median over rounds of the fastest run of each child, and the median of the ratios round by round. A/A is a file
against itself: what differs less than that differs not at all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.models import MODELS, Model, samples
from fixtures import naturals
from graphkit.errors import MnnError
from graphkit.mnn import worker
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.road import convert

CHOSEN = ("minilm_eager_ts", "minilm_eager_dyn", "magika", "ppocr4_rec", "ppocr4_det", "orientation", "silero_vad")


def fastest(path: Path, feeds: naturals.Feeds) -> float:
    """Milliseconds of the fastest of 20 runs in one child."""
    return 1000 * min(worker.latency(path, feeds, repeat=20))


def row(model: Model, rounds: int) -> list[str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as name:
        plain, ours = Path(name) / "plain.mnn", Path(name) / "ours.mnn"
        convert(model.file(), plain, passes=None, verify="none")  # with exact Gelu, as ours: equal work
        convert(model.file(), ours, inputs=samples(model))
        feeds = samples(model)[0]
        pairs, control = [], []
        for number in range(rounds):
            order = (plain, ours) if number % 2 == 0 else (ours, plain)
            times = {path: fastest(path, feeds) for path in order}
            pairs.append((times[plain], times[ours]))
            control.append(fastest(plain, feeds) / times[plain])
        ops = [str(read_file_info(path).op_total) for path in (plain, ours)]
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(after / before for before, after in pairs)
    noise = statistics.median(abs(value - 1) for value in control)
    return [model.name, f"{ops[0]} → {ops[1]}", f"{a:.2f}", f"{b:.2f}", f"{ratio:.2f}", f"±{noise:.2f}"]


def main() -> None:
    """Measure and print a markdown table."""
    parser = argparse.ArgumentParser(description="MNN's time for plain and for optimized files.")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    print("| model | MNN ops | plain, ms | ours, ms | ours ÷ plain | A/A |\n|:--|--:|--:|--:|--:|--:|", flush=True)
    for model in MODELS:
        if model.name not in CHOSEN:
            continue
        try:
            print(f"| {' | '.join(row(model, args.rounds))} |", flush=True)
        except MnnError as error:
            print(f"| {model.name} | {error.message} | – | – | – | – |", flush=True)


if __name__ == "__main__":
    main()
