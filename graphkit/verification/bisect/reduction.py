"""Reduction: the smallest model that still shows a fault.

Delta debugging over the nodes (a set of nodes is cut out with what it reads fed from the reference, so that any set is
a model), into the bodies of If and Loop, then over outputs, sizes, weights and inputs. Cheap questions come first: a
candidate that does not run in onnxruntime never reaches the predicate.

Source: Zeller and Hildebrandt 2002 (see `search.minimize`); the reduction of models by their nodes is that of
polygraphy's `debug reduce`, whose two modes (shorter from the end, then from the front) it includes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from graphkit.errors import GraphkitError, ModelError, OutputError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Node
from graphkit.proof import Feeds
from graphkit.runtime import Session
from graphkit.verification.bisect._bodies import bodies
from graphkit.verification.bisect._cuts import Cuts, Piece, is_added
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect._fresh import data_names, fresh_feeds, with_fresh_weights
from graphkit.verification.bisect._reduced import Reduced, Step, count_nodes
from graphkit.verification.bisect._shrink import cleaned, declare_outputs, is_static, made_static, resized, sizes
from graphkit.verification.bisect._values import Array
from graphkit.verification.bisect.search import Answer, Exhausted, minimize, smallest

__all__ = ["Predicate", "Reduced", "Step", "reduce_model"]

Predicate = Callable[[Model, Feeds], Answer]
_DEPTH = 8  # of graphs inside graphs


def reduce_model(
    model: Model,
    feeds: Feeds,
    predicate: Predicate,
    *,
    effort: Effort | None = None,
    near: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Reduced:
    """Make a model as small as possible while the predicate answers True for it and its feeds.

    predicate: must ask for the same fault, not for any (see `mnn_faults.same_fault`, `passes.breaks`); it is asked
    `effort` times at most, and never about a model that onnxruntime does not run. near: labels of nodes at which the
    fault is believed to be; they are tried first. The given model is not changed.

    Raises UsageError when the predicate is not True for the model itself, ModelError when the model does not run in
    onnxruntime on the feeds.
    """
    reducer = _Reducer(predicate, effort or Effort(), progress or (lambda step: None))
    return reducer.run(model, dict(feeds), near)


class _Reducer:
    """The smallest case so far, and the steps that led to it."""

    def __init__(self, predicate: Predicate, effort: Effort, progress: Callable[[str], None]) -> None:
        self.predicate, self.effort, self.progress = predicate, effort, progress
        self.steps: list[Step] = []
        self.unfit, self.reason = 0, ""
        self._since = (0, 0.0)

    def run(self, model: Model, feeds: dict[str, Array], near: Sequence[str]) -> Reduced:
        """All stages; when the budget ends within one, what was found until then stands."""
        self.case: Piece = (model, feeds)
        complete = True
        stages: list[Callable[[], None]] = [
            lambda: self._start(model, feeds),
            lambda: self._nodes(near, _DEPTH),
            self._outputs,
            self._clean,
            self._static,
            self._sizes,
            self._data,
        ]
        for stage in stages:
            try:
                stage()
            except Exhausted:
                complete = False
                break
        note = f"{self.unfit} candidates did not run; the last: {self.reason}" if self.unfit else ""
        return Reduced(*self.case, tuple(self.steps), complete, self.unfit, note)

    def _start(self, model: Model, feeds: dict[str, Array]) -> None:
        if self.effort.over:
            raise Exhausted
        try:
            with Session(model) as session:
                session.run(feeds)
        except OutputError:
            raise
        except GraphkitError as error:
            raise ModelError(f"does not run, so it cannot be cut: {error.message}", file=model.path) from error
        self.progress("looking at the whole model")
        self.effort.spend()
        if self.predicate(model, feeds) is not True:
            raise UsageError(
                "there is nothing to reduce: the model does not show the fault on this sample", file=model.path,
                hint="give the sample on which it shows: --inputs F.npz",
            )  # fmt: skip
        self._since = (self.effort.spent, time.monotonic())

    # -- asking -------------------------------------------------------------------------------------------

    def shows(self, model: Model, feeds: dict[str, Array]) -> bool:
        """Whether a case of ours runs and shows the fault; one that does is the smallest so far."""
        if self.effort.over:
            raise Exhausted
        try:
            with Session(model) as session:
                made = session.run(feeds)
        except OutputError:
            raise
        except GraphkitError as error:
            return self._is_unfit(error)
        declare_outputs(model, made)
        self.effort.spend()
        if self.predicate(model, feeds) is not True:
            return False
        self.case = (model, feeds)
        return True

    def _cut_shows(self, cuts: Cuts, nodes: Sequence[Node], outputs: Sequence[str] | None, *, freeze: bool) -> bool:
        if not nodes:
            return False
        try:
            model, feeds = cuts.of(nodes, outputs, freeze=freeze)
        except OutputError:
            raise
        except GraphkitError as error:  # a value between them that is no tensor
            return self._is_unfit(error)
        return self.shows(model, feeds)

    def _is_unfit(self, error: GraphkitError) -> bool:
        """Count a candidate that does not run; it shows nothing."""
        self.unfit, self.reason = self.unfit + 1, error.message
        return False

    def _step(self, what: str) -> None:
        """Note what was reached."""
        spent, now = self.effort.spent, time.monotonic()
        model = self.case[0]
        self.steps.append(Step(what, count_nodes(model), model.nbytes, spent - self._since[0], now - self._since[1]))
        self._since = (spent, now)

    # -- stages -------------------------------------------------------------------------------------------

    def _nodes(self, near: Sequence[str], depth: int) -> None:
        """Fewer nodes; then those of a body, when a node that holds one is left."""
        self.progress("leaving out nodes")
        before = count_nodes(self.case[0])
        self._minimize_nodes(near)
        if count_nodes(self.case[0]) < before:
            self._step("nodes")
        if depth and self._into_body():
            self._step("the body alone")
            self._nodes((), depth - 1)

    def _minimize_nodes(self, near: Sequence[str]) -> None:
        cuts = Cuts(*self.case)
        nodes = cuts.nodes
        close = cuts.named(near)
        if close and len(close) < len(nodes) and self._cut_shows(cuts, close, None, freeze=True):
            cuts = Cuts(*self.case)
            nodes = cuts.nodes
        for freeze in (True, False):  # a fault may hang on a shape that is computed
            if len(nodes) > 1:
                asked = tuple(nodes)
                nodes = self._without(cuts, asked, freeze)

    def _without(self, cuts: Cuts, nodes: tuple[Node, ...], freeze: bool) -> list[Node]:
        def shows(chosen: tuple[Node, ...]) -> bool:
            return chosen == nodes or self._cut_shows(cuts, chosen, None, freeze=freeze)

        found = minimize(nodes, shows)
        if not found.complete:
            raise Exhausted
        return list(found.items)

    def _into_body(self) -> bool:
        """Whether what runs inside an If or a Loop shows the fault alone."""
        return any(self.shows(model, feeds) for model, feeds in bodies(Cuts(*self.case)))

    def _outputs(self) -> None:
        """Fewer outputs."""
        names = [info.name for info in self.case[0].proto.graph.output if not is_added(info.name)]
        if len(names) < 2:
            return
        self.progress("leaving out outputs")
        cuts = Cuts(*self.case)

        def shows(chosen: tuple[str, ...]) -> bool:
            if len(chosen) == len(names):
                return True
            needed = _needed(cuts.graph, chosen)
            return self._cut_shows(cuts, [node for node in cuts.nodes if node in needed], chosen, freeze=False)

        found = minimize(names, shows)
        if not found.complete:
            raise Exhausted
        if len(found.items) < len(names):
            self._step("outputs")

    def _clean(self) -> None:
        model, feeds = self.case
        if self.shows(cleaned(model), feeds):
            self._step("names of the exporter, unused weights")

    def _static(self) -> None:
        """Sizes that are fixed, where the fault does not need dynamic ones."""
        model, feeds = self.case
        if not is_static(model) and self.shows(made_static(model, feeds), feeds):
            self._step("fixed sizes")

    def _sizes(self) -> None:
        """Shorter dimensions: with the weights that have them, else of the inputs alone."""
        self.progress("making it smaller")
        for size in sizes(self.case[1]):
            if size not in sizes(self.case[1]):
                continue
            case = self.case
            for weights in (True, False):
                self._shorten(case, size, weights)
                if self.case is not case:
                    self._step(f"dimension {size}")
                    break

    def _shorten(self, case: Piece, size: int, weights: bool) -> None:
        def shows(new: int) -> bool:
            return self.shows(*resized(*case, size, new, weights=weights))

        if shows(1) or size == 2 or not shows(size - 1):
            return  # a size that cannot be less by one is tied to something: no use in trying all of them
        smallest(2, size - 1, shows)

    def _data(self) -> None:
        """Random weights and inputs, where the fault does not need these very ones."""
        self.progress("replacing weights")
        model, feeds = self.case
        names = data_names(model)

        def shows(keep: tuple[str, ...]) -> bool:
            return len(keep) == len(names) or self.shows(with_fresh_weights(model, keep), feeds)

        found = minimize(names, shows)
        if not found.complete:
            raise Exhausted
        if len(found.items) < len(names):
            self._step(f"random weights for {len(names) - len(found.items)} of {len(names)}")
        model, feeds = self.case
        if self.shows(model, fresh_feeds(feeds)):
            self._step("random inputs")


def _needed(graph: Graph, outputs: Sequence[str]) -> set[Node]:
    """The nodes that outputs depend on."""
    found: set[Node] = set()
    waiting = list(outputs)
    while waiting:
        node = graph.producer(waiting.pop())
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(graph.values_used_by(node))
    return found
