"""Is a quantized file as wrong as its codes make it, and no more? A float file with the codes' values tells."""

from __future__ import annotations

from pathlib import Path

from graphkit.compare import Comparison, OutputComparison
from graphkit.mnn.options import ConverterOptions
from graphkit.proof import Proof
from graphkit.verification.bisect import _codes, _freshly
from graphkit.verification.bisect._case import Case

_TIMES = 2.0  # the error that the codes predict


def explained(case: Case, candidate: Path, proof: Proof, folder: Path, plain: ConverterOptions) -> bool:
    """True when wrong outputs are off by what the codes cost; also when there is no float file to tell.

    plain: options that quantize nothing.
    """
    twin = _whole_twin(case, candidate, folder, plain)
    number, _ = _freshly.wrong_in(proof)
    sample = case.evidence.samples[number]
    trial = case.lab.run(twin, [sample.feeds]) if twin is not None else None
    if trial is None or trial.failure is not None:
        return True
    said = trial.verdict(sample.expected, case.tolerance)
    return all(_is_said(output, said) for output in proof.checks[number].comparison.outputs)


def _is_said(output: OutputComparison, said: Comparison) -> bool:
    twin = said[output.name]
    if output.ok or (not twin.ok and not output.expected_dtype.startswith("float")):
        return True
    return output.max_error <= _TIMES * twin.max_error


def _whole_twin(case: Case, candidate: Path, folder: Path, plain: ConverterOptions) -> Path | None:
    """A float file that has the codes' values in all quantized layers, with our passes or without; None if none has."""
    total = _codes.count(candidate)
    for name, model in (("plain", case.model), ("passed", None)):
        model = model or _freshly.passed(case)
        floats, twin = folder / f"{name}-floats.mnn", folder / f"{name}-twin.mnn"
        if model is None or case.convert(model, floats, plain) is not None:
            continue
        if _codes.twin(candidate, floats, twin) == total:
            return twin
    return None
