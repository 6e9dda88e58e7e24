"""Codes that keep a layer's outputs rather than its weights, from the Hessian of its inputs.

Frantar, Ashkboos, Hoefler, Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers" (ICLR 2023, arXiv:2210.17323): columns are rounded one after another, and those not yet rounded make up
for the error. Scales are those of least squared error (see `mse`), each column weighed by its Hessian. Afterwards
scales and codes are fitted to each other (see `_gptq_refine`).

A Hessian is Σ x·xᵀ (or a mean; only proportions count) over the layer's inputs x, one entry for each column of its
matrix: [columns, columns], or [groups, columns, columns] for the groups of a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.quant._gptq_core import damped, sweep, upper_factor
from graphkit.quant._gptq_refine import refined_codes, refined_scales
from graphkit.quant.codes import Array, Codes, as_matrix, blocks_of, check_bits
from graphkit.quant.collect import Hessian, output_error
from graphkit.quant.mse import best_scales
from graphkit.quant.rtn import largest

ROUNDS = 2


@dataclass(frozen=True)
class Damping:
    """The damping that served data best which it was not fitted to.

    value: the damping. error: relative output error on the held-out Hessian. tried: all that were tried, with theirs.
    """

    value: float
    error: float
    tried: tuple[tuple[float, float], ...]


def quantize_matrix(
    matrix: Array,
    bits: int,
    block_columns: int = 0,
    *,
    hessian: Array | None = None,
    name: str = "",
    asymmetric: bool = False,
    damping: float = 0.1,
    act_order: bool = False,
    rounds: int = ROUNDS,
) -> Codes:
    """Quantize float32 [rows, columns], symmetric, so that outputs on data with this Hessian stay near.

    bits: 2 to 8. block_columns: columns that share a scale, 0 for the whole row. hessian: float [columns, columns] or
    [groups, columns, columns], whose groups divide the rows. name: of the layer, for messages. damping: part of the
    mean of its diagonal that is added to it, see `best_damping`. act_order: columns with the largest inputs first.
    rounds: how often scales and codes are fitted to each other afterwards; 0 is GPTQ as published.

    Scales may be negative (see `mse`). An all-zero block has scale 0. Raises as `rtn` does; UsageError without a
    Hessian, for a damping that is not positive, and when asymmetric; ModelError when the Hessian is not finite.
    """
    check_bits(bits)
    _check_options(hessian, asymmetric, damping, name)
    matrix = as_matrix(matrix, name)
    blocks = blocks_of(matrix.shape[1], block_columns, name)
    largest(matrix, blocks, name)
    assert hessian is not None
    known = damped(_grouped(hessian, matrix, name), damping)
    state = _State.of(matrix, known, bits, blocks)
    state.sweep(_order(known) if act_order else None, name)
    for _ in range(rounds):
        state.refine()
    return state.result()


def best_damping(
    matrix: Array,
    bits: int,
    block_columns: int = 0,
    *,
    hessian: Array,
    held_out: Array,
    name: str = "",
    candidates: Sequence[float],
    act_order: bool = False,
    rounds: int = ROUNDS,
) -> Damping:
    """The damping with the least output error on a Hessian of other data than that it was fitted to.

    candidates: ascending. They are tried from the middle on, as long as the error falls: it has one valley. The other
    arguments are those of `quantize_matrix`; raises as it does, and UsageError without candidates.
    """
    if not candidates:
        raise UsageError("no damping to choose from", node=name or None)
    matrix = as_matrix(matrix, name)
    unseen = Hessian(_grouped(held_out, matrix, name), 1)
    errors: dict[int, float] = {}

    def error(at: int) -> float:
        if at not in errors:
            codes = quantize_matrix(
                matrix,
                bits,
                block_columns,
                hessian=hessian,
                name=name,
                damping=candidates[at],
                act_order=act_order,
                rounds=rounds,
            )
            errors[at] = output_error(unseen, matrix, codes.values())
        return errors[at]

    best = len(candidates) // 2
    for step in (-1, 1):
        while 0 <= best + step < len(candidates) and error(best + step) < error(best):
            best += step
    tried = tuple((candidates[at], errors[at]) for at in sorted(errors))
    return Damping(candidates[best], error(best), tried)


def _check_options(hessian: Array | None, asymmetric: bool, damping: float, name: str) -> None:
    if hessian is None:
        raise UsageError(
            "gptq needs data that reach this layer", node=name or None, hint="give --calib, or use the method mse"
        )
    if asymmetric:
        raise UsageError("gptq has no zero points", node=name or None, hint="use rtn, or leave asymmetric out")
    if not 0 < damping < float("inf"):
        raise UsageError(f"a damping of {damping} is not positive", node=name or None, hint="0.01 to 1 are usual")


def _grouped(hessian: Array, matrix: Array, name: str) -> Array:
    """The Hessian as [groups, columns, columns]; raises unless it fits the matrix and is finite."""
    rows, columns = matrix.shape
    known = hessian[None] if hessian.ndim == 2 else hessian
    if known.ndim != 3 or known.shape[1:] != (columns, columns) or not known.shape[0] or rows % known.shape[0]:
        raise GraphkitError(
            f"a Hessian of shape {list(hessian.shape)} does not fit weights [{rows}, {columns}]", node=name or None
        )
    if not np.isfinite(known).all():
        raise ModelError(
            "its inputs are NaN or infinite on the calibration data",
            node=name or None,
            hint="leave this layer out with --skip, or look for the sample that overflows",
        )
    return known


def _order(hessian: Array) -> Array:
    """Columns by falling diagonal, that of all groups together."""
    found: Array = np.argsort(-np.einsum("gcc->c", hessian), kind="stable")
    return found


@dataclass(eq=False)
class _State:
    """A layer on its way: weights, codes float32 [groups, columns, rows]; scales [groups, blocks, rows]."""

    weights: Array
    codes: Array
    scales: Array
    hessian: Array
    bits: int

    @classmethod
    def of(cls, matrix: Array, hessian: Array, bits: int, blocks: int) -> _State:
        groups, (rows, columns) = hessian.shape[0], matrix.shape
        weights = np.ascontiguousarray(matrix.reshape(groups, rows // groups, columns).swapaxes(1, 2))
        scales = np.zeros((groups, blocks, rows // groups), np.float32)
        return cls(weights, np.zeros_like(weights), scales, hessian, bits)

    @property
    def block(self) -> int:
        """Columns of a block."""
        return int(self.weights.shape[1] // self.scales.shape[1])

    def sweep(self, order: Array | None, name: str) -> None:
        """Find scales and codes by GPTQ; with an order, scales come first, from the weights as they are."""
        numbers = np.arange(self.weights.shape[1]) // self.block
        if order is None:
            factor = upper_factor(self.hessian, name)
            self.codes = sweep(self.weights.copy(), factor, self.bits, numbers, self.scales, self._scales_of)
            return
        for number in range(self.scales.shape[1]):
            part = slice(number * self.block, (number + 1) * self.block)
            self.scales[:, number] = self._scales_of(self.weights[:, part], number)
        factor = upper_factor(self.hessian[:, order[:, None], order], name)
        self.codes[:, order] = sweep(self.weights[:, order], factor, self.bits, numbers[order], self.scales, None)

    def _scales_of(self, weights: Array, number: int) -> Array:
        """The scales of one block, [groups, rows], from its weights [groups, columns of it, rows]."""
        groups, width, rows = weights.shape
        flat = np.ascontiguousarray(weights.swapaxes(1, 2)).reshape(groups * rows, width)
        counts = np.einsum("gcc->gc", self.hessian)[:, number * width : (number + 1) * width].astype(np.float32)
        weighed = np.broadcast_to(counts[:, None], (groups, rows, width)).reshape(flat.shape)
        tops = np.abs(flat).max(axis=1, keepdims=True)
        return best_scales(flat, tops, self.bits, weights=weighed).reshape(groups, rows)

    def refine(self) -> None:
        """Fit scales to codes, then codes to scales."""
        known = self.hessian.astype(np.float32)
        self.scales = refined_scales(self.weights, self.codes, self.scales, known)
        each = self.scales.repeat(self.block, axis=1)
        self.codes = refined_codes(self.weights, self.codes, each, known, self.bits)

    def result(self) -> Codes:
        """The codes and scales, rows first."""
        return Codes(_upright(self.codes).astype(np.int8), _upright(self.scales), None, self.bits)


def _upright(array: Array) -> Array:
    """[groups, n, rows] as contiguous [groups · rows, n]."""
    groups, count, rows = array.shape
    return np.ascontiguousarray(array.swapaxes(1, 2)).reshape(groups * rows, count)
