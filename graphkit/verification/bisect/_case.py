"""What one bisection works on: a model, samples, an allowance for experiments; and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from graphkit.compare import Tolerance
from graphkit.errors import MnnError
from graphkit.graph import Graph
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.proof import Evidence, Proof
from graphkit.verification.bisect._lab import Lab
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.layers import compare_layers, compare_onnx
from graphkit.verification.bisect.types import LayersResult

Progress = Callable[[str], None]


@dataclass
class Case:
    """What one bisection works on. graph: types inferred. whole: conversions of the whole model so far."""

    model: Model
    graph: Graph
    evidence: Evidence
    lab: Lab
    tolerance: Tolerance
    memory: int
    progress: Progress
    whole: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    _truths: dict[int, Truth] = field(default_factory=dict)

    def truth(self, sample: int) -> Truth:
        """Reference values of a sample."""
        if sample not in self._truths:
            self._truths[sample] = Truth(self.model, self.evidence.samples[sample].feeds)
        return self._truths[sample]

    def sizes(self, sample: int) -> Mapping[str, int]:
        """Sizes of the named dims of the inputs in a sample."""
        found: dict[str, int] = {}
        for name, array in self.evidence.samples[sample].feeds.items():
            for dim, size in zip(self.graph.shape(name) or (), array.shape, strict=False):
                if isinstance(dim, str):
                    found[dim] = size
        return found

    def convert(
        self, model: Model, made: Path, options: ConverterOptions | None = None, *, required: bool = False
    ) -> MnnError | None:
        """Convert a whole model; see `Lab.convert`."""
        if not required:
            self.lab.check()
        self.whole += 1
        with self.timed("convert"):
            return self.lab.convert(model, made, options, required=required)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Count the time of a step."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start

    def table(self, candidate: Path, samples: Sequence[int], *, required: bool = False) -> LayersResult:
        """The table of layers of a file on these samples, whose numbers its rows have. Raises as `compare_layers`.

        required: there is no answer without it; else it raises Exhausted when the time is up.
        """
        if not required:
            self.lab.check_time()
        limit = self.lab.timeout if required else self.lab.limit
        feeds = [self.evidence.samples[number].feeds for number in samples]
        with self.timed("layers"):
            made = compare_layers(self.model, candidate, feeds, memory=self.memory, timeout=limit)
        if not required:
            self.lab.check_time()  # a run that we ended says nothing
        return _numbered(made, samples)

    def onnx_table(self, candidate: Model, samples: Sequence[int]) -> LayersResult:
        """The table of layers of another ONNX model, likewise. Raises as `compare_onnx`."""
        feeds = [self.evidence.samples[number].feeds for number in samples]
        with self.timed("layers"):
            return _numbered(compare_onnx(self.model, candidate, feeds, memory=self.memory), samples)

    def telling(self, proof: Proof) -> list[int]:
        """The samples that layers are compared on: all but probes, and the first probe if only probes show a fault."""
        usual = [number for number, sample in enumerate(self.evidence.samples) if not sample.probe]
        bad = [number for number, check in enumerate(proof.checks) if not check.comparison.ok]
        return usual if not bad or set(bad) & set(usual) else [*usual, bad[0]]


def _numbered(table: LayersResult, samples: Sequence[int]) -> LayersResult:
    return replace(table, rows=tuple(replace(row, sample=samples[row.sample]) for row in table.rows))
