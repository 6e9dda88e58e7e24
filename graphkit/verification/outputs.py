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
    """The verdict on a candidate: `proof` holds every output of every sample. A model in memory has no path."""

    reference: Path | None
    candidate: Path | None
    proof: Proof
    tolerance: Tolerance

    @property
    def ok(self) -> bool:
        """True when every output is within the tolerance and something was compared."""
        return self.proof.kind == "equal"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "reference": str(self.reference) if self.reference else None,
            "candidate": str(self.candidate) if self.candidate else None,
            "ok": self.ok,
            "tolerance": self.tolerance.to_dict(),
            **self.proof.to_dict(),
        }


def verify(
    reference: Model | PathLike,
    candidate: Model | PathLike,
    *,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    bind: Bindings | None = None,
    tolerance: Tolerance | None = None,
    memory: int = 0,
    timeout: float = 300.0,
) -> VerifyResult:
    """Compare a candidate (a model, .onnx or .mnn) with a reference (likewise), output by output.

    Samples are `inputs`, else random ones that the reference accepts. An ONNX reference runs twice in
    onnxruntime without optimizations; with an MNN reference, inputs must be given. memory: MNN's memory mode (2 = low,
    quantized arithmetic). Raises ModelError and UsageError for bad files, names and inputs, MnnError when MNN
    cannot run a model.
    """
    left, right = _open(reference), _open(candidate)
    tolerance = tolerance or Tolerance()
    if isinstance(left, Model):
        evidence = Evidence.gather(bound_model(left, bind), inputs=inputs, seed=seed)
    else:
        evidence = _mnn_evidence(left, inputs, seed, memory, timeout)
    if isinstance(right, Model):
        with Session(right) as session:
            proof = evidence.judge(session.run, tolerance, squeeze=not isinstance(left, Model))
    else:
        proof = proving.judge(evidence, right, tolerance, memory=memory, timeout=timeout)
    return VerifyResult(_path(left), _path(right), proof, tolerance)


def _open(source: Model | PathLike) -> Model | Path:
    """An ONNX model, or the path of an MNN file that can be read: a bad one is an error before anything runs."""
    if isinstance(source, Model):
        return source
    path = Path(source)
    if path.suffix.lower() != ".mnn":
        return Model.load(path)
    read_file_info(path)
    return path


def _path(source: Model | Path) -> Path | None:
    return source.path if isinstance(source, Model) else source


def _mnn_evidence(path: Path, inputs: Sequence[Feeds] | None, seed: int, memory: int, timeout: float) -> Evidence:
    if inputs is None:
        raise UsageError(
            "an MNN reference needs inputs", file=path,
            hint="pass --inputs F.npz, or put the ONNX model first",
        )  # fmt: skip
    samples = [Sample(feeds, worker.run(path, feeds, memory=memory, timeout=timeout).outputs, {}) for feeds in inputs]
    return Evidence(samples)
