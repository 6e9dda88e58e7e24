"""What blocks of queries do to MNN's memory and time, and what a split attention costs in an encoder.

    python benchmarks/attention.py [chunks|encoder] [--rounds N] [--lengths 1024,2048,4096]

Files take turns, round by round; each run is a process of its own, whose child is the only one that loads MNN: the
peak of that child's resident memory is what `getrusage` says of it. Reported are medians over rounds, of the fastest
run of each child for times. A/A is a file against itself: what differs less than that differs not at all.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx

from graphkit.mnn import worker
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.testing import random_feeds

HEADS, SIZE = 8, 64
CHUNKS = (0, 128, 256, 512, 1024)
LAYERS, WIDTH, WIDE, TOKENS, ENCODER_HEADS = 4, 384, 1536, 128, 12
_MEGABYTE = 1024  # getrusage counts kilobytes

Measured = dict[str, list[tuple[float, float]]]


def attention(length: int, *, causal: bool) -> onnx.ModelProto:
    """One FlashAttention of a custom domain on [1, length, heads·size]."""
    shape = f"float[1,{length},{HEADS * SIZE}]"
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18, "custom": 1]> g ({shape} q, {shape} k, {shape} v) => ({shape} y) '
        f"{{ y = custom.FlashAttention <num_heads: int = {HEADS}, causal: int = {int(causal)}> (q, k, v) }}"
    )


class _Encoder:
    """An encoder (pre-norm, exact Gelu, random weights) whose attention is one operator or plain ones."""

    def __init__(self, *, eager: bool) -> None:
        self.eager = eager
        self.lines: list[str] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, name: str, array: object) -> str:
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def linear(self, x: str, name: str, columns: int, rows: int) -> str:
        weight = self.random.standard_normal((columns, rows)) * columns**-0.5
        w = self.constant(f"{name}_w", weight.astype(np.float32))
        b = self.constant(f"{name}_b", self.random.standard_normal(rows).astype(np.float32) * np.float32(0.1))
        self.lines.append(f"{name}_m = MatMul({x}, {w}) {name} = Add({name}_m, {b})")
        return name

    def norm(self, x: str, name: str) -> str:
        scale = self.constant(f"{name}_s", np.ones(WIDTH, np.float32))
        bias = self.constant(f"{name}_b", np.zeros(WIDTH, np.float32))
        self.lines.append(f"{name} = LayerNormalization<axis: int = -1>({x}, {scale}, {bias})")
        return name

    def attend(self, name: str, q: str, k: str, v: str) -> str:
        if not self.eager:
            heads = f"num_heads: int = {ENCODER_HEADS}"
            self.lines.append(f"{name} = custom.FlashAttention<{heads}>({q}, {k}, {v})")
            return name
        shape = self.constant(f"{name}_split", [0, 0, ENCODER_HEADS, WIDTH // ENCODER_HEADS])
        for x, perm in ((q, "0,2,1,3"), (k, "0,2,3,1"), (v, "0,2,1,3")):
            self.lines.append(f"{x}_r = Reshape({x}, {shape}) {x}_t = Transpose<perm = [{perm}]>({x}_r)")
        root = self.constant(f"{name}_root", np.float32((WIDTH // ENCODER_HEADS) ** 0.5))
        merged = self.constant(f"{name}_merge", [0, 0, WIDTH])
        self.lines.append(
            f"{name}_s = MatMul({q}_t, {k}_t) {name}_d = Div({name}_s, {root}) "
            f"{name}_p = Softmax<axis: int = -1>({name}_d) {name}_o = MatMul({name}_p, {v}_t) "
            f"{name}_b = Transpose<perm = [0,2,1,3]>({name}_o) {name} = Reshape({name}_b, {merged})"
        )
        return name

    def gelu(self, x: str) -> str:
        numbers = {"root": 2**0.5, "one": 1, "half": 0.5}
        root, one, half = (self.constant(f"{x}_{name}", np.float32(n)) for name, n in numbers.items())
        self.lines.append(
            f"{x}_d = Div({x}, {root}) {x}_e = Erf({x}_d) {x}_a = Add({x}_e, {one}) {x}_g = Mul({x}, {x}_a) "
            f"{x}_y = Mul({x}_g, {half})"
        )
        return f"{x}_y"

    def layer(self, x: str, n: int) -> str:
        normed = self.norm(x, f"n{n}a")
        q, k, v = (self.linear(normed, f"{part}{n}", WIDTH, WIDTH) for part in "qkv")
        y = self.linear(self.attend(f"att{n}", q, k, v), f"o{n}", WIDTH, WIDTH)
        self.lines.append(f"r{n}a = Add({x}, {y})")
        wide = self.gelu(self.linear(self.norm(f"r{n}a", f"n{n}b"), f"up{n}", WIDTH, WIDE))
        self.lines.append(f"r{n} = Add(r{n}a, {self.linear(wide, f'down{n}', WIDE, WIDTH)})")
        return f"r{n}"

    def model(self) -> onnx.ModelProto:
        value = "x"
        for n in range(LAYERS):
            value = self.layer(value, n)
        shape = f"float[1,{TOKENS},{WIDTH}]"
        model = onnx.parser.parse_model(
            f'<ir_version: 8, opset_import: ["": 18, "custom": 1]> g ({shape} x) => ({shape} {value}) '
            f"{{ {' '.join(self.lines)} }}"
        )
        model.graph.initializer.extend(self.weights)
        return model


def encoder(*, eager: bool) -> onnx.ModelProto:
    """A small encoder with attention as an exporter writes it, or as one FlashAttention in each layer."""
    return _Encoder(eager=eager).model()


def measure(files: Mapping[str, Path], feeds: Path, rounds: int, repeat: int) -> Measured:
    """(milliseconds, peak megabytes) of each file in each round, in turns."""
    found: Measured = {name: [] for name in files}
    for number in range(rounds):
        for name in list(files) if number % 2 == 0 else reversed(files):
            command = [sys.executable, __file__, "once", str(files[name]), str(feeds), str(repeat)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            milliseconds, megabytes = json.loads(printed)
            found[name].append((milliseconds, megabytes))
    return found


def once(file: str, feeds: str, repeat: int) -> None:
    """Run one file in a child; print milliseconds of the fastest run and the child's peak in megabytes."""
    with np.load(feeds) as stored:
        seconds = worker.latency(file, dict(stored), repeat=repeat, warmup=1)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / _MEGABYTE
    print(json.dumps([1000 * min(seconds), peak]))


