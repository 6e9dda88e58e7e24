"""500 MB of float32 MatMul weights to INT8: ours and onnxruntime's MatMulNBits quantizer on the same file.

    python benchmarks/quant_speed.py [--rounds N] [--megabytes N] [-o FOLDER]

From file to file, each in a child of its own that has imported and run the tool before; the tools take turns, the
ratios are made within a round. Memory is RssAnon, sampled from outside every millisecond in a round of its own.
"Error" is the relative L2 of the outputs in onnxruntime against the float model's, the same for both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._quant import RESULTS, head, table
from benchmarks._report import Bar, median, seconds, times
from benchmarks._runner import Job, Outcome, Runner
from fixtures import chains
from graphkit.model import Model
from graphkit.quant.metric import relative_l2
from graphkit.runtime import Session

FASTER = 4.0
MEMORY = 150e6  # bytes, beside one layer
LAYER = 4 * chains.WEIGHT_SIDE**2
OURS, BLOCKS, PEER = "graphkit, one scale a channel", "graphkit, blocks of 128", "onnxruntime, blocks of 128"
CALLS: Mapping[str, tuple[str, int]] = {
    OURS: ("graphkit int8", 0),
    PEER: ("onnxruntime int8", 128),
    BLOCKS: ("graphkit int8", 128),
}


def one(folder: Path, name: str, source: Path, *, watch: bool = False) -> Outcome:
    """One call in a child of its own; what it wrote is `folder/NAME.onnx`."""
    tool, block = CALLS[name]
    target = folder / f"{tool.split()[0]}{block}.onnx"
    runner = Runner(folder, _warmup(folder), timeout=900)
    return runner.one(Job(tool, str(source), str(target), {"block": block}), watch=watch)


def _warmup(folder: Path) -> Path:
    """A MatMul to run once before anything is timed."""
    path = folder / "warmup.onnx"
    if not path.exists():
        rng = np.random.default_rng(0)
        weight = onnx.numpy_helper.from_array(rng.standard_normal((256, 256)).astype(np.float32), "w")
        info = onnx.helper.make_tensor_value_info
        value, result = info("x", onnx.TensorProto.FLOAT, [1, 256]), info("y", onnx.TensorProto.FLOAT, [1, 256])
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [value], [result], [weight]
        )
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def error(source: Path, made: Path) -> float:
    """Relative L2 of what a quantized file computes."""
    x = np.random.default_rng(1).standard_normal((1, chains.WEIGHT_SIDE)).astype(np.float32)
    found = []
    for path in (source, made):
        with Session(Model.load(path)) as session:
            found.append(next(iter(session.run({"x": x}).values())))
    return relative_l2(found[0], found[1])


def main() -> None:
    """Measure, print and write the table."""
    parser = argparse.ArgumentParser(description="Quantizing 500 MB, ours and onnxruntime's.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = {name: [] for name in CALLS}
    memory, errors = {}, {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source.onnx"
        count = chains.weights(args.megabytes, source, external=False)
        for number in range(args.rounds):
            for call in list(CALLS) if number % 2 == 0 else reversed(list(CALLS)):
                outcomes[call].append(one(folder, call, source))
                last = outcomes[call][-1]
                print(f"{call}: {last.failure or f'{last.cpu:.2f} CPU s, {last.wall:.2f} s'}", flush=True)
        for call, (tool, block) in CALLS.items():
            watched = one(folder, call, source, watch=True)
            memory[call] = watched.anon_peak or 0, (watched.anon_peak or 0) - (watched.anon_before or 0)
            errors[call] = error(source, folder / f"{tool.split()[0]}{block}.onnx")
            print(f"{call}: {memory[call]}, error {errors[call]:.2e}", flush=True)
    page = _page(args.megabytes, count, outcomes, memory, errors)
    print(page)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "quant_speed.md").write_text(page, encoding="utf-8")


def _ratio(outcomes: Mapping[str, list[Outcome]], call: str, kind: str) -> float:
    """Median over rounds of the peer's time over ours."""
    return median(getattr(p, kind) / getattr(o, kind) for p, o in zip(outcomes[PEER], outcomes[call], strict=True))


def _page(
    megabytes: int,
    count: int,
    outcomes: Mapping[str, list[Outcome]],
    memory: Mapping[str, tuple[int, int]],
    errors: Mapping[str, float],
) -> str:
    rows = []
    for call, found in outcomes.items():
        failure = next((outcome.failure for outcome in found if outcome.failure), "")
        cells = [seconds(median(getattr(outcome, kind) for outcome in found)) for kind in ("cpu", "wall")]
        ratios = [times(_ratio(outcomes, call, kind)) for kind in ("cpu", "wall")]
        peak, added = memory[call]
        rows.append(
            [failure or call, *cells, *ratios, f"{peak / 1e6:,.0f}", f"{added / 1e6:,.0f}", f"{errors[call]:.1e}"]
        )
    header = ("", "CPU s", "wall s", "onnxruntime's CPU ÷", "wall ÷", "peak MB", "added MB", "error")
    bars = [
        Bar(
            f"at least {FASTER:g} times faster than onnxruntime, one scale a channel, CPU and wall",
            f"{times(_ratio(outcomes, OURS, 'cpu'))} and {times(_ratio(outcomes, OURS, 'wall'))}",
            min(_ratio(outcomes, OURS, kind) for kind in ("cpu", "wall")) >= FASTER,
        ),
        Bar(
            f"memory of one layer ({LAYER / 1e6:.0f} MB as floats) and 150 MB at most",
            f"{max(memory[OURS][0], memory[BLOCKS][0]) / 1e6:,.0f} MB in all, with the interpreter and its libraries",
            max(memory[OURS][0], memory[BLOCKS][0]) <= LAYER + MEMORY,
        ),
    ]
    title = head("Quantizing 500 MB", "python benchmarks/quant_speed.py")
    what = (
        f"{count} MatMuls of {chains.WEIGHT_SIDE} × {chains.WEIGHT_SIDE}, {megabytes} MB of float32 weights, to INT8."
    )
    text = f"{what} {(__doc__ or '').split(chr(10) * 2, 2)[2]}"
    listed = "\n".join(bar.markdown() for bar in bars)
    return f"{title}\n{text}\n{table(header, rows)}\n\n{listed}\n"


if __name__ == "__main__":
    main()
