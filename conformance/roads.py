"""The two roads to MNN for one test, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

import graphkit
from conformance.cases import Case
from graphkit._scratch import scratch
from graphkit.errors import GraphkitError, MnnError
from graphkit.mnn import worker
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.options import ConverterOptions

Verdict = Literal["right", "refused", "wrong", "failed", "crashed"]
Road = Literal["plain", "graphkit", "check"]
_TIMEOUT = 90.0  # seconds for one step of one test


@dataclass(frozen=True)
class Result:
    """What became of a test.

    `right`: MNN computed the expected outputs. `refused`: no file was handed over, with a reason. `wrong`: a file
    that computes something else. `failed`: a file that does not run. `crashed`: the process died, hung, or ended
    with an error that is not about MNN. `nodes` are the operators of the nodes that a refusal named.
    """

    case: str
    road: Road
    verdict: Verdict
    detail: str = ""
    nodes: tuple[str, ...] = ()


Job = tuple[Case, Road]


def travel(job: Job) -> Result:
    """Take one test down one road and judge what MNN computes."""
    case, road = job
    with scratch("conformance") as name:
        folder = Path(name)
        source, made = folder / "model.onnx", folder / "model.mnn"
        source.write_bytes(case.model)
        if road == "check":
            return Result(case.name, road, *_check(source))
        outcome = (_plain if road == "plain" else _graphkit)(source, made)
        if outcome is None:
            outcome = _judge(case, made)
    return Result(case.name, road, *outcome)


Outcome = tuple[Verdict, str] | tuple[Verdict, str, tuple[str, ...]]


def _plain(source: Path, made: Path) -> Outcome | None:
    """Nothing but MNNConvert. None when there is a file to run."""
    try:
        run_converter(source, made, ConverterOptions.of(), timeout=_TIMEOUT)
    except ConverterError as error:
        return "crashed" if error.signal or error.timed_out else "refused", _short(error)
    return None


def _graphkit(source: Path, made: Path) -> Outcome | None:
    """What a user gets from `graphkit convert`. None when there is a file to run."""
    try:
        graphkit.convert(source, made, timeout=_TIMEOUT)
    except MnnError as error:
        nodes = tuple(fault.op for fault in error.faults)
        return "refused" if nodes else "crashed", _short(error), nodes
    except GraphkitError as error:
        return "crashed", f"{type(error).__name__}: {_short(error)}"
    return None


def _check(source: Path) -> Outcome:
    """What `graphkit check` expects of `graphkit convert`: right or refused."""
    try:
        result = graphkit.check(source)
    except GraphkitError as error:
        return "crashed", f"{type(error).__name__}: {_short(error)}"
    reasons = [f"{finding.node}: {finding.why}" for finding in result.left]
    return "right" if result.ok else "refused", "; ".join(reasons)[:300], tuple(f.op for f in result.left)


def _judge(case: Case, made: Path) -> Outcome:
    try:
        got = worker.run(made, case.feeds, list(case.expected), timeout=_TIMEOUT).outputs
    except worker.RunError as error:
        return "crashed" if error.signal or error.timed_out else "failed", _short(error)
    except GraphkitError as error:
        return "failed", _short(error)
    for name, expected in case.expected.items():
        problem = differs(got[name], expected, case.rtol, case.atol)
        if problem:
            return "wrong", f"'{name}': {problem}"
    return "right", ""


def differs(got: npt.NDArray[Any], expected: npt.NDArray[Any], rtol: float, atol: float) -> str:
    """How a result differs from what is expected, "" when it does not.

    Ranks may differ by ones: MNN has no scalars and shows some tensors with a trailing 1.
    """
    if got.size != expected.size or [d for d in got.shape if d != 1] != [d for d in expected.shape if d != 1]:
        return f"shape {list(got.shape)} instead of {list(expected.shape)}"
    with np.errstate(all="ignore"):
        a, b = got.reshape(expected.shape).astype(np.float64), expected.astype(np.float64)
        if np.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True):
            return ""
        return f"values off by {np.nanmax(np.abs(a - b)):.3g} of {np.nanmax(np.abs(b)):.3g}"


def _short(error: GraphkitError) -> str:
    faults: tuple[Any, ...] = getattr(error, "faults", ())
    text = "; ".join([error.message, *(f"{fault.node}: {fault.reason}" for fault in faults[:2])])
    return " ".join(text.split())[:300]


def count(results: Mapping[str, Result]) -> dict[str, int]:
    """How many tests ended each way."""
    return {verdict: sum(r.verdict == verdict for r in results.values()) for verdict in get_args(Verdict)}
