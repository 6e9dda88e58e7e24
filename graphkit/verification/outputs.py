"""Compare two models, each an ONNX or an MNN file, on the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkit.compare import Tolerance
from graphkit.errors import UsageError
from graphkit.mnn import proving, worker
from graphkit.mnn.fileinfo import read_file_info
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings, bound_model
from graphkit.proof import Evidence, Feeds, Proof, Sample
from graphkit.runtime import Session


@dataclass(frozen=True)
class VerifyResult:
    """The verdict on a candidate: `proof` holds every output of every sample."""

    reference: Path
    candidate: Path
    proof: Proof
    tolerance: Tolerance

    @property
    def ok(self) -> bool:
        """True when every output is within the tolerance and something was compared."""
        return self.proof.kind == "equal"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "reference": str(self.reference),
            "candidate": str(self.candidate),
            "ok": self.ok,
            "tolerance": self.tolerance.to_dict(),
            **self.proof.to_dict(),
        }


def verify(
    reference: PathLike,
    candidate: PathLike,
    *,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    bind: Bindings | None = None,
    tolerance: Tolerance | None = None,
    memory: int = 0,
    timeout: float = 300.0,
) -> VerifyResult:
    """Compare a candidate (.onnx or .mnn) with a reference (.onnx or .mnn), output by output.

    Samples are `inputs`, else random ones that the reference accepts. An ONNX reference runs twice in
    onnxruntime without optimizations; with an MNN reference, inputs must be given or its shapes be static.
    memory: MNN's memory mode (2 = low, quantized arithmetic). Raises ModelError and UsageError for bad files,
    names and inputs, MnnError when MNN cannot run a model.
    """
    left, right = Path(reference), Path(candidate)
    tolerance = tolerance or Tolerance()
    _check_readable(right)
    if _is_mnn(left):
        evidence = _mnn_evidence(left, inputs, seed, memory, timeout)
    else:
        evidence = Evidence.gather(bound_model(Model.load(left), bind), inputs=inputs, seed=seed)
    if _is_mnn(right):
        proof = proving.judge(evidence, right, tolerance, memory=memory, timeout=timeout)
    else:
        with Session(right) as session:
            proof = evidence.judge(session.run, tolerance, squeeze=_is_mnn(left))
    return VerifyResult(left, right, proof, tolerance)


def _is_mnn(path: Path) -> bool:
    return path.suffix.lower() == ".mnn"


def _check_readable(path: Path) -> None:
    """A bad candidate is an error before the reference runs."""
    if _is_mnn(path):
        read_file_info(path)
    else:
        Model.load(path)


def _mnn_evidence(path: Path, inputs: Sequence[Feeds] | None, seed: int, memory: int, timeout: float) -> Evidence:
    if inputs is None:
        raise UsageError(
            "an MNN reference needs inputs", file=path,
            hint="pass --inputs F.npz, or put the ONNX model first",
        )  # fmt: skip
    samples = [Sample(feeds, worker.run(path, feeds, memory=memory, timeout=timeout).outputs, {}) for feeds in inputs]
    return Evidence(samples)
