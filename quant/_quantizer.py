"""The methods by name, as one picklable call from a layer's weights and a setting to codes."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from graphkit.errors import UsageError
from graphkit.quant._extremes import without_extreme_rows
from graphkit.quant._tiny import without_tiny_scales
from graphkit.quant.codes import Codes
from graphkit.quant.collect import Hessian
from graphkit.quant.layers import Layer
from graphkit.quant.options import Method, known_method
from graphkit.quant.setting import Setting

Array = npt.NDArray[Any]
QuantizeLayer = Callable[[Layer, Array, Setting, Any], Codes]


@dataclass(frozen=True)
class Quantizer:
    """A method with its options (keyword arguments of its `quantize_matrix`).

    A layer without a Hessian (a table; one that no calibration data reached) is quantized with `mse` where the
    method is `gptq`. `rtn` keeps blocks whose scale is at most 1e-6, which MNN's converter wipes out (`_tiny`).
    Raises UsageError for an unknown method.
    """

    method: Method = "rtn"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known_method(self.method)

    def __call__(self, layer: Layer, matrix: Array, setting: Setting, hessian: Array | None) -> Codes:
        """The codes of one layer. matrix: float32 [rows, columns]. Raises ModelError for NaN and infinities."""
        method = fed_method(self.method, hessian)
        options = self.options if method == self.method else {}
        quantize: Callable[..., Codes] = importlib.import_module(f"graphkit.quant.{method}").quantize_matrix
        columns = layer.block_columns(setting.block)
        if not setting.symmetric and method != "rtn":
            raise UsageError(
                f"{method} makes symmetric codes only", node=layer.name, hint="use the method rtn for asymmetric ones"
            )
        extra: dict[str, Any] = {} if setting.symmetric else {"asymmetric": True, "integer_zeros": True}
        if method == "gptq":
            extra["hessian"] = hessian

        def codes(rows: Array) -> Codes:
            return quantize(rows, setting.bits, columns, name=layer.name, **extra, **options)

        if method == "rtn":
            return without_tiny_scales(matrix, setting.bits, columns, codes)
        return without_extreme_rows(matrix, codes)


def fed_method(method: Method, hessian: Any) -> Method:
    """The method for a layer with this Hessian: `mse` in place of `gptq` where there is none."""
    return "mse" if method == "gptq" and hessian is None else method


def quantizer_of(method: QuantizeLayer | str) -> QuantizeLayer:
    """What quantizes a layer, from a method's name or a function. Raises UsageError for unknown names."""
    return Quantizer(known_method(method)) if isinstance(method, str) else method


def identity_of(quantizer: QuantizeLayer, layer: Layer) -> str:
    """What the codes of a layer depend on besides weights and data: the quantizer's name, options and code.

    An object may say it itself by a method `identity(layer)`. A function is known by the text of its module, an
    object by its `repr`, too. Empty when nothing identifies it.
    """
    own = package_digest()
    if hasattr(quantizer, "identity"):
        return f"{type(quantizer).__qualname__} {quantizer.identity(layer)} {own}"
    if isinstance(quantizer, Quantizer):
        return f"{quantizer!r} {own}"
    if isinstance(quantizer, partial):
        inner = identity_of(quantizer.func, layer)
        return inner and f"{inner} {quantizer.args!r} {sorted(quantizer.keywords.items())!r}"
    kind = quantizer if inspect.isroutine(quantizer) else type(quantizer)
    try:
        code = inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):
        return ""
    what = kind.__qualname__ if kind is quantizer else repr(quantizer)
    # An address says nothing, and may come again.
    return "" if " at 0x" in what else f"{what} {hashlib.sha256(code.encode()).hexdigest()} {own}"


@cache
def package_digest() -> str:
    """A hash of the code of this package, which decides what codes come out."""
    found = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def as_hessian(hessian: Any) -> Any:
    """The matrix of a `graphkit.quant.collect.Hessian`; anything else as it is."""
    return hessian.matrix if isinstance(hessian, Hessian) else hessian
