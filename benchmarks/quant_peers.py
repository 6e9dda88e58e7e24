"""What the quantizers that people use write, on the plain road to MNN and on ours.

    python benchmarks/quant_peers.py [-o FOLDER]

Each tool quantizes the same BERT (2 layers, opset 21) with its own defaults where the row does not say otherwise. The
result goes through MNNConvert alone, and through `graphkit convert`. Both .mnn files are run by MNN and compared with
the *quantized* ONNX model in onnxruntime, for that is what people checked before they shipped it: relative L2 of the
worst output. "Equal codes": the codes in the .mnn file, layer by layer, are those that the tool wrote.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._quant import RESULTS, Array, head, outputs, table
from benchmarks._report import Bar
from fixtures import exports
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.mnn.carry.lift import lift
from graphkit.mnn.carry.parts import Parts
from graphkit.mnn.document import read
from graphkit.mnn.document.quantized import decode, scheme_of
from graphkit.mnn.document.tree import Table
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import ConvertResult, convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.quant.metric import relative_l2
from graphkit.runtime import Session

Feeds = Mapping[str, Array]
Tool = Callable[[Path, Sequence[Feeds], Path], onnx.ModelProto]  # source, calibration data, a folder to work in
KIND = "bert2_ts"
WRONG = 1e-3  # relative L2 from which a result is called wrong
HEADER = (
    "quantizer", "its ONNX, KB", "MNNConvert alone", "KB", "graphkit convert", "KB", "layers",
    "equal codes", "memory low",
)  # fmt: skip


def nbits(bits: int, *, qdq: bool = False, hqq: bool = False) -> Tool:
    """onnxruntime's MatMulNBits quantizer, blocks of 32."""

    def make(source: Path, samples: Sequence[Feeds], folder: Path) -> onnx.ModelProto:
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization import matmul_nbits_quantizer as peer

        form = QuantFormat.QDQ if qdq else QuantFormat.QOperator
        config = peer.HQQWeightOnlyQuantConfig(block_size=32, bits=bits) if hqq else None
        made = peer.MatMulNBitsQuantizer(
            onnx.load(source), bits=bits, block_size=32, quant_format=form, algo_config=config
        )
        made.process()
        return _proto(made.model.model)

    return make


def static(*, qdq: bool) -> Tool:
    """onnxruntime's quantize_static with calibration data: activations, too."""

    def make(source: Path, samples: Sequence[Feeds], folder: Path) -> onnx.ModelProto:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self.left = [dict(feeds) for feeds in samples]

            def get_next(self) -> dict[str, Array] | None:
                return self.left.pop() if self.left else None

        form = QuantFormat.QDQ if qdq else QuantFormat.QOperator
        quantize_static(str(source), str(folder / "static.onnx"), Reader(), quant_format=form)
        return onnx.load(folder / "static.onnx")

    return make


def dynamic(source: Path, samples: Sequence[Feeds], folder: Path) -> onnx.ModelProto:
    """onnxruntime's quantize_dynamic."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(source), str(folder / "dynamic.onnx"))
    return onnx.load(folder / "dynamic.onnx")


def onnxsim(name: str) -> Tool:
    """One of onnxsim's quantizers that need nothing but the model."""

    def make(source: Path, samples: Sequence[Feeds], folder: Path) -> onnx.ModelProto:
        import onnxsim as peer

        return _proto(getattr(peer, name)(str(source)))

    return make


def refined(name: str) -> Tool:
    """One of onnxsim's methods that begin with its INT4 and look at data."""

    def make(source: Path, samples: Sequence[Feeds], folder: Path) -> onnx.ModelProto:
        import onnxsim as peer

        begun = peer.quantize_weight_only_int4(str(source))
        return _proto(getattr(peer, name)(str(source), begun, [dict(feeds) for feeds in samples]))

    return make


TOOLS: Mapping[str, Tool] = {
    "onnxruntime MatMulNBits, 4 bits": nbits(4),
    "onnxruntime MatMulNBits, 8 bits": nbits(8),
    "onnxruntime MatMulNBits, 4 bits, HQQ": nbits(4, hqq=True),
    "onnxruntime MatMulNBits, 4 bits, as QDQ": nbits(4, qdq=True),
    "onnxruntime static, QDQ": static(qdq=True),
    "onnxruntime static, operators": static(qdq=False),
    "onnxruntime dynamic": dynamic,
    "onnxsim INT8 weights": onnxsim("quantize_weight_only"),
    "onnxsim INT8 weights in blocks": onnxsim("quantize_weight_only_int8_block"),
    "onnxsim INT4": onnxsim("quantize_weight_only_int4"),
    "onnxsim INT4, GPTQ": refined("apply_gptq"),
    "onnxsim INT4, AWQ": refined("apply_awq"),
    "onnxsim INT4, HQQ": onnxsim("quantize_weight_only_int4_hqq"),
    "onnxsim MatMulNBits": onnxsim("quantize_weight_only_matmul_nbits"),
    "onnxsim dynamic": onnxsim("quantize_dynamic"),
    "onnxsim static": onnxsim("quantize_static"),
}


def _proto(made: Any) -> onnx.ModelProto:
    assert isinstance(made, onnx.ModelProto)
    return made


def bert(folder: Path) -> Path:
    """The BERT at opset 21, which INT4 and blocks need, with constants folded and shapes, which quantizers want."""
    folded = optimize(exports.export(KIND), "default").model.materialized()
    proto = onnx.version_converter.convert_version(folded, 21)
    proto.ir_version = 10
    onnx.save(onnx.shape_inference.infer_shapes(proto), folder / "bert.onnx")
    return folder / "bert.onnx"


