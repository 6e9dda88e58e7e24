"""Judge a .mnn file as MNN runs it by default, and tell its fast convolution's noise from a fault.

MNN computes 3×3 convolutions with large Winograd tiles by default, which costs accuracy: on ppocr4_det the largest
error is 1.9e-3, with the smallest tiles 3e-5 (measured, MNN 3.6.1). A file that is right with small tiles is right;
what the fast convolution adds is said, with the hint that avoids it. Source of the effect: Lavin and Gray 2016,
"Fast Algorithms for Convolutional Neural Networks"; the hint is MNN's Interpreter::WINOGRAD_MEMORY_LEVEL.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphkit.compare import Tolerance
from graphkit.mnn import worker
from graphkit.proof import Evidence, Proof

FAST_CONVOLUTION = 1e-2  # of the largest value: what large tiles may add before we call it a fault


def outputs(
    evidence: Evidence, path: Path, *, memory: int = 0, exact: bool = False, timeout: float = 300.0
) -> list[Mapping[str, Any]]:
    """What MNN computes from each sample; `exact` asks for the smallest Winograd tiles. Raises as `worker.run_all`."""
    feeds = [sample.feeds for sample in evidence.samples]
    runs = worker.run_all(path, feeds, memory=memory, winograd=0 if exact else None, timeout=timeout)
    return [run.outputs for run in runs]


def judge(evidence: Evidence, path: Path, tolerance: Tolerance, *, memory: int = 0, timeout: float = 300.0) -> Proof:
    """Judge a .mnn file against reference outputs; raises what `worker.run_all` raises.

    A file that is over the tolerance by default and within it with exact convolutions is equal, and the note says
    what the default costs, as long as that is less than FAST_CONVOLUTION.
    """
    default = outputs(evidence, path, memory=memory, timeout=timeout)
    proof = evidence.judge_outputs(default, tolerance, squeeze=True)
    if proof.ok or not proof.max_error <= FAST_CONVOLUTION:
        return proof
    small_tiles = outputs(evidence, path, memory=memory, exact=True, timeout=timeout)
    exact = evidence.judge_outputs(small_tiles, tolerance, squeeze=True)
    if not exact.ok:
        return proof
    cost = (
        f"MNN's fast convolution brings the error to {proof.max_error:.1e} when it runs by default; "
        "setHint(WINOGRAD_MEMORY_LEVEL, 0) avoids that"
    )
    return Proof(exact.checks, "; ".join(part for part in (exact.note, cost) if part))
