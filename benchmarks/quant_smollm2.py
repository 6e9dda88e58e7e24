"""SmolLM2 (135 million weights) with 4 bits in blocks of 64: ours and MNN's own quantizer, in one run.

    python benchmarks/quant_smollm2.py [--evaluation N] [--calibration N] [-o FILE]

Judged is the shipped .mnn file, run by MNN, on passages of 128 tokens that nothing was calibrated or tuned on
(fixtures/sentences.py, part "evaluation"; calibration takes the other part): perplexity (the exponential of the mean
negative log-likelihood of each next token), and how often its likeliest next token is the one of the float model in
onnxruntime. In all files the table of embeddings stays float and the head, whose weights are the same numbers, has
4 bits like every other product.

The weights come from a GGUF file with 4 bits (Q4_1, blocks of 32; the table Q8_0), as floats: "float" is the model with
those weights. Needs the extras `models` and `bench` (gguf, accelerate), 5 GB of memory and 4 GB of disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._quant import RESULTS, Array, Feeds, head, outputs, save, table
from benchmarks._report import Bar
from fixtures import exports
from fixtures.fetch import fetch
from fixtures.sentences import sentences
from graphkit.mnn.convert import run_converter
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.quant.options import QuantizeOptions
from graphkit.quantizing import Data, Job, quantize
from graphkit.runtime import Session

LENGTH = 128  # tokens of a passage
SENTENCES = 4000  # of each part: more than any run needs
BITS, BLOCK = 4, 64
TOGETHER = 4  # passages that MNN runs in one child: the logits of one are 25 MB
ROWS = 16  # logits taken as float64 at a time
SYMMETRIC, HQQ, OURS = "MNN, symmetric", "MNN, hqq", "ours, gptq"


@dataclass(frozen=True)
class Judged:
    """What logits say about passages.

    likeliest: int64 [passages, tokens - 1], the token of the largest logit. losses: float64 of the same shape, the
    negative log-likelihood, in nats, of the token that comes next.
    """

    likeliest: Array
    losses: Array

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss."""
        return float(np.exp(self.losses.mean()))

    def agreement(self, other: Judged) -> float:
        """Share of the positions where both hold the same token likeliest."""
        return float((self.likeliest == other.likeliest).mean())

    @classmethod
    def of(cls, logits: Iterator[Array], passages: Sequence[Feeds]) -> Judged:
        """From logits float32 [1, tokens, vocabulary] of each passage, one at a time."""
        pairs = [_judge(one, feeds["input_ids"][0]) for one, feeds in zip(logits, passages, strict=True)]
        return cls(np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs]))


def _judge(logits: Array, ids: Array) -> tuple[Array, Array]:
    rows = np.asarray(logits).reshape(len(ids), -1)[:-1]
    if not np.isfinite(rows).all():
        return np.full(len(rows), -1), np.full(len(rows), np.inf)
    losses = []
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS].astype(np.float64)
        part -= part.max(axis=1, keepdims=True)
        following = ids[start + 1 : start + 1 + len(part), None]
        losses.append(np.log(np.exp(part).sum(axis=1)) - np.take_along_axis(part, following, 1)[:, 0])
    return rows.argmax(axis=1), np.concatenate(losses)


@dataclass(frozen=True)
class Row:
    """A file: who made it, its bytes, what it says about the passages, wall seconds of making it, a note."""

    name: str
    size: int
    judged: Judged
    seconds: float
    note: str

    def cells(self, reference: Judged) -> list[str]:
        """A row of the table."""
        return [
            self.name, f"{self.size / 1e6:.2f}", f"{self.judged.perplexity:.3f}",
            f"{self.judged.agreement(reference):.2%}", f"{self.seconds:.0f}" if self.seconds else "–", self.note,
        ]  # fmt: skip


HEADER = ("", "MB", "perplexity", "next token as float", "s", "")
Make = Callable[[Path], tuple[float, str]]


class Lab:
    """The float model, its graph for MNN, the passages, and what the float model says about them."""

    def __init__(self, folder: Path, evaluation: int, calibration: int) -> None:
        self.folder = folder
        self.source = exports.export("smollm2")
        cut = _cutter(fetch("smollm2"))
        self.passages = cut("evaluation", evaluation)
        self.data = save(cut("calibration", calibration), folder / "calibration")
        self.optimized = folder / "optimized.onnx"
        optimize(Model.load(self.source), "mnn", verify="none").model.save(self.optimized)
        with Session(self.source) as session:
            logits = (session.run(feeds)["logits"] for feeds in self.passages)
            self.reference = Judged.of(logits, self.passages)
        print(f"float: perplexity {self.reference.perplexity:.3f}", flush=True)

    def row(self, name: str, make: Make) -> Row:
        """Make one file and judge it."""
        path = self.folder / "candidate.mnn"
        seconds, note = make(path)
        row = Row(name, path.stat().st_size, Judged.of(self._logits(path), self.passages), seconds, note)
        print(" | ".join(row.cells(self.reference)), f"| peak {_peak()}", flush=True)
        return row

    def _logits(self, path: Path) -> Iterator[Array]:
        for start in range(0, len(self.passages), TOGETHER):
            for found in outputs(path, self.passages[start : start + TOGETHER]):
                yield found["logits"]

    def ours(self) -> Make:
        """Quantize with GPTQ, and hand it to MNN with its codes."""

        def make(path: Path) -> tuple[float, str]:
            options = QuantizeOptions(bits=BITS, block=BLOCK, method="gptq", embeddings=False)
            start = time.perf_counter()
            done = quantize(self.source, Job(options, data=Data(self.data)), passes="mnn", verify="none")
            made = time.perf_counter() - start
            result = convert(done.model, path)
            seconds = time.perf_counter() - start
            left = f", {len(result.carriage.left)} float" if result.carriage.left else ""
            layers = f"{len(result.carriage.layers)} layers carried{left}"
            return seconds, f"{layers}; {made:.0f} s to quantize; {result.proof.max_error:.0e} from its ONNX"

        return make

    def theirs(self, **flags: Any) -> Make:
        """MNN's own quantizer on our optimized graph."""

        def make(path: Path) -> tuple[float, str]:
            start = time.perf_counter()
            options = ConverterOptions.of("ONNX", {"weightQuantBits": BITS, "weightQuantBlock": BLOCK, **flags})
            run_converter(self.optimized, path, options)
            return time.perf_counter() - start, ""

        return make


