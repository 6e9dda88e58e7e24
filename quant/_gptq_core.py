"""The column loop of GPTQ, over groups of rows at once, and its two linear algebra steps.

Matrices stand on their side here, [groups, columns, rows of a group], so that a column is one run of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from graphkit.errors import ModelError
from graphkit.quant.codes import Array, code_range

_LAZY = 128  # columns after which errors are passed on to all columns behind
_INNER = 16  # columns after which they are passed on within those

Scaler = Callable[[Array, int], Array]  # the weights of a block as they stand now and its number → its scales


def damped(hessian: Array, damping: float) -> Array:
    """The Hessian, float64 [groups, c, c], with `damping` × the mean of its diagonal added to the diagonal.

    A group of which nothing is known (all 0) gets the unit matrix: its columns then count alike.
    """
    made = hessian.astype(np.float64)
    diagonal = np.einsum("gcc->gc", made)
    mean = diagonal.mean(axis=1)
    diagonal += np.where(mean > 0, damping * mean, 1.0)[:, None]
    return made


def upper_factor(hessian: Array, name: str) -> Array:
    """The upper triangular U, float32 [groups, c, c], with H⁻¹ = Uᵀ·U.

    Found without H⁻¹: H read backwards is L·Lᵀ, so H is R·Rᵀ with R upper triangular, and U is R⁻¹.
    Raises ModelError, naming the layer, when H is not positive definite.
    """
    try:
        lower = np.linalg.cholesky(hessian[:, ::-1, ::-1])
        upper = np.linalg.inv(lower[:, ::-1, ::-1])
    except np.linalg.LinAlgError as error:
        raise ModelError(
            "the Hessian of its inputs is not positive definite", node=name or None, hint="use a larger damping"
        ) from error
    found: Array = np.triu(upper).astype(np.float32)
    return found


def sweep(weights: Array, factor: Array, bits: int, numbers: Array, scales: Array, scaler: Scaler | None) -> Array:
    """Round column after column, and let the columns behind make up for each error.

    weights: float32 [groups, columns, rows], changed. factor: of `upper_factor`. numbers: [columns], which block each
    column is of. scales: float32 [groups, blocks, rows]; with a `scaler`, each block's are asked for when its first
    column comes, and written there. Returns codes, float32 in the shape of the weights.
    """
    columns = weights.shape[1]
    codes = np.empty_like(weights)
    block = columns // scales.shape[1]
    step = block * (_LAZY // block) if block <= _LAZY else _LAZY
    for start, stop in _runs(0, columns, step, block if block > _LAZY else columns):
        errors = np.empty_like(weights[:, start:stop])
        for first, last in _runs(start, stop, _INNER, block):
            if scaler is not None and first % block == 0:
                number = first // block
                scales[:, number] = scaler(weights[:, first : first + block], number)
            part = slice(first - start, last - start)
            codes[:, first:last], errors[:, part] = _columns(
                weights[:, first:last], factor[:, first:last, first:last], bits, scales[:, numbers[first:last]]
            )
            _pass_on(weights, errors[:, part], factor, first, last, stop)
        _pass_on(weights, errors, factor, start, stop, columns)
    return codes


def _runs(start: int, stop: int, step: int, block: int) -> Iterator[tuple[int, int]]:
    """Runs of at most `step` columns that do not reach over the first column of a block."""
    while start < stop:
        end = min(start + step, stop, (start // block + 1) * block)
        yield start, end
        start = end


def _columns(weights: Array, factor: Array, bits: int, scales: Array) -> tuple[Array, Array]:
    """Codes and errors of a few columns; scales: [groups, those columns, rows]."""
    low, high = code_range(bits)
    codes, errors = np.empty_like(weights), np.empty_like(weights)
    with np.errstate(divide="ignore"):
        factors = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    for at in range(weights.shape[1]):
        column = weights[:, at]
        rounded = np.clip(np.rint(column * factors[:, at]), low, high)
        error = (column - rounded * scales[:, at]) / factor[:, at, at, None]
        codes[:, at], errors[:, at] = rounded, error
        weights[:, at + 1 :] -= factor[:, at, at + 1 :, None] * error[:, None]
    return codes, errors


def _pass_on(weights: Array, errors: Array, factor: Array, start: int, stop: int, end: int) -> None:
    """Take what the errors of columns `start` to `stop` mean for those up to `end` from these."""
    if stop < end:
        weights[:, stop:end] -= factor[:, start:stop, stop:end].swapaxes(1, 2) @ errors
