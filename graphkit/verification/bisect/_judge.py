"""From the table of layers to independent faults: each suspect is examined until its cause is known."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError
from graphkit.mnn.document import read
from graphkit.mnn.options import ConverterOptions, Value
from graphkit.proof import Proof
from graphkit.verification.bisect import _codes, _inside, _lost, _recheck, _ties, regions
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect._changes import Changes, unknown
from graphkit.verification.bisect._codes import Key, Layer
from graphkit.verification.bisect.answer import BisectResult, Fault, merged, ordered
from graphkit.verification.bisect.classify import Examiner
from graphkit.verification.bisect.conclusions import Conclusion, rearranged
from graphkit.verification.bisect.quantized import schemes
from graphkit.verification.bisect.search import Exhausted
from graphkit.verification.bisect.types import LayerRow, LayersResult

_QUANTIZING = ("weightQuantBits", "weightQuantBlock", "weightQuantAsymmetric", "weightQuantScaleBit", "hqq",
               "compressionParamsFile")  # fmt: skip
_LOOSE, _STRICT = 1e-3, 1e-4  # of the largest value: what counts as right in a piece alone
_PREDICTED = 2.0  # times what its codes say a quantized layer may be off
_AROUND = (1, 2, 4)


def against_mnn(
    case: Case, candidate: Path, table: LayersResult, proof: Proof, *, given: bool, folder: Path
) -> BisectResult:
    """The faults of a .mnn file. given: it is the user's, and a fresh conversion may tell what is wrong in it."""
    judge = _Judge(case, candidate, table, given, folder)
    with case.timed("faults"):
        faults = judge.faults(proof)
    judged = [row for row in table.rows if row.verdict != "unjudged"]
    agreeing = [row for row in judged if row.verdict == "agrees"]
    floats = [row for row in agreeing if row.error == row.error and row.dtype[:1] not in "iub"]
    worst = max((row.error for row in floats), default=0.0)
    wrong, note = "" if proof.kind == "equal" else proof.reason or proof.note, table.note
    if wrong and not faults and judge.lost:
        wrong, note = "", "; ".join(part for part in (f"quantization alone: {wrong}", note) if part)
    if wrong and judge.tied:
        wrong, note = "", "; ".join(part for part in (f"{judge.tied}: {wrong}", note) if part)
    return BisectResult(
        tuple(ordered(case.graph, faults)), wrong, len(judged), len(agreeing), worst, tuple(judge.quantized), table,
        note=note,
    )  # fmt: skip


