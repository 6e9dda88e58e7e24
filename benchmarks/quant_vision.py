"""Vision models with quantized weights: ours beside MNN's own quantizer, on data that nothing was tuned on.

    python benchmarks/quant_vision.py [-o FOLDER] [ID …]

Ours is `graphkit quantize`, MNN's is MNNConvert's quantizer on the same file; both .mnn files are run by MNN on the
evaluation part of `_pictures.py` and compared with the float model in onnxruntime. Calibration and the search for
mixed precision see the calibration part alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _pictures
from benchmarks._quant import (
    RESULTS,
    Array,
    Feeds,
    Made,
    Maker,
    cosine,
    head,
    ours,
    outputs,
    plain,
    save,
    table,
    theirs,
)
from benchmarks._report import Bar
from fixtures.fetch import fetch
from fixtures.naturals import ctc_text
from graphkit.errors import GraphkitError
from graphkit.model import Model
from graphkit.optimizer import Bindings, bound_model
from graphkit.runtime import Session

Outputs = Sequence[Mapping[str, Array]]
Score = dict[str, float]
W8, MIXED = "ours, 8-bit, no data (rtn)", "ours, mixed"
BEST8 = "ours, 8-bit, with calibration data (gptq)"


@dataclass(frozen=True)
class Subject:
    """A model, its pictures, the files to make of it, what they are scored by, and what was promised."""

    name: str
    what: str
    samples: Callable[[_pictures.Part], Sequence[Feeds]]
    makers: Mapping[str, Maker]
    score: Callable[[Path, Outputs, Outputs], Score]
    bars: Callable[[Mapping[str, tuple[Made, Score]]], list[Bar]]
    bind: Bindings | None = None


def texts(source: Path, expected: Outputs, actual: Outputs) -> Score:
    """Lines whose recognised text is that of the float model, and characters changed, in percent."""
    alphabet = {entry.key: entry.value for entry in Model.load(source).proto.metadata_props}["character"]
    pairs = [
        (ctc_text(next(iter(one.values())), alphabet)[0], ctc_text(next(iter(two.values())), alphabet)[0])
        for one, two in zip(expected, actual, strict=True)
    ]
    changed = sum(edits(one, two) for one, two in pairs)
    return {
        "lines": len(pairs),
        "equal lines": sum(one == two for one, two in pairs),
        "characters changed, %": 100 * changed / sum(len(one) for one, _ in pairs),
        "mean cosine": float(np.mean(_cosines(expected, actual))),
    }


def edits(one: str, two: str) -> int:
    """The least number of characters to insert, delete or replace (Levenshtein 1966)."""
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(two, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


def worst_outputs(source: Path, expected: Outputs, actual: Outputs) -> Score:
    """Cosines of the output that is worst: over all pictures as one vector, and of the worst picture."""
    together = [
        cosine(*(np.concatenate([np.ravel(run[name]) for run in runs]) for runs in (expected, actual)))
        for name in expected[0]
    ]
    found = _cosines(expected, actual)
    return {"cosine": min(together), "mean of pictures": float(np.mean(found)), "lowest picture": min(found)}


def _cosines(expected: Outputs, actual: Outputs) -> list[float]:
    return [min(cosine(one[name], two[name]) for name in one) for one, two in zip(expected, actual, strict=True)]


def _share(found: Mapping[str, tuple[Made, Score]]) -> float:
    return found[MIXED][0].size / found[W8][0].size


def rec_bars(found: Mapping[str, tuple[Made, Score]]) -> list[Bar]:
    """Text at 8 bits, and at 65 % of the bytes."""
    eights, mixed = [found[name][1] for name in (W8, BEST8)], found[MIXED][1]
    changed, share = mixed["characters changed, %"], _share(found)
    return [
        Bar(
            "8-bit, without data and with: the text of all lines as the float model's",
            ", ".join(f"{eight['equal lines']:g} of {eight['lines']:g}" for eight in eights),
            all(eight["equal lines"] == eight["lines"] for eight in eights),
        ),
        Bar(
            "mixed: at most 65 % of the 8-bit file's bytes, at most 1 % of characters changed",
            f"{share:.1%}, {changed:.2f} %", share <= 0.65 and changed <= 1,
        ),
    ]  # fmt: skip


def det_bars(found: Mapping[str, tuple[Made, Score]]) -> list[Bar]:
    """No collapse at 8 bits."""
    value = found[BEST8][1]
    return [Bar("8-bit: cosine of .99 on every picture", _cosine_words(value), value["lowest picture"] >= 0.99)]


def face_bars(found: Mapping[str, tuple[Made, Score]]) -> list[Bar]:
    """The worst output at 65 % of the bytes."""
    share, value = _share(found), found[MIXED][1]
    met = share <= 0.65 and value["lowest picture"] >= 0.95
    claim = "mixed: at most 65 % of the 8-bit file's bytes, the worst output's cosine .95 on every picture"
    return [Bar(claim, f"{share:.1%}; {_cosine_words(value)}", met)]


def _cosine_words(value: Score) -> str:
    return f"{value['cosine']:.4f} over all pictures, {value['lowest picture']:.4f} on the worst"


ASYMMETRIC, SYMMETRIC = {"weightQuantAsymmetric": True}, {"weightQuantAsymmetric": False}
SUBJECTS = (
    Subject(
        "ppocr4_rec",
        "text recognition; 60 rendered lines",
        _pictures.text_lines,
        {
            "float": plain,
            "MNN, 8-bit, its default (asymmetric)": theirs(8, **ASYMMETRIC),
            "MNN, 8-bit, symmetric": theirs(8, **SYMMETRIC),
            W8: ours(8),
            BEST8: ours(8, method="gptq"),
            "MNN, 5-bit, its default (asymmetric)": theirs(5, **ASYMMETRIC),
            "MNN, 5-bit, symmetric": theirs(5, **SYMMETRIC),
            "MNN, 4-bit block 32, hqq": theirs(4, weightQuantBlock=32, hqq=True, **ASYMMETRIC),
            MIXED: ours(8, block=16, method="gptq", budget="63% of w8", tried=(4, 5, 6, 8)),
        },
        texts,
        rec_bars,
    ),
    Subject(
        "ppocr4_det",
        "text detection; pages and photographs with text",
        _pictures.pages,
        {
            "float": plain,
            "MNN, 8-bit, its default (asymmetric)": theirs(8, **ASYMMETRIC),
            "MNN, 8-bit, symmetric": theirs(8, **SYMMETRIC),
            W8: ours(8),
            BEST8: ours(8, method="gptq"),
        },
        worst_outputs,
        det_bars,
    ),
    Subject(
        "centerface",
        "faces; photographs of 256 × 256",
        _pictures.faces,
        {
            "float": plain,
            "MNN, 8-bit, its default (asymmetric)": theirs(8, **ASYMMETRIC),
            W8: ours(8),
            "MNN, 4-bit, its default (asymmetric)": theirs(4, **ASYMMETRIC),
            "MNN, 4-bit, symmetric": theirs(4, **SYMMETRIC),
            "MNN, 4-bit block 32, hqq": theirs(4, weightQuantBlock=32, hqq=True, **ASYMMETRIC),
            "MNN, 5-bit, symmetric": theirs(5, **SYMMETRIC),
            MIXED: ours(4, method="gptq", budget="62% of w8", tried=(3, 4, 5, 6, 8)),
        },
        worst_outputs,
        face_bars,
        {"input.1": (1, 3, 256, 256)},
    ),
)


def section(subject: Subject) -> str:
    """One model: all files, what they are worth, and whether the bars are met."""
    evaluation = subject.samples("evaluation")
    found: dict[str, tuple[Made, Score]] = {}
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source.onnx"
        bound_model(Model.load(fetch(subject.name)), subject.bind).save(source)
        data = save(subject.samples("calibration"), folder / "calibration")
        with Session(source) as session:
            expected = [session.run(feeds) for feeds in evaluation]
        for number, (label, make) in enumerate(subject.makers.items()):
            try:
                made = make(source, data, folder / f"{number}.mnn")
                score = subject.score(source, expected, outputs(made.path, evaluation))
            except GraphkitError as error:
                rows.append([label, f"{error}"[:160]])
                print(" | ".join(rows[-1]), flush=True)
                continue
            found[label] = made, score
            rows.append(_row(label, made, score))
            print(" | ".join(rows[-1]), flush=True)
    scores = [key for key in next(iter(found.values()))[1] if key != "lines"]
    header = ["", "file, KB", *scores, "CPU s", "against its ONNX", "layers"]
    width = len(header)
    padded = [row + [""] * (width - len(row)) for row in rows]
    bars = "\n".join(bar.markdown() for bar in subject.bars(found)) if len(rows) == len(found) else "- **MISSED**"
    count = len(evaluation)
    return f"## {subject.name}: {subject.what} ({count})\n\n{table(header, padded)}\n\n{bars}\n"


def _row(label: str, made: Made, score: Score) -> list[str]:
    proof = "" if made.proof is None else f"{made.proof:.0e}"
    values = [_number(key, value) for key, value in score.items() if key != "lines"]
    return [label, f"{made.size / 1000:,.0f}", *values, f"{made.cpu:.0f}", proof, made.note]


def _number(key: str, value: float) -> str:
    return f"{value:g}" if key == "equal lines" else f"{value:.2f}" if "%" in key else f"{value:.4f}"


def main() -> None:
    """Measure the named models, or all, and write a page for each."""
    parser = argparse.ArgumentParser(description="Quantized vision models, ours and MNN's.")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for subject in SUBJECTS:
        if args.ids and subject.name not in args.ids:
            continue
        title = head(f"{subject.name} with quantized weights", f"python benchmarks/quant_vision.py {subject.name}")
        (args.output / f"quant_{subject.name}.md").write_text(f"{title}\n{section(subject)}", encoding="utf-8")


if __name__ == "__main__":
    main()
