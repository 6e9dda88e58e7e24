"""One conversion's quantized weights: noted on the ONNX model, put into the .mnn file, blamed when they spoil it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from graphkit.compare import Tolerance
from graphkit.errors import MnnError, NodeFault
from graphkit.mnn import proving
from graphkit.mnn.carry.inject import inject
from graphkit.mnn.carry.lift import Lifted, lift
from graphkit.mnn.carry.results import Carriage, CarriedLayer
from graphkit.model import Model
from graphkit.proof import Evidence

_LISTED = 20


@dataclass(frozen=True)
class Trial:
    """How a file is judged: reference outputs, what may differ, seconds for one run."""

    evidence: Evidence
    tolerance: Tolerance
    timeout: float

    def works(self, path: Path) -> bool:
        """True when MNN runs the file and computes it right."""
        try:
            return proving.judge(self.evidence, path, self.tolerance, timeout=self.timeout).ok
        except MnnError:
            return False

    def low_memory_error(self, path: Path) -> float | None:
        """The largest relative error when MNN rounds activations to 8 bits; None when it cannot run the file so."""
        try:
            outputs = proving.outputs(self.evidence, path, memory=_LOW, timeout=self.timeout)
        except MnnError:
            return None
        return self.evidence.judge_outputs(outputs, self.tolerance, squeeze=True).max_error


_LOW = 2  # BackendConfig::MemoryMode


@dataclass(eq=False)
class Carrier:
    """Quantized weights of the model that is converted.

    half_scales: store scales as float16 (2^−11 off at most). carriage: what became of them. floats: the file without
    codes, carried: the file with them; None when there are none.
    """

    lifted: Sequence[Lifted] = ()
    half_scales: bool = False
    carriage: Carriage = field(default_factory=Carriage)
    floats: Path | None = None
    carried: Path | None = None

    @classmethod
    def of(cls, model: Model, *, half_scales: bool = False) -> Carrier:
        """Note the quantized weights of a model as it comes in; no pass may have seen it. Raises as `lift`."""
        return cls(lift(model), half_scales)

    def carry(self, made: Path, seconds: dict[str, float]) -> Path:
        """Put codes into a file that MNN's converter made: the file to go on with, the same when there is nothing.

        The new file lies beside the old one; `seconds` gets the time. Raises as `inject`.
        """
        if not self.lifted:
            return made
        start = time.perf_counter()
        target = made.with_name(f"carried-{made.name}")
        self.carriage = inject(made, target, self.lifted, half_scales=self.half_scales)
        seconds["carry"] = time.perf_counter() - start
        if not target.exists():
            return made
        self.floats, self.carried = made, target
        return target

    def measure(self, trial: Trial) -> None:
        """Note how far off the file is when MNN runs it with memory `low`."""
        if self.carried is not None:
            self.carriage = replace(self.carriage, low_memory_error=trial.low_memory_error(self.carried))

    def spoilt(self, trial: Trial, why: str) -> MnnError | None:
        """The error for a file that is wrong with the codes and right without them; None when codes are not the cause.

        The layer that makes the difference is found by halving.
        """
        if self.floats is None or not trial.works(self.floats):
            return None
        layers = self._culprits(self.floats, trial)
        names = ", ".join(f"'{layer.name}'" for layer in layers[:3])
        more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
        return MnnError(
            f"MNN computes the model wrong with its quantized weights, and right with the same numbers as floats: "
            f"{why}; the cause is in {names}{more}",
            faults=tuple(NodeFault(layer.name, layer.op, f"{layer.kind}, carried") for layer in layers[:_LISTED]),
            hint="leave these layers float: quantize the others only",
        )

    def _culprits(self, floats: Path, trial: Trial) -> Sequence[CarriedLayer]:
        """The layer whose codes, after all before it, make the file wrong; all when that cannot be told."""
        names = [layer.name for layer in self.carriage.layers]
        low, high = 0, len(names)  # right with the first `low` layers, wrong with the first `high`
        while high - low > 1:
            middle = (low + high) // 2
            made = floats.with_name(f"trial-{floats.name}")
            made.unlink(missing_ok=True)
            inject(floats, made, self.lifted, half_scales=self.half_scales, only=set(names[:middle]).__contains__)
            right = trial.works(made if made.exists() else floats)
            low, high = (middle, high) if right else (low, middle)
        return self.carriage.layers[low:high]
