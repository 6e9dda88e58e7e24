"""graphkit: takes ONNX models to MNN, and proves the result.

    import graphkit as gk

    model = gk.load("m.onnx")
    result = gk.optimize(model, "mnn")
    gk.convert(result.model, "m.mnn")

Names are imported when they are first used, so that `import graphkit` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from graphkit.version import __version__ as __version__

if TYPE_CHECKING:
    from graphkit.compare import Tolerance
    from graphkit.errors import (
        GraphkitError,
        MismatchError,
        MnnError,
        ModelError,
        OutputError,
        PassError,
        UsageError,
    )
    from graphkit.graph import Graph, Node, TensorType
    from graphkit.inputs import load_inputs, random_inputs
    from graphkit.mnn.diff import Difference, diff
    from graphkit.mnn.findings import Finding
    from graphkit.mnn.options import ConverterOptions
    from graphkit.mnn.preflight import CheckResult, check
    from graphkit.mnn.road import ConvertResult, convert
    from graphkit.model import Model, load, save
    from graphkit.optimizer import OptimizeResult, optimize
    from graphkit.pipeline import Pipeline
    from graphkit.quant.options import QuantizeOptions
    from graphkit.quantizing import Quantized, quantize
    from graphkit.registry import Registry
    from graphkit.report.inspection import inspect
    from graphkit.rewrite import Builder, Change, Outcome, PassResult, Refusal, Rewrite, Rule, apply_rules, rule
    from graphkit.verification.outputs import VerifyResult, verify

_WHERE = {
    "graphkit.compare": ("Tolerance",),
    "graphkit.errors": (
        "GraphkitError",
        "MismatchError",
        "MnnError",
        "ModelError",
        "OutputError",
        "PassError",
        "UsageError",
    ),
    "graphkit.graph": ("Graph", "Node", "TensorType"),
    "graphkit.inputs": ("load_inputs", "random_inputs"),
    "graphkit.mnn.diff": ("Difference", "diff"),
    "graphkit.mnn.findings": ("Finding",),
    "graphkit.mnn.options": ("ConverterOptions",),
    "graphkit.mnn.preflight": ("CheckResult", "check"),
    "graphkit.mnn.road": ("ConvertResult", "convert"),
    "graphkit.model": ("Model", "load", "save"),
    "graphkit.optimizer": ("OptimizeResult", "optimize"),
    "graphkit.pipeline": ("Pipeline",),
    "graphkit.quant.options": ("QuantizeOptions",),
    "graphkit.quantizing": ("Quantized", "quantize"),
    "graphkit.registry": ("Registry",),
    "graphkit.report.inspection": ("inspect",),
    "graphkit.rewrite": (
        "Builder",
        "Change",
        "Outcome",
        "PassResult",
        "Refusal",
        "Rewrite",
        "Rule",
        "apply_rules",
        "rule",
    ),
    "graphkit.verification.outputs": ("VerifyResult", "verify"),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Builder",
    "Change",
    "CheckResult",
    "ConvertResult",
    "ConverterOptions",
    "Difference",
    "Finding",
    "Graph",
    "GraphkitError",
    "MismatchError",
    "MnnError",
    "Model",
    "ModelError",
    "Node",
    "OptimizeResult",
    "Outcome",
    "OutputError",
    "PassError",
    "PassResult",
    "Pipeline",
    "QuantizeOptions",
    "Quantized",
    "Refusal",
    "Registry",
    "Rewrite",
    "Rule",
    "TensorType",
    "Tolerance",
    "UsageError",
    "VerifyResult",
    "apply_rules",
    "check",
    "convert",
    "diff",
    "inspect",
    "load",
    "load_inputs",
    "optimize",
    "quantize",
    "random_inputs",
    "rule",
    "save",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'graphkit' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
