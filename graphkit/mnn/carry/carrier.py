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
from graphkit.mnn.carry.results import Carriage, CarriedLayer, LeftFloat
from graphkit.model import Model
from graphkit.proof import Evidence

_FEW = 3  # layers that are given up before the file is


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
    codes, carried: the file with them; None when there are none. culprits: layers whose codes made the file wrong.
    """

    lifted: Sequence[Lifted] = ()
    half_scales: bool = False
    carriage: Carriage = field(default_factory=Carriage)
    floats: Path | None = None
    carried: Path | None = None
    culprits: list[CarriedLayer] = field(default_factory=list)

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

    def mended(self, trial: Trial, why: str) -> bool:
        """Leave the layers float whose codes make the file wrong; True when `carried` is right then.

        Only a few are given up, and only when the file is right with floats everywhere. They are named in `carriage`,
        with `why` the file was wrong. Each is found by halving.
        """
        if self.floats is None or not trial.works(self.floats):
            return False
        for _ in range(min(_FEW, len(self.carriage.layers))):
            self.culprits.append(self._culprit(self.floats, trial))
            if self._without(self.floats, trial, why):
                return True
        return False

    def spoilt(self, why: str) -> MnnError | None:
        """The error for a file that is wrong with the codes and right without them, which `mended` could not help;
        None when codes are not the cause.
        """
        if not self.culprits:
            return None
        names = ", ".join(f"'{layer.name}'" for layer in self.culprits)
        return MnnError(
            f"MNN computes the model wrong with its quantized weights, and right with the same numbers as floats: "
            f"{why}; the cause is in {names}, and in more",
            faults=tuple(NodeFault(layer.name, layer.op, f"{layer.kind}, carried") for layer in self.culprits),
            hint="leave these layers float: quantize the others only",
        )

    def _culprit(self, floats: Path, trial: Trial) -> CarriedLayer:
        """The layer whose codes, after all before it, make the file wrong; the last when that cannot be told."""
        known = {layer.name for layer in self.culprits}
        layers = [layer for layer in self.carriage.layers if layer.name not in known]
        low, high = 0, len(layers)  # right with the first `low` layers, wrong with the first `high`
        while high - low > 1:
            middle = (low + high) // 2
            made = self._trial(floats, {layer.name for layer in layers[:middle]})[0]
            low, high = (middle, high) if trial.works(made) else (low, middle)
        return layers[high - 1]

    def _trial(self, floats: Path, names: set[str]) -> tuple[Path, Carriage]:
        """The file with the codes of some layers only, and what became of all weights."""
        made = floats.with_name(f"trial-{floats.name}")
        made.unlink(missing_ok=True)
        made.with_name(made.name + ".weight").unlink(missing_ok=True)
        carriage = inject(floats, made, self.lifted, half_scales=self.half_scales, only=names.__contains__)
        return (made if made.exists() else floats), carriage

    def _without(self, floats: Path, trial: Trial, why: str) -> bool:
        """Take the file without the culprits' codes for `carried`, if it is right."""
        given_up = {layer.name for layer in self.culprits}
        made, carriage = self._trial(floats, {layer.name for layer in self.carriage.layers} - given_up)
        if not trial.works(made):
            return False
        self.carried, self.carriage = made, _named(carriage, self.culprits, why)
        return True


def _named(carriage: Carriage, culprits: Sequence[CarriedLayer], why: str) -> Carriage:
    """What became of the weights, with the layers that were given up among those that are float."""
    entries = {entry.name: entry for entry in carriage.left}
    for layer in culprits:
        reason = f"with its codes MNN's layer '{layer.name}' makes the model wrong, with floats it is right: {why}"
        for name in layer.weights:
            known = entries.get(name) or LeftFloat(name, layer.name, "", layer.before, layer.after)
            entries[name] = replace(known, reason=reason)
    return replace(carriage, left=tuple(entries.values()))
