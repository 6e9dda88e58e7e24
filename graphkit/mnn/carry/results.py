"""What became of the quantized weights of a model on their way into a .mnn file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class CarriedLayer:
    """A layer of the .mnn file that holds the codes of the ONNX model.

    name: of MNN's operator. weights: names of the quantized ONNX weights it is made of. block: input channels that
    share a scale, 0 for one scale a channel. scales: float32 or float16. before, after: bytes as floats and as codes.
    """

    name: str
    op: str
    weights: tuple[str, ...]
    bits: int
    block: int
    symmetric: bool
    scales: str
    before: int
    after: int

    @property
    def kind(self) -> str:
        """How it is quantized, in words: `4-bit block 32`."""
        block = f"block {self.block}" if self.block else "per channel"
        return f"{self.bits}-bit {block}{'' if self.symmetric else ' with zero points'}"


@dataclass(frozen=True)
class LeftFloat:
    """A quantized ONNX weight that is float in the .mnn file, and why.

    name: of the weight; node: one that uses it. bytes: as floats; stored: as the ONNX file has it.
    """

    name: str
    node: str
    reason: str
    bytes: int
    stored: int


@dataclass(frozen=True)
class Carriage:
    """All quantized weights of a conversion. low_memory_error: largest relative error when MNN runs the file with
    memory `low` (activations rounded to 8 bits); None when it was not measured.
    """

    layers: tuple[CarriedLayer, ...] = ()
    left: tuple[LeftFloat, ...] = ()
    low_memory_error: float | None = None
    kinds: Mapping[str, int] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kinds", dict(Counter(layer.kind for layer in self.layers).most_common()))

    @property
    def before(self) -> int:
        """Bytes of the carried layers as floats."""
        return sum(layer.before for layer in self.layers)

    @property
    def after(self) -> int:
        """Bytes of the carried layers as codes and scales."""
        return sum(layer.after for layer in self.layers)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "layers": [{**asdict(layer), "weights": list(layer.weights)} for layer in self.layers],
            "left_float": [asdict(entry) for entry in self.left],
            "bytes": {"before": self.before, "after": self.after},
            "low_memory_error": self.low_memory_error,
        }
