"""Clipping without data: for each block the scale under which the rounded weights are nearest to the weights.

The largest weight need not be representable: a smaller scale costs the outliers something and gains more on all the
others. Scales are searched on a grid as by Banner, Nahshan, Soudry, "Post training 4-bit quantization of convolutional
networks for rapid-deployment" (NeurIPS 2019, arXiv:1810.05723) and Choukroun et al., "Low-bit Quantization of Neural
Networks for Efficient Inference" (2019, arXiv:1902.06822), who search per channel; then codes and scale are fitted to
each other in turn, as Lloyd, "Least squares quantization in PCM" (1982) does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphkit.errors import UsageError
from graphkit.quant._rounding import by_pieces, cut, nearest
from graphkit.quant.codes import Array, Codes, as_matrix, blocks_of, check_bits, code_range
from graphkit.quant.rtn import largest

_SMALLEST = {2: 0.25, 3: 0.3, 4: 0.35, 5: 0.45, 6: 0.55, 7: 0.65, 8: 0.75}  # of the largest weight: the end of the grid
_LARGEST = 1.3  # its beginning: in short blocks a larger scale than needed may happen to fit
_TRIALS = 36
_FITS = 3  # rounds of fitting scales to codes and codes to scales
_NOTHING = np.float32(1e-30)  # blocks with no larger weight are 0


def quantize_matrix(
    matrix: Array,
    bits: int,
    block_columns: int = 0,
    *,
    hessian: Array | None = None,
    name: str = "",
    asymmetric: bool = False,
    trials: int = _TRIALS,
) -> Codes:
    """Quantize float32 [rows, columns], symmetric, with scales of least squared error.

    bits: 2 to 8. block_columns: columns that share a scale, 0 for the whole row. hessian: not used here; `gptq` weighs
    columns. name: of the layer, for messages. trials: scales tried for each block and sign.

    The error is never larger than that of `rtn`. Scales may be negative: the one code more that there is on the
    negative side then goes where it is worth more. An all-zero block has scale 0. Raises as `rtn` does, and UsageError
    when asymmetric.
    """
    check_bits(bits)
    if asymmetric:
        raise UsageError("mse has no zero points", node=name or None, hint="use rtn, or leave asymmetric out")
    matrix = as_matrix(matrix, name)
    blocks = blocks_of(matrix.shape[1], block_columns, name)
    tops = largest(matrix, blocks, name)
    codes, scales = np.empty(matrix.shape, np.int8), np.empty(tops.shape, np.float32)

    def work(start: int, stop: int) -> None:
        piece = matrix[start:stop]
        scales[start:stop] = best_scales(piece, tops[start:stop], bits, trials=trials)
        codes[start:stop] = nearest(piece, scales[start:stop], bits).reshape(piece.shape)

    by_pieces(matrix, work)
    return Codes(codes, scales, None, bits)


def best_scales(matrix: Array, tops: Array, bits: int, *, weights: Array | None = None, trials: int = _TRIALS) -> Array:
    """Scales of least squared error, float32 [rows, blocks].

    matrix: [rows, columns]. tops: largest absolute weight of each block. weights: [rows, columns] or what broadcasts
    to it, how much an error counts; None: all alike.
    """
    view = cut(matrix, tops.shape[1])
    counts = np.broadcast_to(np.float32(1) if weights is None else weights, matrix.shape).reshape(view.shape)
    search = _Search(matrix, view, None if weights is None else counts, bits, tops.shape)
    tops = np.where(tops > _NOTHING, tops, np.float32(0))
    for scales in _candidates(tops, bits, trials):
        search.consider(scales)
    for _ in range(_FITS):
        search.consider(search.fitted())
    return search.best


def _candidates(tops: Array, bits: int, trials: int) -> Iterator[Array]:
    """Scales to try: first that of `rtn`, so that no result is worse; then the first code stands for parts of the top.

    With either sign: the first code is one further from 0 than the last.
    """
    low, high = code_range(bits)
    yield tops / np.float32(high)
    for part in np.linspace(_LARGEST, _SMALLEST[bits], trials, dtype=np.float32):
        scales = tops * (part / np.float32(-low))
        yield scales
        yield -scales


class _Search:
    """The best scales so far of all blocks of a matrix, and their errors."""

    def __init__(self, matrix: Array, view: Array, counts: Array | None, bits: int, shape: tuple[int, ...]) -> None:
        self.matrix = matrix
        self.view = view
        self.counts = counts
        self.bits = bits
        self.best = np.zeros(shape, np.float32)
        self.least = np.full(shape, np.inf, np.float32)

    def consider(self, scales: Array) -> None:
        """Take over scales where they lower the error."""
        steps = nearest(self.matrix, scales, self.bits)
        steps *= scales[:, :, None]
        steps -= self.view
        errors = self._product(steps, steps)
        better = errors < self.least
        self.best[better], self.least[better] = scales[better], errors[better]

    def fitted(self) -> Array:
        """The scales of least squared error for the codes that the best scales give; 0 where all codes are."""
        codes = nearest(self.matrix, self.best, self.bits)
        over, under = self._product(self.view, codes), self._product(codes, codes)
        found: Array = np.divide(over, under, out=np.zeros_like(over), where=under > 0)
        return found

    def _product(self, one: Array, other: Array) -> Array:
        if self.counts is None:
            found: Array = np.einsum("rbk,rbk->rb", one, other)
        else:
            found = np.einsum("rbk,rbk,rbk->rb", one, other, self.counts)
        return found
