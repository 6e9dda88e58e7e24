"""Sentence embeddings of MiniLM with 8, 4 and mixed bits: ours and MNN's own quantizer, in one run.

    python benchmarks/quant_minilm.py [--sentences N] [--output FILE]

Judged is the shipped .mnn file, run by MNN: the cosine between its embeddings (mean of the last hidden states) and
those of the float model in onnxruntime, on sentences that nothing was calibrated or tuned on (fixtures/sentences.py,
part "evaluation"). Seconds are those of quantizing, conversion left out; bytes those of the .mnn file.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._report import Bar, Table, machine
from fixtures import exports
from fixtures.fetch import fetch
from fixtures.sentences import sentences
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.quant.budget import Budget
from graphkit.quant.options import QuantizeOptions
from graphkit.quant.search import Search
from graphkit.quantizing import Data, Job, quantize
from graphkit.runtime import Session

Array = npt.NDArray[Any]
RESULTS = Path(__file__).parent / "results" / "quant_minilm.md"
FEW, MANY = 60, 750  # sentences of calibration


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description="MiniLM quantized by graphkit and by MNN.")
    parser.add_argument("--sentences", type=int, default=120, help="for evaluation")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        lab = Lab(Path(name), args.sentences)
        rows = [row for row in map(lab.row, cases(lab)) if row]
        page = report(lab, rows)
    print(page)
    args.output.write_text(page, encoding="utf-8")


class Row:
    """One quantized file: who made it, cosines on the evaluation sentences, bytes, seconds, note."""

    def __init__(self, name: str, cosines: Array, size: int, seconds: float, note: str) -> None:
        self.name, self.cosines, self.size, self.seconds, self.note = name, cosines, size, seconds, note

    @property
    def mean(self) -> float:
        """Mean cosine."""
        return float(self.cosines.mean())

    def cells(self) -> list[str]:
        """A row of the table."""
        low = float(self.cosines.min())
        return [self.name, f"{self.mean:.4f}", f"{low:.4f}", f"{self.size / 1e6:.1f}", f"{self.seconds:.0f}", self.note]


class Lab:
    """The float model, its graph for MNN, and the sentences."""

    def __init__(self, folder: Path, count: int) -> None:
        from tokenizers import Tokenizer

        self.folder = folder
        self.tokenizer = fetch("minilm") / "tokenizer.json"
        self._tokenize = Tokenizer.from_file(str(self.tokenizer))
        self._tokenize.no_padding()
        self._tokenize.no_truncation()
        self.model = Model.load(exports.export("minilm_eager_ts"))
        self.optimized = folder / "optimized.onnx"
        optimize(self.model, "mnn").model.save(self.optimized)
        self.samples = [self._feeds(text) for text in sentences(count, "evaluation")]
        with Session(self.model) as session:
            self.expected = np.stack([pooled(session.run(feeds)) for feeds in self.samples])
        for number in (FEW, MANY):
            text = "\n".join(sentences(number, "calibration"))
            self.texts(number).write_text(text + "\n", encoding="utf-8")

    def texts(self, number: int) -> Path:
        """A file of calibration sentences."""
        return self.folder / f"{number}.txt"

    def _feeds(self, text: str) -> dict[str, Array]:
        row = self._tokenize.encode(text)
        values = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
        return {name: np.array([ids], np.int64) for name, ids in values.items()}

    def row(self, case: tuple[str, Callable[[Path], tuple[float, str]]]) -> Row:
        """Make one file and judge it."""
        name, make = case
        path = self.folder / "candidate.mnn"
        seconds, note = make(path)
        found = np.stack([pooled(result.outputs) for result in worker.run_all(path, self.samples)])
        norms = np.linalg.norm(found, axis=1) * np.linalg.norm(self.expected, axis=1)
        cosines = (found * self.expected).sum(axis=1) / norms
        row = Row(name, cosines, path.stat().st_size, seconds, note)
        print(" | ".join(row.cells()), flush=True)
        return row

    def ours(self, number: int, search: Search | None = None, **options: Any) -> Callable[[Path], tuple[float, str]]:
        """Quantize with our code and hand it to MNN with its codes; `number` calibration sentences, 0 for none."""

        def make(path: Path) -> tuple[float, str]:
            data = Data(self.texts(number), self.tokenizer) if number else None
            start = time.perf_counter()
            done = quantize(self.model, Job(QuantizeOptions(**options), search=search, data=data), passes="mnn")
            seconds = time.perf_counter() - start
            result = convert(done.model, path)
            left = f", {len(result.carriage.left)} not carried" if result.carriage.left else ""
            return seconds, f"{len(result.carriage.layers)} layers carried{left}; error {result.proof.max_error:.0e}"

        return make

    def mnn(self, **options: Any) -> Callable[[Path], tuple[float, str]]:
        """MNN's own quantizer on our optimized graph."""

        def make(path: Path) -> tuple[float, str]:
            start = time.perf_counter()
            run_converter(self.optimized, path, ConverterOptions.of("ONNX", options))
            return time.perf_counter() - start, "conversion included"

        return make


