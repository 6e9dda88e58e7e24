"""One way to store a weight: bits, block and symmetry."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.errors import UsageError

FLOAT_BITS = 32


@dataclass(frozen=True, order=True)
class Setting:
    """How a weight is stored: `bits` a code (2 to 8), one scale per `block` input channels of a row (0: one per
    row), codes symmetric around 0 or with a zero point per scale.

    Bits 32 mean that the weight stays float. Written as text: `4b32` (4 bits, block 32), `8` (8 bits per row),
    `4b32a` (asymmetric), `float`. Raises UsageError for bits and blocks that MNN cannot run: a block is 0 or a
    multiple of 16.
    """

    bits: int
    block: int = 0
    symmetric: bool = True

    def __post_init__(self) -> None:
        if self.bits != FLOAT_BITS and not 2 <= self.bits <= 8:
            raise UsageError(f"weights are stored with 2 to 8 bits, not {self.bits}")
        if self.block < 0 or self.block % 16 or (self.block and self.is_float):
            raise UsageError(f"a block is 0 (one scale per row) or a multiple of 16, not {self.block}")

    @property
    def is_float(self) -> bool:
        """True for a weight that is not quantized."""
        return self.bits == FLOAT_BITS

    def __str__(self) -> str:
        if self.is_float:
            return "float"
        return f"{self.bits}{f'b{self.block}' if self.block else ''}{'' if self.symmetric else 'a'}"

    def for_channels(self, channels: int) -> Setting:
        """This setting where its block divides the input channels of a row; the same with one scale per row else."""
        return self if not self.block or channels % self.block == 0 else Setting(self.bits, 0, self.symmetric)


FLOAT = Setting(FLOAT_BITS)