def sentences(model: Path, seed: int, count: int) -> list[Feeds]:
    """Tokens at random, as the weights are."""
    rng = np.random.default_rng(seed)
    made: list[Feeds] = []
    for _ in range(count):
        shape = (2, int(rng.integers(5, 24)))
        ids, ones = rng.integers(0, 1000, shape), np.ones(shape, np.int64)
        values = {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ones)}
        made.append({name: values[name] for name in Graph.of(Model.load(model)).inputs})
    return made


def plain(source: Path, evaluation: Sequence[Feeds], expected: Sequence[Feeds], output: Path) -> tuple[str, str]:
    """MNNConvert alone: the error or what happened, and the size."""
    try:
        made = convert(source, output, passes=None, options=ConverterOptions.of(useGeluApproximation=1), verify="none")
        return _error(_worst(expected, outputs(output, evaluation))), _kilo(made.size)
    except GraphkitError as error:
        size = _kilo(output.stat().st_size) if output.exists() else "–"
        return f"**{error.message}**", size


def ours(
    source: Path, evaluation: Sequence[Feeds], expected: Sequence[Feeds], output: Path
) -> tuple[list[str], bool, ConvertResult | None]:
    """`graphkit convert`: cells, whether all is as it should be, and the result."""
    try:
        made = convert(source, output, inputs=list(evaluation[:2]))
    except GraphkitError as error:
        return [f"**{error.message}**", "–", "–", "–", "–"], False, None
    off, layers = _worst(expected, outputs(output, evaluation)), made.carriage.layers
    same, left = equal_codes(source, output), len(made.carriage.left)
    low = made.carriage.low_memory_error
    kinds = ", ".join(f"{count} × {kind}" for kind, count in made.carriage.kinds.items())
    note = f"{kinds}; {left} float" if left else kinds
    cells = [_error(off), _kilo(made.size), note, f"{same} of {len(layers)}", "–" if low is None else f"{low:.1e}"]
    return cells, off < WRONG and same == len(layers) > 0 and not left, made


def equal_codes(source: Path, output: Path) -> int:
    """How many layers and tables of a .mnn file hold codes of the ONNX model, as they are or transposed."""
    known = set()
    for weight in lift(Model.load(source)):
        parts = weight.parts(weight.forms[0])
        if isinstance(parts, Parts):
            known |= {np.ascontiguousarray(codes).tobytes() for codes in (parts.codes, parts.codes.T)}
    return sum(codes in known for codes in _codes(output))


def _codes(path: Path) -> list[bytes]:
    found = []
    for graph in read(path).graphs():
        for op in graph.ops:
            main = op["main"]
            if isinstance(main, Table) and main.type.name == "Blob" and main["int8s"] is not None:
                found.append(np.asarray(main["int8s"], np.int8).tobytes())  # a table that Gather reads
            if not isinstance(main, Table) or main.type.name != "Convolution2D" or main["quanParameter"] is None:
                continue
            quan, common = main["quanParameter"], main["common"]
            alpha = quan["alphaFp16"].view("<f2") if quan.label("scaleStorage") == "FP16" else quan["alpha"]
            scheme = scheme_of(quan, alpha.size, common["outputCount"], common["inputCount"])
            decoded = None if scheme is None else decode(quan, scheme, quan["buffer"], alpha)
            found.append(b"" if decoded is None else decoded.codes(0, decoded.count).tobytes())
    return found


def _worst(expected: Sequence[Feeds], actual: Sequence[Feeds]) -> float:
    return max(relative_l2(one[name], two[name]) for one, two in zip(expected, actual, strict=True) for name in one)


def _error(value: float) -> str:
    return f"{value:.1e}" if value < WRONG else f"**{value:.1e}: wrong**"


def _kilo(size: int) -> str:
    return f"{size / 1000:,.0f}"


def main() -> None:
    """Measure all tools and write the table."""
    parser = argparse.ArgumentParser(description="Other tools' quantized models on the way to MNN.")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows, met = [], True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = bert(folder)
        calibration, evaluation = sentences(source, 0, 8), sentences(source, 1, 4)
        floats = convert(source, folder / "float.mnn").size
        for number, (tool, make) in enumerate(TOOLS.items()):
            path = folder / f"{number}.onnx"
            with _quiet():
                onnx.save(make(source, calibration, folder), path)
            with Session(Model.load(path)) as session:
                expected = [session.run(feeds) for feeds in evaluation]
            before = plain(path, evaluation, expected, folder / f"{number}.plain.mnn")
            cells, good, _ = ours(path, evaluation, expected, folder / f"{number}.mnn")
            met = met and good
            rows.append([tool, _kilo(path.stat().st_size), *before, *cells])
            print(" | ".join(rows[-1]), flush=True)
    bar = Bar(
        "every tool's model reaches MNN right, with its codes, and no quantized weight left float",
        f"{len(rows)} tools" if met else "see the table", met,
    )  # fmt: skip
    title = head("Quantized by other tools", "python benchmarks/quant_peers.py", ("onnx", "onnxsim"))
    text = f"Floats take {_kilo(floats)} KB. {(__doc__ or '').split(chr(10) * 2, 2)[2]}"
    args.output.mkdir(parents=True, exist_ok=True)
    page = f"{title}\n{text}\n{table(HEADER, rows)}\n\n{bar.markdown()}\n"
    (args.output / "quant_peers.md").write_text(page, encoding="utf-8")


class _quiet:
    """Silence tools that warn, log and print of their own accord."""

    def __enter__(self) -> None:
        self.level = logging.root.manager.disable
        logging.disable(logging.ERROR)
        self.inner = ExitStack()
        for part in (warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO())):
            self.inner.enter_context(part)
        warnings.simplefilter("ignore")

    def __exit__(self, *error: Any) -> None:
        self.inner.close()
        logging.disable(self.level)


if __name__ == "__main__":
    main()