def chunks(lengths: Sequence[int], rounds: int) -> None:
    """Print the table of blocks: peak memory and time for each length and number of queries in a block."""
    print("| keys | causal | block | MNN ops | peak, MB | time, ms |\n|--:|:--|--:|--:|--:|--:|", flush=True)
    for length in lengths:
        for causal in (False, True):
            for chunk, cells in _chunked(length, rounds, causal=causal).items():
                print(f"| {length} | {'yes' if causal else 'no'} | {chunk or 'all'} | {cells} |", flush=True)


def _chunked(length: int, rounds: int, *, causal: bool) -> dict[int, str]:
    source = attention(length, causal=causal)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(source, folder / "a.onnx")
        np.savez(folder / "feeds.npz", **random_feeds(Model.from_proto(source)))
        files = {str(n): folder / f"{n}.mnn" for n in CHUNKS if n < length}
        for n, file in files.items():
            convert(folder / "a.onnx", file, passes=f"split-attention{{chunk={n}}},mnn", verify="none")
        found = measure(files, folder / "feeds.npz", rounds, repeat=3)
        cells = {}
        for n, runs in found.items():
            time, peak = (statistics.median(side) for side in zip(*runs, strict=True))
            cells[int(n)] = f"{read_file_info(files[n]).op_total} | {peak:.0f} | {time:.0f}"
        return cells


def encoders(rounds: int) -> None:
    """Print the table of encoders: attention as exporters write it against the split operator."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for eager in (False, True):
            onnx.save(encoder(eager=eager), folder / f"{'eager' if eager else 'flash'}.onnx")
        files = {kind: folder / f"{kind.replace(' ', '-')}.mnn" for kind in ("eager, plain", "eager", "flash")}
        convert(folder / "eager.onnx", files["eager, plain"], passes=None, verify="none")
        for kind in ("eager", "flash"):
            convert(folder / f"{kind}.onnx", files[kind], verify="none")
        feeds = random_feeds(Model.from_proto(encoder(eager=True)))
        np.savez(folder / "feeds.npz", **feeds)
        results = {kind: next(iter(worker.run(file, feeds).outputs.values())) for kind, file in files.items()}
        files["eager, A/A"] = files["eager"]
        found = measure(files, folder / "feeds.npz", rounds, repeat=20)
        print("| encoder | MNN ops | time, ms | ÷ eager | differs by |\n|:--|--:|--:|--:|--:|")
        for kind, runs in found.items():
            ratio = statistics.median(ours[0] / eager[0] for ours, eager in zip(runs, found["eager"], strict=True))
            error = float(np.abs(results.get(kind, results["eager"]) - results["eager, plain"]).max())
            time = statistics.median(run[0] for run in runs)
            print(f"| {kind} | {read_file_info(files[kind]).op_total} | {time:.2f} | {ratio:.3f} | {error:.1e} |")


def main() -> None:
    """Measure and print markdown tables."""
    if sys.argv[1:2] == ["once"]:
        once(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description="Memory and time of split attention in MNN.")
    parser.add_argument("what", nargs="?", choices=("chunks", "encoder"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--lengths", default="1024,2048,4096")
    args = parser.parse_args()
    if args.what != "encoder":
        chunks([int(length) for length in args.lengths.split(",")], args.rounds)
    if args.what != "chunks":
        encoders(args.rounds)


if __name__ == "__main__":
    main()
