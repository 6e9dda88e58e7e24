"""MNNConvert's options: which we pass on, their types and their ranges.

MNNConvert swallows unknown flags and out-of-range values and reports success (`--weightQuantBit 4` gives
an unquantized model), so nothing reaches it that is not in this table. The names are MNNConvert's own
(MNN 3.6.1, `mnnconvert --help`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graphkit.errors import UsageError

Value = bool | int | float | str
Kind = Literal["flag", "switch", "int", "float", "text", "path"]

_INT_MAX = 2**31 - 1  # MNNConvert reads 32-bit integers
FRAMEWORKS = ("ONNX", "TF", "TFLITE", "CAFFE", "MNN", "JSON")


@dataclass(frozen=True)
class Option:
    """One option of MNNConvert.

    kind: 'flag' is passed bare and only when true (MNNConvert looks only whether it is there); 'switch'
    is passed as `=0` or `=1` (no other spelling works); 'path' must exist and is made absolute, since the
    converter runs in another directory. low and high bound numbers, both included.
    """

    name: str
    kind: Kind
    help: str
    low: float | None = None
    high: float | None = None

    def check(self, value: Value) -> Value:
        """Return the value in this option's type; raises UsageError when it is not one."""
        if self.kind in ("flag", "switch"):
            return self._check_bool(value)
        if self.kind in ("int", "float"):
            return self._check_number(value)
        if not isinstance(value, str) or not value:
            raise UsageError(f"--{self.name} takes text, not {value!r}")
        return self._check_path(value) if self.kind == "path" else value

    def _check_bool(self, value: Value) -> bool:
        known: dict[Value, bool] = {
            True: True,
            False: False,
            "true": True,
            "false": False,
            "1": True,
            "0": False,
        }
        key = value.lower() if isinstance(value, str) else value
        if key not in known:
            raise UsageError(f"--{self.name} is 0 or 1, not {value!r}")
        return known[key]

    def _check_number(self, value: Value) -> int | float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        whole = self.kind == "int"
        if isinstance(value, bool) or not math.isfinite(number) or (whole and number != int(number)):
            raise UsageError(f"--{self.name} takes {'a whole number' if whole else 'a number'}, not {value!r}")
        if whole and abs(number) > _INT_MAX:
            raise UsageError(f"--{self.name} {value} is out of range", hint=f"it goes up to {_INT_MAX}")
        below = self.low is not None and number < self.low
        if below or (self.high is not None and number > self.high):
            raise UsageError(f"--{self.name} {value} is out of range", hint=f"it goes from {self.range}")
        return int(number) if whole else number

    def _check_path(self, value: str) -> str:
        path = Path(value)
        if not path.exists():
            raise UsageError(f"--{self.name}: '{value}' does not exist")
        return str(path.absolute())

    @property
    def range(self) -> str:
        """The range in words, such as '2 to 8'."""
        if self.high is None:
            return f"{self.low:g} up" if self.low is not None else "any"
        return f"{self.low:g} to {self.high:g}" if self.low is not None else f"any to {self.high:g}"


_TABLE = (
    Option("fp16", "flag", "store weights and biases as 16-bit floats"),
    Option("weightQuantBits", "int", "store weights of convolutions, matmuls and LSTMs in this many bits", 2, 8),
    Option("weightQuantBlock", "int", "weights that share a scale; -1 is one scale per channel", -1),
    Option("weightQuantAsymmetric", "switch", "quantize weights with a zero point (default 0)"),
    Option("weightQuantScaleBit", "int", "bits of a stored scale: 32 or 16", 16, 32),
    Option("hqq", "flag", "half-quadratic quantization; implies weightQuantAsymmetric"),
    Option("compressionParamsFile", "path", "bits and block size per layer, a file of MNN's own"),
    Option("optimizeLevel", "int", "0: off (MNN input only), 1: safe, 2: may be wrong in some cases", 0, 2),
    Option("optimizePrefer", "int", "0: balanced, 1: smallest, 2: fastest", 0, 2),
    Option("batch", "int", "batch size for inputs without one", 1),
    Option("keepInputFormat", "switch", "keep the source's dimension order (default 1)"),
    Option("useGeluApproximation", "switch", "compute erf Gelu as its tanh approximation (default 0)"),
    Option("convertMatmulToConv", "switch", "matmul with constant weights as convolution (default 1)"),
    Option("transformerFuse", "flag", "fuse attention; MNN does not check what it matches"),
    Option("transformerFuseC4", "switch", "keep fused attention in MNN's packed layout (default 1)"),
    Option("groupConvNative", "flag", "keep grouped convolutions whole"),
    Option("useOriginRNNImpl", "flag", "LSTM and GRU as one operator (no quantization then)"),
    Option("allowCustomOp", "flag", "convert unknown operators to placeholders that fail at run time"),
    Option("customOpLibs", "text", "libraries with custom operators, separated by ';'"),
    Option("detectSparseSpeedUp", "flag", "store sparse weights as such when that is faster"),
    Option("alignDenormalizedValue", "switch", "denormal floats become 0 (default 1)"),
    Option("saveExternalData", "flag", "weights in a second file, OUT.mnn.weight"),
    Option("saveStaticModel", "flag", "fix all shapes; needs inputConfigFile"),
    Option("inputConfigFile", "path", "input sizes for saveStaticModel"),
    Option("forTraining", "flag", "keep BatchNorm and Dropout for training"),
    Option("bizCode", "text", "a tag stored in the model"),
    Option("authCode", "text", "an authentication code stored in the model"),
    Option("targetVersion", "text", "oldest MNN that must run the model, such as 2.8"),
    Option("prototxt", "path", "the network description of a Caffe model"),
    Option("testdir", "path", "MNNConvert's own check: folder with inputs and outputs"),
    Option("testconfig", "path", "MNNConvert's own check: its settings"),
    Option("thredhold", "float", "MNNConvert's own check: largest error", 0.0),
    Option("debug", "flag", "print more while converting"),
    Option("dumpPass", "flag", "print what each of MNN's passes changed"),
)
OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}