def pooled(outputs: Any) -> Array:
    """The embedding: the mean over the words (there is no padding)."""
    mean: Array = np.asarray(outputs["last_hidden_state"]).reshape(-1, 384).mean(axis=0, dtype=np.float64)
    return mean


def cases(lab: Lab) -> Sequence[tuple[str, Callable[[Path], tuple[float, str]]]]:
    """All files: MNN's and ours."""
    block = {"weightQuantBits": 4, "weightQuantBlock": 32}
    small: dict[str, Any] = {"bits": 4, "block": 32, "embeddings": False}
    mixed = Search(budget=Budget(54.3e6), metric="cosine")
    return (
        ("MNN 8-bit", lab.mnn(weightQuantBits=8)),
        ("graphkit 8-bit", lab.ours(0, bits=8, method="mse", embeddings=False)),
        ("graphkit 8-bit, INT8 embeddings", lab.ours(0, bits=8, method="mse")),
        ("MNN 4-bit block 32", lab.mnn(**block)),
        ("MNN 4-bit block 32, hqq", lab.mnn(**block, hqq=True)),
        ("graphkit 4-bit block 32, mse", lab.ours(0, method="mse", **small)),
        (f"graphkit 4-bit block 32, gptq, {FEW} sentences", lab.ours(FEW, method="gptq", **small)),
        (f"graphkit 4-bit block 32, gptq, {MANY} sentences", lab.ours(MANY, method="gptq", **small)),
        (f"graphkit mixed, gptq, {MANY} sentences", lab.ours(MANY, mixed, method="gptq", **small)),
        (
            f"graphkit 4-bit block 32, gptq, {MANY}, INT8 embeddings, half scales",
            lab.ours(MANY, method="gptq", scales="float16", **{**small, "embeddings": True}),
        ),
    )


def report(lab: Lab, rows: Sequence[Row]) -> str:
    """The page."""
    by_name = {row.name: row for row in rows}
    header = ["MiniLM", "cosine", "lowest", "MB", "s", ""]
    table = Table(header, [row.cells() for row in rows])
    few, many = (by_name[f"graphkit 4-bit block 32, gptq, {number} sentences"] for number in (FEW, MANY))
    mixed, tiny = rows[-2], rows[-1]
    eight = by_name["graphkit 8-bit"]
    bars = [
        Bar("8-bit: cosine .9995", f"{eight.mean:.5f}", eight.mean >= 0.9995),
        _bar(few, 0.987, 54.6e6),
        _bar(many, 0.991, 54.6e6),
        _bar(mixed, 0.993, max(many.size, 54.6e6)),
        Bar(
            "INT8 embeddings at 19 MB lose no more than .001",
            f"{many.mean - tiny.mean:.4f} at {tiny.size / 1e6:.1f} MB",
            many.mean - tiny.mean <= 0.001 and tiny.size <= 19e6,
        ),
        Bar("the 4-bit run takes under a minute", f"{few.seconds:.0f} s, {many.seconds:.0f} s", few.seconds < 60),
    ]
    facts = machine()
    today = datetime.datetime.now(tz=datetime.UTC).date()
    where = f"{facts['processor']}, {facts['cores']} cores; MNN {facts['packages'].get('MNN', '?')}"
    doc = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    lines = ["# MiniLM, quantized", "", f"{today}, `python benchmarks/quant_minilm.py`; {where}.", "", doc, ""]
    told = f"{len(lab.samples)} sentences of evaluation, {FEW} and {MANY} of calibration."
    return "\n".join([*lines, told, "", table.markdown(), "", *(bar.markdown() for bar in bars)]) + "\n"


def _bar(row: Row, least: float, most: float) -> Bar:
    claim = f"{row.name}: cosine {least:g} at {most / 1e6:.1f} MB"
    return Bar(claim, f"{row.mean:.4f} at {row.size / 1e6:.1f} MB", row.mean >= least and row.size <= most)


if __name__ == "__main__":
    main()
