"""What a user asks of quantization: one setting for all layers, and others for layers by name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from graphkit.errors import UsageError
from graphkit.options import suggest
from graphkit.quant.codes import check_bits
from graphkit.quant.setting import FLOAT, FLOAT_BITS, Setting

Method = Literal["rtn", "mse", "gptq"]
ScaleType = Literal["float32", "float16"]

_OVERRIDE = re.compile(r"(?P<bits>\d+)(?:b(?P<block>\d+))?(?P<mode>[as])?(?::(?P<method>\w+))?")
_EXAMPLE = "examples: '*.lm_head=8', '*.down_proj=6b64:gptq', 'head*=float'"


@dataclass(frozen=True)
class Override:
    """Another setting for the layers that a pattern names; what is None stays as it is for all.

    pattern: a layer's name, or one with `*`, `?` and `[…]`. bits: 2 to 8, or 32 for float.
    """

    pattern: str
    bits: int | None = None
    block: int | None = None
    symmetric: bool | None = None
    method: Method | None = None
    scales: ScaleType | None = None
    why: str = "user"

    @classmethod
    def parse(cls, text: str) -> Override:
        """From `PATTERN=BITS[bBLOCK][a|s][:METHOD]` or `PATTERN=float`. Raises UsageError."""
        pattern, equals, value = text.rpartition("=")
        found = _OVERRIDE.fullmatch(value)
        if not equals or not pattern or (found is None and value != "float"):
            raise UsageError(f"'{text}' is not a layer's pattern and a setting", hint=_EXAMPLE)
        if found is None:
            return cls(pattern, FLOAT_BITS)
        bits = int(found["bits"])
        check_bits(bits)
        block = int(found["block"]) if found["block"] else None
        Setting(bits, block or 0)  # refuses blocks that MNN cannot run
        symmetric = {"a": False, "s": True}.get(found["mode"])
        return cls(pattern, bits, block, symmetric, known_method(found["method"]) if found["method"] else None)

    def applied(self, setting: Setting) -> Setting:
        """The setting with what this override changes."""
        bits = setting.bits if self.bits is None else self.bits
        if bits == FLOAT_BITS:
            return FLOAT
        block = setting.block if self.block is None else self.block
        return Setting(bits, block, setting.symmetric if self.symmetric is None else self.symmetric)


@dataclass(frozen=True)
class QuantizeOptions:
    """Settings for all layers, and exceptions.

    bits: 2 to 8 a weight. block: input channels that share a scale, 0 for one scale an output channel; layers that it
    does not divide have one scale a channel. method: `rtn` (MNN's rounding), `mse` (least squared error, without
    data), `gptq` (needs calibration data). symmetric: no zero points; others are whole numbers, as ONNX has them, and
    made by rtn only.
    scales: how the .mnn file stores scales; for float16 they are rounded to halves, except where that loses too much.
    layers: exceptions, later ones win. skip: patterns of layers that stay float.
    embeddings: also tables that Gather reads, always with 8 bits. damping: of GPTQ, None to choose it on a
    part of the calibration data. act_order: GPTQ goes through columns by their importance.
    Raises UsageError for values out of range.
    """

    bits: int = 8
    block: int = 0
    method: Method = "rtn"
    symmetric: bool = True
    scales: ScaleType = "float32"
    layers: tuple[Override, ...] = ()
    skip: tuple[str, ...] = ()
    embeddings: bool = True
    damping: float | None = None
    act_order: bool = False

    def __post_init__(self) -> None:
        check_bits(self.bits)
        Setting(self.bits, self.block, self.symmetric)
        known_method(self.method)
        check_method(self.method, self.symmetric)
        if self.scales not in get_args(ScaleType):
            raise UsageError(f"scales is one of {', '.join(get_args(ScaleType))}, not '{self.scales}'")
        if self.damping is not None:
            check_damping(self.damping)

    @property
    def setting(self) -> Setting:
        """The setting for all layers."""
        return Setting(self.bits, self.block, self.symmetric)


def parse_layers(texts: Iterable[str]) -> tuple[Override, ...]:
    """Exceptions from texts; one text may hold several, with commas between. Raises UsageError."""
    return tuple(Override.parse(part.strip()) for text in texts for part in text.split(",") if part.strip())


def check_damping(damping: float) -> None:
    """Raise UsageError for a damping that makes no sense."""
    if not 0 < damping <= 10:
        raise UsageError(f"damping is a fraction of the mean of the diagonal, above 0, not {damping:g}")


def check_method(method: Method, symmetric: bool, name: str = "") -> None:
    """Raise UsageError, naming the layer, for asymmetric codes by a method that makes none."""
    if not symmetric and method != "rtn":
        raise UsageError(f"asymmetric codes are made by rtn, not by {method}", node=name or None)


def known_method(name: str) -> Method:
    """The method of this name. Raises UsageError with a suggestion."""
    if name not in get_args(Method):
        raise UsageError(
            f"method is one of {', '.join(get_args(Method))}, not '{name}'{suggest(name, get_args(Method))}"
        )
    method: Method = name  # type: ignore[assignment]  # checked above
    return method
