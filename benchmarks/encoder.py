"""A 4-layer encoder in MNN, from what every tool makes of it: does our graph run at least as fast?

    python benchmarks/encoder.py [--rounds N] [--output FILE]

Hidden 384, 12 heads, sequence 128, batch 1, random weights, all dims fixed, from both exporters and both spellings of
attention, and as onnxruntime.transformers fuses it. Every tool's file goes through MNNConvert with exact Gelu (as
ours); each round times all files in turn, forwards and backwards by turns, each in a child of its own. Reported: the
median over rounds of the fastest run, and the median of the ratio to ours within each round. "again" is our own file
under another name: what differs less than that differs not at all.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._calls import FIXES_DIMS, PEERS
from benchmarks._runner import Job, Runner
from fixtures import exports
from graphkit.errors import GraphkitError, MnnError
from graphkit.graph import Graph
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import bound_model

KINDS = ("encoder_eager_ts", "encoder_sdpa_ts", "encoder_eager_dyn", "encoder_sdpa_dyn")
FUSED = "encoder, onnxruntime.transformers"
SHAPE = [1, 128]
OURS, AGAIN, PLAIN = "graphkit", "again", "MNNConvert alone"


def main() -> None:
    """Measure and print a markdown table for each export."""
    parser = argparse.ArgumentParser(description="MNN's time for a 4-layer encoder from every tool's file.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    lines = []
    for kind in (*KINDS, FUSED):
        for line in section(kind, args.rounds):
            print(line, flush=True)
            lines.append(line)
    if args.output is not None:
        args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


def section(kind: str, rounds: int) -> list[str]:
    """The table of one export."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source.onnx"
        model = Model.load(
            exports.fused("encoder_eager_ts", heads=12, hidden=384) if kind == FUSED else exports.export(kind)
        )
        _fix_dims(model).save(source)
        files, faults = _arrivals(source, folder)
        times = _times(files, rounds)
        ops = {tool: read_file_info(path).op_total for tool, path in files.items()}
    rows = [f"\n{kind}:\n", "| from | MNN ops | ms | ÷ ours |", "|:--|--:|--:|--:|"]
    for tool in files:
        ratio = statistics.median(a / b for a, b in zip(times[tool], times[OURS], strict=True))
        rows.append(f"| {tool} | {ops[tool]} | {statistics.median(times[tool]):.2f} | {ratio:.2f} |")
    return [*rows, *(f"| {tool} | – | {fault} | – |" for tool, fault in faults.items())]


def _fix_dims(model: Model) -> Model:
    """The model with all dims bound; its output has three, which onnxsim wants to be told."""
    bound = bound_model(model, dict.fromkeys(Graph.of(model).inputs, SHAPE))
    for output in bound.proto.graph.output:
        for _ in range(3):
            output.type.tensor_type.shape.dim.add()
    return bound


def _feeds(names: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Token ids that the vocabulary has; a mask of ones; types of zeros."""
    ids = np.random.default_rng(0).integers(0, 1000, SHAPE)
    values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    return {name: values[name] for name in names}


def _arrivals(source: Path, folder: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """The .mnn file of every tool that gets there, and why the others do not."""
    files: dict[str, Path] = {}
    faults: dict[str, str] = {}
    ours = folder / "ours.mnn"
    convert(source, ours)
    files[OURS] = files[AGAIN] = ours
    runner = Runner(folder)
    for tool in (PLAIN, *PEERS):
        simplified = source
        if tool != PLAIN:
            simplified = folder / f"{len(files)}-{len(faults)}.onnx"
            options: Mapping[str, Any] = {"shapes": _shapes(source)} if tool in FIXES_DIMS else {}
            outcome = runner.one(Job(tool, str(source), str(simplified), options))
            if outcome.failure:
                faults[tool] = outcome.failure[:80]
                continue
        made = simplified.with_suffix(f".{len(files)}.mnn")
        try:
            run_converter(simplified, made, timeout=300)
            worker.run(made, _feeds(_names(made)))
            files[tool] = made
        except GraphkitError as error:
            faults[tool] = error.message[:80]
    return files, faults


def _shapes(source: Path) -> dict[str, list[int]]:
    return dict.fromkeys(Graph.of(Model.load(source)).inputs, SHAPE)


def _names(path: Path) -> tuple[str, ...]:
    return tuple(value.name for value in read_file_info(path).inputs)


def _times(files: Mapping[str, Path], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of the fastest of 20 runs in one child, for every file in every round."""
    times: dict[str, list[float]] = {tool: [] for tool in files}
    for number in range(rounds):
        for tool in list(files) if number % 2 == 0 else reversed(list(files)):
            seconds = worker.latency(files[tool], _feeds(_names(files[tool])), repeat=20)
            times[tool].append(1000 * min(seconds))
    return times


if __name__ == "__main__":
    try:
        main()
    except MnnError as error:
        sys.exit(f"{error}: {[fault.node for fault in error.faults]}")