def _cutter(gguf: Path) -> Callable[[Any, int], list[Feeds]]:
    """What cuts a part of the sentences into passages of LENGTH tokens, by the tokenizer in a GGUF file."""
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)

    def cut(part: Any, count: int) -> list[Feeds]:
        ids = np.array(tokenizer(" ".join(sentences(SENTENCES, part))).input_ids, np.int64)
        rows = ids[: len(ids) // LENGTH * LENGTH].reshape(-1, 1, LENGTH)
        if len(rows) < count:
            sys.exit(f"the sentences for {part} make {len(rows)} passages, not {count}")
        return [{"input_ids": row, "attention_mask": np.ones_like(row)} for row in rows[:count]]

    return cut


def makers(lab: Lab) -> Mapping[str, Make]:
    """All files: MNN's and ours."""
    return {
        SYMMETRIC: lab.theirs(weightQuantAsymmetric=False),
        "MNN, its default (asymmetric)": lab.theirs(weightQuantAsymmetric=True),
        HQQ: lab.theirs(hqq=True),
        OURS: lab.ours(),
    }


def bars(rows: Mapping[str, Row], reference: Judged) -> list[Bar]:
    """Ours against MNN's at the same size, and against the best of MNN's."""
    mine, same = rows[OURS], rows[SYMMETRIC]
    theirs = [row for name, row in rows.items() if name.startswith("MNN")]
    best = min(theirs, key=lambda row: row.judged.perplexity)
    return [
        _bar(f"gptq against {same.name}, at its size", mine, same, reference, mine.size <= 1.001 * same.size),
        _bar(f"gptq against the best of MNN's ({best.name}), at no more bytes", mine, best, reference,
             mine.size <= 1.001 * best.size),
    ]  # fmt: skip


def _bar(claim: str, mine: Row, other: Row, reference: Judged, small: bool) -> Bar:
    values = [(row.judged.perplexity, row.judged.agreement(reference), row.size / 1e6) for row in (mine, other)]
    told = " against ".join(f"{value:.3f}, {share:.2%}, {size:.2f} MB" for value, share, size in values)
    met = small and values[0][0] < values[1][0] and values[0][1] > values[1][1]
    return Bar(f"{claim}: lower perplexity, more next tokens as float", told, met)


def report(lab: Lab, rows: Mapping[str, Row], calibration: int, seconds: float) -> str:
    """The page."""
    count = len(lab.passages)
    base = Row("float, onnxruntime", lab.source.stat().st_size, lab.reference, 0, "the ONNX file")
    lines = [row.cells(lab.reference) for row in (base, *rows.values())]
    parts = [part.replace("\n", " ") for part in (__doc__ or "").strip().split("\n\n")[2:]]
    told = (
        f"{count} passages of evaluation ({count * (LENGTH - 1)} next tokens), {calibration} of calibration. "
        f"Seconds are wall time from ONNX to .mnn. The whole run took {seconds / 60:.0f} minutes, and "
        f"{_cpu() / 60:.0f} minutes of CPU time; the largest process took {_peak()}."
    )
    claims = "\n".join(bar.markdown() for bar in bars(rows, lab.reference))
    title = head("SmolLM2 with 4-bit weights", "python benchmarks/quant_smollm2.py")
    return "\n\n".join([title.strip(), *parts, told, table(HEADER, lines), claims]) + "\n"


def _cpu() -> float:
    """User and system seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def _peak() -> str:
    """The most memory that this process or one of its children took so far."""
    found = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return f"{found / 1e6:.1f} GB"


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="SmolLM2 quantized by graphkit and by MNN.")
    parser.add_argument("--evaluation", type=int, default=40, help="passages")
    parser.add_argument("--calibration", type=int, default=96, help="passages")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "quant_smollm2.md")
    args = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(Path(name), args.evaluation, args.calibration)
        rows = {label: lab.row(label, make) for label, make in makers(lab).items()}
        page = report(lab, rows, args.calibration, time.perf_counter() - start)
    print(page)
    args.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
