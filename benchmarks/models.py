"""Real models on the plain road and on ours: what MNN makes of them, compared with onnxruntime on natural inputs.

    python benchmarks/models.py [-o FOLDER] [ID …]

Plain is MNNConvert with its own defaults on the file as it is; ours is `graphkit convert`. Both are judged by the
same evidence: onnxruntime without optimizations, two shapes where dims are dynamic, the largest absolute error over
the reference's largest absolute value.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._report import machine
from fixtures import exports, fetch, naturals
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, MnnError
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import ConvertResult, convert
from graphkit.optimizer import Bindings
from graphkit.verification.outputs import verify

RESULTS = Path(__file__).parent / "results"
PLAIN = ConverterOptions.of(useGeluApproximation=1)  # MNNConvert's own default
LOOSE = Tolerance(rtol=1e9)  # to learn the error, however large


@dataclass(frozen=True)
class Model:
    """A row: where the file comes from, natural inputs, what has to be bound, and the passes of our road.

    Passes that change values on purpose make the model that MNN is compared with.
    """

    name: str
    file: Callable[[], Path]
    inputs: str
    bind: Bindings | None = None
    what: str = ""
    passes: str = "mnn"


def _fetched(name: str, what: str, bind: Bindings | None = None) -> Model:
    return Model(name, lambda: fetch.fetch(name), name, bind, what)


def _exported(kind: str, what: str) -> Model:
    return Model(kind, lambda: exports.export(kind), "minilm", None, what)


def _fused() -> Path:
    return exports.fused("minilm_eager_ts", heads=12, hidden=384)


FLOAT = "dequantize-weights,strip-activation-qdq,mnn"

MODELS = (
    _fetched("magika", "file types"),
    _fetched("ppocr4_det", "text detection"),
    _fetched("ppocr4_rec", "text recognition"),
    _fetched("orientation", "page orientation"),
    _fetched("centerface", "faces"),
    _fetched("dtln1", "noise suppression, LSTM"),
    _fetched("silero_vad", "voice activity, 25 If"),
    _fetched("silero_seq", "voice activity, LSTM; length bound to 16", {"input": (16, 576)}),
    _exported("minilm_eager_ts", "sentence embeddings, TorchScript"),
    _exported("minilm_eager_dyn", "sentence embeddings, dynamo"),
    _exported("minilm_sdpa_ts", "the same with torch's sdpa, TorchScript"),
    _exported("minilm_sdpa_dyn", "the same with torch's sdpa, dynamo"),
    Model("minilm, fused by onnxruntime", _fused, "minilm", None, "Attention, SkipLayerNormalization, BiasGelu"),
    Model(
        "smart_turn", lambda: fetch.fetch("smart_turn"), "smart_turn", None, "end of turn, INT8 QDQ; as floats", FLOAT
    ),
)


def samples(model: Model) -> list[naturals.Feeds]:
    """Natural inputs of the bound shape."""
    found = naturals.natural(model.inputs)
    shape = (model.bind or {}).get("input")
    return [feeds for feeds in found if shape is None or feeds["input"].shape == shape]


def plain(model: Model, folder: Path) -> str:
    """What MNNConvert alone makes of the model, in a few words."""
    output = folder / "plain.mnn"
    try:
        convert(model.file(), output, passes=None, options=PLAIN, verify="none")
        proof = verify(model.file(), output, inputs=naturals.natural(model.inputs), tolerance=LOOSE).proof
    except MnnError as error:
        return f"**{error.message.removeprefix('MNN ')}**".replace("'s converter", "")
    except GraphkitError as error:
        return f"**{error.message}**"
    faults = [output.reason for check in proof.checks for output in check.comparison.outputs if not output.ok]
    return f"**wrong**: {faults[0]}" if faults else _error(proof.max_error)


def ours(model: Model, folder: Path) -> tuple[str, ConvertResult | None]:
    """What `graphkit convert` makes of it."""
    try:
        result = convert(model.file(), folder / "ours.mnn", passes=model.passes, bind=model.bind, inputs=samples(model))
    except MnnError as error:
        nodes = f", nodes {', '.join(f'`{f.node}`' for f in error.faults[:1])} …" if error.faults else ""
        return f"exit 3: {error.message}{nodes}", None
    if model.passes == FLOAT:
        return _error(result.proof.max_error), result
    shipped = verify(model.file(), result.output, inputs=samples(model), bind=model.bind, tolerance=LOOSE)
    return _error(shipped.proof.max_error), result


def _error(value: float) -> str:
    return f"{value:.1e}" if value <= 2e-3 else f"**{value:.1e}**"


def row(model: Model) -> list[str]:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as name:
        before = plain(model, Path(name))
        after, result = ours(model, Path(name))
    ops = str(result.ops) if result else "–"
    return [model.name, model.what, before, after, ops]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as a markdown table."""
    head = ["model", "what it does", "MNNConvert alone: max error", "graphkit convert: max error", "MNN ops"]
    lines = [head, [":--", ":--", ":--", ":--", "--:"], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure the named models, or all, and write the table."""
    parser = argparse.ArgumentParser(description="Real models, MNNConvert alone and graphkit convert.")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    chosen = [model for model in MODELS if not args.ids or model.name in args.ids]
    rows = []
    for model in chosen:
        rows.append(row(model))
        print(" | ".join(rows[-1]), flush=True)
    today = datetime.datetime.now(tz=datetime.UTC).date()
    facts = machine()
    where = f"{facts['processor']}, {facts['cores']} cores; MNN {facts['packages'].get('MNN', '?')}"
    page = f"# Real models\n\n{today}, `python benchmarks/models.py`; {where}.\n\n{table(rows)}\n"
    if not args.ids:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "models.md").write_text(page)


if __name__ == "__main__":
    main()
