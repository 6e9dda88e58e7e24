"""What can still be gained after GPTQ's one sweep: scales fitted to the codes, and codes to each other, in turn.

Both lower tr((W − Ŵ)·H·(W − Ŵ)ᵀ) with H held. The codes go by coordinate descent, as Behdin et al., "QuantEase"
(2023, arXiv:2309.01885), do; the scales of a row are a least squares problem with one unknown for each block.
Matrices stand on their side, [groups, columns, rows of a group], as in `_gptq_core`.
"""

from __future__ import annotations

import numpy as np

from graphkit.quant.codes import Array, code_range

_RUN = 32  # columns after which what they changed is passed on to all others
_UNKNOWNS = 1 << 22  # elements of the systems solved at once


def refined_scales(weights: Array, codes: Array, scales: Array, hessian: Array) -> Array:
    """The scales of least error for these codes, float32 [groups, blocks, rows].

    weights, codes: float32 [groups, columns, rows]. scales: as they are; kept where all codes of a block are 0.
    hessian: float32 [groups, columns, columns].
    """
    found = np.empty_like(scales)
    blocks, rows = scales.shape[1:]
    step = max(1, _UNKNOWNS // (scales.shape[0] * blocks * blocks))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        found[:, :, part] = _solved(weights[:, :, part], codes[:, :, part], scales[:, :, part], hessian)
    return found


def _solved(weights: Array, codes: Array, scales: Array, hessian: Array) -> Array:
    groups, columns, rows = codes.shape
    blocks = scales.shape[1]
    cut = (groups, blocks, columns // blocks, rows)
    wanted = (codes * (hessian @ weights)).reshape(cut).sum(axis=2)
    system = np.empty((groups, rows, blocks, blocks), np.float64)
    for number in range(blocks):
        part = slice(number * cut[2], (number + 1) * cut[2])
        seen = hessian[:, :, part] @ codes[:, part]
        seen *= codes
        system[:, :, number] = seen.reshape(cut).sum(axis=2).swapaxes(1, 2)
    diagonal = np.einsum("grbb->grb", system)
    empty = diagonal <= 0
    diagonal[empty] = 1
    right = np.where(empty, scales.swapaxes(1, 2), wanted.swapaxes(1, 2))
    found: Array = np.linalg.solve(system, right[..., None].astype(np.float64))[..., 0]
    return found.swapaxes(1, 2).astype(np.float32)


def refined_codes(weights: Array, codes: Array, scales: Array, hessian: Array, bits: int) -> Array:
    """Codes after one round of coordinate descent: each in turn the best there is while the others stay.

    scales: float32 [groups, columns, rows], those of each column; else as `refined_scales`.
    """
    columns = weights.shape[1]
    codes = codes.copy()
    residual = hessian @ (weights - codes * scales)
    with np.errstate(divide="ignore"):
        factors = np.where(scales == 0, np.float32(0), np.float32(1) / scales)
    for start in range(0, columns, _RUN):
        part = slice(start, start + _RUN)
        near = residual[:, part]
        changes = _descend(codes[:, part], scales[:, part], factors[:, part], hessian[:, part, part], near, bits)
        residual -= hessian[:, :, part] @ changes
    return codes


def _descend(codes: Array, scales: Array, factors: Array, hessian: Array, residual: Array, bits: int) -> Array:
    """Change the codes of a few columns; returns how much their weights changed. `residual` is left as it was."""
    low, high = code_range(bits)
    residual = residual.copy()
    changes = np.empty_like(codes)
    for at in range(codes.shape[1]):
        wanted = codes[:, at] + residual[:, at] / hessian[:, at, at, None] * factors[:, at]
        rounded = np.clip(np.rint(wanted), low, high)
        changes[:, at] = (rounded - codes[:, at]) * scales[:, at]
        codes[:, at] = rounded
        residual -= hessian[:, :, at, None] * changes[:, None, at]
    return changes
