"""Small experiments with MNN: convert a piece of a model alone, run it on reference values, compare; and count them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit._scratch import scratch
from graphkit.compare import Comparison, OutputComparison, Tolerance, compare
from graphkit.errors import GraphkitError, MnnError, UsageError
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.fileinfo import FileInfo, read_file_info
from graphkit.mnn.handoff import ready, write
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.runtime import Session

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

_TUNABLES = "GLIBC_TUNABLES"
_FILL = "glibc.malloc.perturb={}:glibc.malloc.tcache_count=0"  # the cache of small pieces is never filled
ZEROS, GARBAGE = 255, 85  # what memory is filled with: zeros, 0xaa


@dataclass(frozen=True)
class Trial:
    """One conversion and its runs: `runs` are the outputs of each, `failure` is why there are none, `info` the file's
    operators when there is a file."""

    runs: tuple[Values, ...] = ()
    failure: MnnError | UsageError | None = None
    info: FileInfo | None = None

    @property
    def outputs(self) -> Values:
        """Of the first run; empty when it failed."""
        return self.runs[0] if self.runs else {}

    def verdict(self, expected: Values, tolerance: Tolerance) -> Comparison:
        """The outputs against the reference, those of the run that is further off."""
        found = [compare(expected, run, tolerance, squeeze=True) for run in self.runs or ({},)]
        return max(found, key=lambda comparison: _badness(comparison.worst))

    @property
    def unsteady(self) -> tuple[str, ...]:
        """Outputs that differ between the runs."""
        first, *others = self.runs or ({},)
        return tuple(
            name
            for name, value in first.items()
            if any(not np.array_equal(value, run[name], equal_nan=value.dtype.kind == "f") for run in others)
        )


def _badness(worst: OutputComparison | None) -> tuple[bool, float]:
    if worst is None:
        return False, 0.0
    return not worst.ok, float("inf") if np.isnan(worst.max_error) else worst.max_error


class Spent(GraphkitError):
    """The budget for experiments is used up, which says nothing of MNN."""


@dataclass
class Lab:
    """Converts and runs pieces, within a budget.

    options: what the whole model is converted with. timeout: seconds for one conversion or run. conversions, seconds:
    the budget; when it is used up `attempt` raises Spent. made: conversions so far, spent:
    seconds in them. memory: see `filled`.
    """

    options: ConverterOptions = field(default_factory=ConverterOptions.of)
    timeout: float = 60.0
    conversions: int = 200
    seconds: float = 600.0
    made: int = 0
    spent: float = 0.0
    memory: int = 0

    @contextlib.contextmanager
    def filled(self, memory: int) -> Iterator[None]:
        """While this lasts, what MNN allocates is not empty by luck: bytes of `memory` ^ 255 (glibc's malloc only).

        So what reads memory that nobody wrote shows itself. Source: M_PERTURB in
        mallopt(3). 0 is off.
        """
        before, self.memory = self.memory, memory
        try:
            yield
        finally:
            self.memory = before

    @property
    def exhausted(self) -> bool:
        """True when nothing more may be tried."""
        return self.made >= self.conversions or self.spent >= self.seconds

    def attempt(self, model: Model, feeds: Values, *, options: ConverterOptions | None = None, runs: int = 1) -> Trial:
        """Convert a model and run it `runs` times on the same inputs. Raises Spent, and never what MNN does wrong."""
        if self.exhausted:
            raise Spent("the budget for experiments is used up")
        with scratch("lab") as name:
            made = Path(name) / "model.mnn"
            failure = self.convert(model, made, options)
            if failure is not None:
                return Trial(failure=failure)
            return self.run(made, [feeds] * runs)

    def convert(self, model: Model, made: Path, options: ConverterOptions | None = None) -> MnnError | None:
        """Convert a model to a file; the failure when there is none."""
        start, self.made = time.perf_counter(), self.made + 1
        with scratch("lab") as name:
            source = Path(name) / "model.onnx"
            write(ready(model), source)
            try:
                with _environment(self.memory):
                    run_converter(source, made, options or self.options, timeout=self.timeout)
            except MnnError as error:
                return error
            finally:
                self.spent += time.perf_counter() - start
        return None

    def run(self, made: Path, samples: Sequence[Values], outputs: Sequence[str] | None = None) -> Trial:
        """Run a file on samples, each loaded anew, convolutions exact (see `proving`).

        Outputs that no operator of the file makes are not asked for.
        """
        start = time.perf_counter()
        info = read_file_info(made)
        if outputs is None:
            written = {name for op in info.ops for name in op.outputs}
            outputs = [name for name in info.outputs if name in written]
        try:
            with _environment(self.memory):
                done = worker.run_all(made, samples, outputs, winograd=0, timeout=self.timeout)
        except (MnnError, UsageError) as error:
            return Trial(failure=error, info=info)
        finally:
            self.spent += time.perf_counter() - start
        return Trial(tuple(run.outputs for run in done), None, info)


@contextlib.contextmanager
def _environment(memory: int) -> Iterator[None]:
    """What children of ours see meanwhile."""
    if not memory:
        yield
        return
    before = os.environ.get(_TUNABLES)
    os.environ[_TUNABLES] = ":".join(part for part in (before, _FILL.format(memory)) if part)
    try:
        yield
    finally:
        os.environ.pop(_TUNABLES)
        if before is not None:
            os.environ[_TUNABLES] = before


class Truth:
    """Reference values of one sample, computed when they are asked for and kept.

    model: what onnxruntime runs, feeds: its inputs.
    """

    def __init__(self, model: Model, feeds: Values) -> None:
        self.model, self.feeds = model, dict(feeds)
        self._known: dict[str, Array] = {name: np.asarray(array) for name, array in feeds.items()}

    def values(self, names: Sequence[str]) -> Values:
        """These tensors of the main graph by name. Raises what `Session` raises."""
        missing = [name for name in dict.fromkeys(names) if name not in self._known]
        if missing:
            with Session(self.model, outputs=missing) as session:
                self._known |= session.run(self.feeds)
        return {name: self._known[name] for name in names}

    def steady(self, names: Sequence[str]) -> bool:
        """True when the reference computes the same a second time, bit for bit."""
        with Session(self.model, outputs=list(names)) as session:
            one, two = session.run(self.feeds), session.run(self.feeds)
        return all(np.array_equal(one[name], two[name], equal_nan=one[name].dtype.kind == "f") for name in names)