_REFUSED = {
    "framework": "it is a setting of its own",
    "modelFile": "the source is a setting of its own",
    "MNNModel": "the output is a setting of its own",
    "JsonFile": "MNN's JSON loses digits; use graphkit's own JSON",
    "benchmarkModel": "it drops the weights, so the result can never be right",
    "splitBlockQuant": "MNN 3.6.1 then refuses every convolution",
    "info": "it converts nothing",
    "OP": "it converts nothing",
    "help": "it converts nothing",
    "version": "it converts nothing",
}

# MNN's own defaults cost accuracy or contradict its help text, so these are always passed.
_DEFAULTS: Mapping[str, Value] = {
    "bizCode": "graphkit",
    "useGeluApproximation": False,
    "weightQuantAsymmetric": False,
}


@dataclass(frozen=True)
class ConverterOptions:
    """Checked options for one conversion; make them with `ConverterOptions.of`."""

    framework: str = "ONNX"
    values: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(
        cls, framework: str = "ONNX", values: Mapping[str, Value | None] | None = None, **more: Value | None
    ) -> ConverterOptions:
        """Check the options and return them; those that are None count as not given.

        `values` and keyword arguments go by MNNConvert's own names: `of(fp16=True, weightQuantBits=4)`.
        Raises UsageError for an unknown framework or option (with a suggestion), a wrong type, a value out
        of range, or options that contradict each other.
        """
        kind = framework.upper()
        if kind not in FRAMEWORKS:
            raise UsageError(f"unknown framework '{framework}'", hint=_framework_hint(framework))
        given = {k: v for k, v in {**(values or {}), **more}.items() if v is not None}
        checked = {name: option(name).check(value) for name, value in given.items()}
        _check_together(kind, checked)
        return cls(kind, tuple(sorted(checked.items())))

    def get(self, name: str) -> Value | None:
        """The value of an option: what was given, else our default, else None (MNN's default)."""
        explicit = dict(self.values)
        if name == "weightQuantAsymmetric" and name not in explicit and explicit.get("hqq"):
            return True
        return explicit.get(name, _DEFAULTS.get(name))

    def argv(self, source: Path, output: Path) -> list[str]:
        """MNNConvert's command line, program name first; both paths should be absolute."""
        line = ["MNNConvert", "-f", self.framework, "--modelFile", str(source), "--MNNModel", str(output)]
        for name in sorted({*dict(self.values), *_DEFAULTS}):
            value = self.get(name)
            kind = OPTIONS[name].kind
            if kind == "flag":
                line += [f"--{name}"] if value else []
            else:
                line.append(f"--{name}={int(value) if isinstance(value, bool) else value}")
        return line


def option(name: str) -> Option:
    """Look an option up by MNNConvert's name; raises UsageError with a suggestion."""
    if name in OPTIONS:
        return OPTIONS[name]
    if name in _REFUSED:
        raise UsageError(f"MNNConvert's option '{name}' is not passed on: {_REFUSED[name]}")
    folded = {known.lower(): known for known in OPTIONS}
    close = difflib.get_close_matches(name.lower().replace("_", "").replace("-", ""), folded, 1, 0.5)
    hint = f"did you mean '{folded[close[0]]}'?" if close else "see `graphkit convert --help` for the options"
    raise UsageError(f"MNNConvert has no option '{name}'", hint=hint)


def _framework_hint(framework: str) -> str:
    if framework.upper() in ("TORCH", "TORCHSCRIPT", "PYTORCH"):
        return "MNN's wheel does not read TorchScript; export the model to ONNX"
    return f"known: {', '.join(FRAMEWORKS)}"


def _check_together(framework: str, values: Mapping[str, Value]) -> None:
    """Refuse combinations that MNNConvert would silently resolve in its own way."""
    if values.get("weightQuantScaleBit") not in (None, 16, 32):
        raise UsageError("--weightQuantScaleBit is 16 or 32")
    if values.get("hqq") and values.get("weightQuantAsymmetric") is False:
        raise UsageError("--hqq is always asymmetric", hint="leave --weightQuantAsymmetric out")
    for name in ("weightQuantBlock", "weightQuantScaleBit", "hqq"):
        if name in values and "weightQuantBits" not in values and "compressionParamsFile" not in values:
            raise UsageError(f"--{name} does nothing without --weightQuantBits")
    block = values.get("weightQuantBlock", -1)
    if isinstance(block, int) and block != -1 and (block < 16 or block % 16):
        raise UsageError(f"--weightQuantBlock {block} is not -1 (one scale per channel) or a multiple of 16")
    if values.get("saveStaticModel") and "inputConfigFile" not in values:
        raise UsageError("--saveStaticModel needs --inputConfigFile")
    if values.get("optimizeLevel") == 0 and framework != "MNN":
        raise UsageError("--optimizeLevel 0 works for MNN models only")
    if (framework == "CAFFE") != ("prototxt" in values):
        raise UsageError("Caffe models, and only they, need --prototxt")