@dataclass
class _Judge:
    case: Case
    candidate: Path
    table: LayersResult
    given: bool
    folder: Path
    quantized: list[LayerRow] = field(default_factory=list)
    tied: str = ""
    lost: bool = False  # the outputs are off by what the codes cost
    _coded: tuple[dict[Key, Layer], LayersResult | None] | None = None

    def faults(self, proof: Proof) -> list[Fault]:
        """All independent ones."""
        found = [fault for row in self.table.suspects if (fault := self._of_row(row)) is not None]
        if proof.kind == "different" and not found:
            self.lost = self.by_codes and _lost.explained(
                self.case, self.candidate, proof, self.folder, _plain(self.case.lab.options)
            )
            self.tied = _ties.explained(self.case, self.candidate, self.table, proof) if not self.by_codes else ""
            found = self._of_outputs(proof) if not self.tied and not self.lost else []
        elif proof.kind == "different" and self.given:
            found += self.changes.hidden(found, proof)
        return self.changes.by_cause(merged(found))

    @cached_property
    def changes(self) -> Changes:
        """What is not as a fresh conversion makes it; nothing when there is no file but one made here."""
        return Changes(self.case, self.candidate, self.folder, self._samples, self.given)

    @cached_property
    def by_codes(self) -> bool:
        """True for a quantized file: its outputs may be off although each layer does what its codes say."""
        return bool(schemes(read(self.candidate)))

    @property
    def _samples(self) -> list[int]:
        """Samples that suspects were seen on; the first when there are no suspects."""
        return sorted({row.sample for row in self.table.suspects}) or [0]

    # -- one suspect ----------------------------------------------------------------------------------------

    def _of_row(self, row: LayerRow) -> Fault | None:
        """The fault behind a suspect; None for a quantized layer that is as far off as its codes say."""
        self.case.progress(f"examining '{row.node}'")
        try:
            if self.by_codes:
                explained, conclusion = self._of_codes(row)
                if explained:
                    self.quantized.append(row)
                    return None
                if conclusion is not None:
                    return Fault(conclusion, row, (row.tensor,))
            conclusion = self._examined(row)
        except Exhausted:
            conclusion = unknown(row, "not tried", "the budget ended before it was known why")
        return Fault(conclusion, row, (row.tensor,))

    def _examined(self, row: LayerRow) -> Conclusion:
        try:
            return self._taken_apart(row)
        except GraphkitError as error:
            return unknown(row, "not tried", f"it cannot be cut out: {error.message}")

    def _taken_apart(self, row: LayerRow) -> Conclusion:
        examiner = self._examiner(row)
        if examiner is None:
            return unknown(row, "not tried", "there is no reference for what is inside")
        region = regions.between(examiner.graph, [row.tensor], row.anchors)
        if (altered := self.changes.behind(row)) is not None:
            try:
                right = examiner.attempt(region)
            except Exhausted:
                return replace(altered, alone="not tried")
            return replace(altered, alone="right" if not examiner.wrong(region, right) else "wrong")
        found = examiner.conclude(region)
        if found is not None:
            return found
        for steps in _AROUND:
            wider = regions.around(region, steps)
            if (found := examiner.conclude(wider)) is not None:
                return found
        return self._as_shipped(row)

    def _as_shipped(self, row: LayerRow) -> Conclusion:
        """What can be said of a fault that no piece shows: whether the file has the right values in other places."""
        reason = "right alone and with its neighbours: it takes more of the model"
        if not row.place:
            feeds = self.case.truth(row.sample).feeds
            actual = _recheck.held(self.candidate, row.mnn_op, row.slot, feeds, timeout=self.case.lab.limit)
            expected = self.case.truth(row.sample).of([row.tensor])[row.tensor]
            if actual is not None and rearranged(expected, actual, _fair(row)):
                reason = f"MNN holds the right values in other places; {reason}"
                return replace(unknown(row, "right", reason), kind="layout")
        return unknown(row, "right", reason)

    def _examiner(self, row: LayerRow) -> Examiner | None:
        """What takes the graph apart in which a row is; None when that graph did not run."""
        case, tolerance = self.case, _fair(row)
        graph, truth = case.graph, case.truth(row.sample)
        walked = ""
        while walked != row.place:
            for node in graph.holders():
                branch, body, values = _inside.entered(graph, node, truth)
                place = "/".join(part for part in (walked, node.label, branch) if part)
                if body is not None and f"{row.place}/".startswith(f"{place}/"):
                    graph, truth, walked = body, _inside.body_truth(body, values), place
                    break
            else:
                return None
        return Examiner(case.lab, graph, truth, tolerance, row.place)

    # -- codes --------------------------------------------------------------------------------------------------

    def _of_codes(self, row: LayerRow) -> tuple[bool, Conclusion | None]:
        """Whether its codes explain how far a quantized layer is off, and what is concluded when they are wrong."""
        layers, predicted = self._code_table()
        layer = _codes.of(layers, row.mnn_op)
        if layer is not None and layer.wrong:
            return False, self._with_witness(row, layer.wrong)
        rows = predicted.of(row.tensor) if predicted is not None else ()
        same = [other for other in rows if (other.place, other.sample) == (row.place, row.sample)]
        if not same or row.error != row.error:
            return False, None
        said = max(other.error for other in same)
        if not row.bits and not said > row.tolerance:  # an LSTM's codes have a row without bits; others have none
            return False, None
        if row.error <= max(_PREDICTED * said, row.tolerance):
            return True, None
        return False, self._with_witness(row, f"off by {row.error:.1e} where its codes say {said:.1e}")

    def _with_witness(self, row: LayerRow, reason: str) -> Conclusion:
        """How the layer fares when it is quantized alone; with the piece that shows it, if it does."""
        conclusion = replace(unknown(row, "not tried", reason), kind="quantization", nodes=(row.node, *row.fused))
        examiner = self._examiner(row)
        if examiner is None:
            return conclusion
        region = regions.between(examiner.graph, [row.tensor], row.anchors)
        try:
            trial = examiner.attempt(region)
        except Exhausted:
            return conclusion
        bound = Tolerance(rtol=max(min(row.error, 1.0) / 4, _LOOSE)) if row.error == row.error else None
        if not examiner.wrong(region, trial, bound):
            return replace(conclusion, alone="right")
        return replace(conclusion, alone="wrong", witness=examiner.witness(region, bound))

    def _code_table(self) -> tuple[dict[Key, Layer], LayersResult | None]:
        """The quantized layers, and the table of the file whose floats are what the codes say."""
        if self._coded is None:
            self._coded = {}, None
            floats, twin = self.folder / "floats.mnn", self.folder / "twin.mnn"
            if self.case.convert(self.case.model, floats, _plain(self.case.lab.options)) is None:
                layers = _codes.layers(self.candidate, floats)
                seen = {row.mnn_op for row in self.table.rows}
                unseen = [key for key in layers if key[1] not in seen]
                made = _codes.twin(self.candidate, floats, twin, unseen)
                table = self.case.table(twin, self._samples) if made else None
                self._coded = layers, table
        return self._coded

    # -- without a suspect --------------------------------------------------------------------------------------

    def _of_outputs(self, proof: Proof) -> list[Fault]:
        """The outputs are wrong and no row shows why: the whole of what computes them is taken apart."""
        case = self.case
        bad = next(number for number, check in enumerate(proof.checks) if not check.comparison.ok)
        wrong = [output.name for output in proof.checks[bad].comparison.outputs if not output.ok]
        wrong = [name for name in wrong if case.graph.producer(name) is not None]
        if not wrong:
            return []
        altered = self.changes.mattering(proof)
        if altered or self.by_codes:
            return altered
        examiner = Examiner(case.lab, case.graph, case.truth(bad), replace(case.tolerance, rtol=_LOOSE))
        try:
            found = examiner.conclude(regions.between(case.graph, wrong))
        except Exhausted:
            return []
        return [Fault(found)] if found is not None else []


def _fair(row: LayerRow) -> Tolerance:
    """What counts as right for a piece of what a row judges: enough for noise, too little for the row's error."""
    error = row.error if row.error == row.error else 1.0
    return Tolerance(rtol=max(row.tolerance, min(error / 4, _LOOSE), _STRICT if error > 4 * _STRICT else 0.0))


def _plain(options: ConverterOptions) -> ConverterOptions:
    """The options without quantization."""
    values: dict[str, Value | None] = {name: value for name, value in options.values if name not in _QUANTIZING}
    return ConverterOptions.of(options.framework, values)
