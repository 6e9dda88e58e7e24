"""Judge the graphs of a .mnn file one by one: the main one, the branches that ran, what only runs as a whole.

A session shows what each operator computes, but cannot run If and Loop. So a graph that has some is cut out of the
file without them (`mnn.standalone`); a branch that ran is a graph like any other; a Loop is run as a whole by MNN's
Module API, on reference values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from graphkit import shapes
from graphkit._scratch import scratch
from graphkit.errors import GraphkitError, MnnError, OutputError
from graphkit.graph import Graph, Node
from graphkit.mnn import standalone
from graphkit.mnn.document.files import Document, GraphView, write
from graphkit.mnn.document.tree import Array, Table
from graphkit.mnn.fileinfo import FileInfo, FileOp, file_info
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.verification.bisect import noise
from graphkit.verification.bisect._floors import floors, sources
from graphkit.verification.bisect._inside import entered
from graphkit.verification.bisect._rows import Rows
from graphkit.verification.bisect._runs import Key, Runs, Settings
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.alignment import Alignment, align, by_tensor
from graphkit.verification.bisect.cutting import body_region, cut, feeds_of
from graphkit.verification.bisect.quantized import Scheme, allowances, carriers
from graphkit.verification.bisect.references import References, gather, readable
from graphkit.verification.bisect.types import LayerRow


@dataclass(frozen=True)
class Scene:
    """One graph of the file and the ONNX graph that it is, on one sample; place: "" for the main graph.

    outer: values that the file's graph reads from outside where passes dropped the node whose value the ONNX graph
    reads.
    """

    model: Model
    feeds: Feeds
    view: GraphView
    place: str = ""
    sample: int = 0
    outer: Mapping[str, Array] = field(default_factory=dict)


@dataclass
class Survey:
    """Judges graphs and collects rows; see the module's text.

    halved: the file stores half floats, or the graph computes in them. schemes: of quantized operators. forced: False
    when a graph could only be compared as a whole run. notes: what was left open. unaligned: MNN operators whose value
    was seen and that no tensor is known for, by name and type.
    """

    document: Document
    path: Path
    settings: Settings
    halved: bool = False
    schemes: Mapping[tuple[str, str], Scheme] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rows: list[LayerRow] = []
        self.notes: dict[str, None] = {}
        self.unaligned: dict[tuple[str, str], None] = {}
        self.forced = True
        self.file: FileInfo = file_info(self.document)
        self.views = {view.name: view for view in self.document.graphs()}

    def main(self, model: Model, feeds: Feeds, sample: int) -> None:
        """Judge the main graph, and what runs inside it."""
        self.judge(Scene(model, feeds, self.views[""], "", sample))

    def judge(self, scene: Scene) -> None:
        """Add the rows of one graph and of all inside it that ran."""
        graph = Graph.of(scene.model)
        shapes.infer(graph)
        ops = self.file.subgraphs[scene.view.name] if scene.view.name else self.file.ops
        known = set(readable(graph))
        alignments = [item for item in align(graph, ops, _outputs(scene.view)) if known.issuperset(item.tensors)]
        names = list(dict.fromkeys(name for item in alignments for name in item.tensors))
        memory = self.settings.memory
        found = {name: scheme for (view, name), scheme in self.schemes.items() if view == scene.view.name}
        weighted = carriers(graph, alignments, found)
        read = [node.inputs[0] for node, _ in weighted.values() if node.inputs[0] in known]
        read += sources(graph, known)
        with gather(scene.model, scene.feeds, [*names, *read], memory=memory, graph=graph) as references:
            for name, array in scene.outer.items():
                references.put(name, array)
            drifts = noise.drifts(scene.model, references, names, memory=memory)
            ends = {item.op.name: item.tensors[0] for item in alignments if item.slot == 0}
            steps = allowances(graph, weighted, found, references, ends)
            bits = {name: scheme.bits for name, scheme in found.items()}
            rows = Rows(
                graph, by_tensor(alignments), references, drifts, scene.sample, scene.place, self.halved, bits, steps,
                floors(graph, references),
            )  # fmt: skip
            self._run(scene, ops, alignments, rows)
        self._enter(scene, graph)

    def _run(self, scene: Scene, ops: Sequence[FileOp], alignments: Sequence[Alignment], rows: Rows) -> None:
        runs = Runs(self.document, scene.view, alignments, rows, self.settings)
        before = len(self.rows)
        if scene.place or any(op.type in standalone.CONTROL for op in ops):
            self._opened(scene, runs)
        else:
            try:
                self._refined(scene, runs, runs.forced(self.path, scene.feeds, list(scene.feeds)))
            except MnnError as error:
                self._plain(scene, runs, error)
        compared = {row.mnn_op for row in self.rows[before:]}
        types = {op.name: op.type for op in ops}
        unseen = [(name, types.get(name, "")) for name, _ in runs.unseen if name not in compared]
        self.unaligned.update(dict.fromkeys(unseen))

    def _refined(self, scene: Scene, runs: Runs, rows: Sequence[LayerRow]) -> None:
        """Add rows, suspects of several steps by step where MNN runs the steps alone."""
        for row in rows:
            try:
                self.rows += runs.refined([row], lambda key: _Values(runs.rows, key))
            except OutputError:
                raise
            except GraphkitError as error:
                self._note(scene, f"what leads to '{row.tensor}' is not judged step by step: {error.message}")
                self.rows.append(row)

    def _plain(self, scene: Scene, runs: Runs, error: MnnError) -> None:
        """Compare without putting anything right: only the first fault on each path tells something."""
        self.forced = False
        self._note(scene, f"nothing was put right on the way, so what follows a fault is wrong too ({error.message})")
        self.rows += runs.plain(self.path, scene.feeds)

    def _opened(self, scene: Scene, runs: Runs) -> None:
        values = _Values(runs.rows)
        part = standalone.opened(self.document, scene.view, values)
        given = [
            *scene.feeds,
            *(runs.rows.alignments[key].tensors[0] for key in part.given if key in values.alignments),
        ]
        with scratch("graph") as name:
            path = Path(name) / "graph.mnn"
            try:
                if any(op.label("type") not in ("Const", "Input") for op in part.document.net.tables("oplists")):
                    write(part.document, path)
                    self._refined(scene, runs, runs.forced(path, part.feeds, given))
            except OutputError:
                raise
            except GraphkitError as error:
                self._note(scene, f"its operators are not judged: {error.message}")
        types = {op["name"]: op.label("type") for op in scene.view.ops}
        wholes = [key for key in part.given if key in values.alignments and types[key[0]] not in ("If", "Input")]
        seen = {(row.mnn_op, row.slot) for row in self.rows if row.place == scene.place and row.sample == scene.sample}
        for key in dict.fromkeys([*wholes, *(key for key in _conditions(scene.view) if key in values.alignments)]):
            if key not in seen:
                self._whole(scene, runs, key, values)

    def _whole(self, scene: Scene, runs: Runs, key: Key, values: _Values) -> None:
        try:
            self.rows += runs.whole([key], values.without(key))
        except OutputError:
            raise
        except GraphkitError as error:
            self._note(scene, f"'{key[0]}' is not judged: {error.message}")

    def _note(self, scene: Scene, text: str) -> None:
        self.notes[f"{scene.place}: {text}" if scene.place else text] = None

    def _enter(self, scene: Scene, graph: Graph) -> None:
        """Judge the branches that ran."""
        for op in scene.view.ops:
            node = _holder(graph, op, scene.view)
            if node is None or op["main"] is None:
                continue
            try:
                inner = self._branch(scene, graph, node, op)
            except OutputError:
                raise
            except GraphkitError as error:
                self._note(scene, f"what '{node.label}' ran is not judged: {error.message}")
                continue
            if inner is not None:
                self.judge(inner)

    def _branch(self, scene: Scene, graph: Graph, node: Node, op: Table) -> Scene | None:
        truth = Truth(scene.model, scene.feeds)
        branch, body, values = entered(graph, node, truth)
        view = self.views.get(op["main"]["then_graph" if branch == "then_branch" else "else_graph"] or "")
        if view is None or body is None or not any(body.producer(name) for name in body.outputs):
            return None
        region = body_region(body)
        place = "/".join(part for part in (scene.place, node.label, branch) if part)
        read = [op["name"] or "" for op in view.ops if op.label("type") == "Input"]
        missing = [name for name in read if name not in values and _is_made(graph, name)]
        return replace(
            scene, model=cut(region, values), feeds=feeds_of(region, values), view=view, place=place,
            outer={**scene.outer, **truth.of(missing)},
        )  # fmt: skip


class _Values:
    """What operators that cannot stay would have computed, from the reference (see `standalone.Value`)."""

    def __init__(self, rows: Rows, but: Key | None = None) -> None:
        self.rows, self.alignments, self.but = rows, rows.alignments, but

    def __call__(self, op: Table, slot: int, name: str) -> Array | None:
        references: References = self.rows.references
        if op.label("type") == "Input":
            constant = self.rows.graph.constant(name) if self.rows.graph.is_constant(name) else None
            return np.asarray(constant) if constant is not None else references.get_array(name)
        key = (op["name"] or "", slot)
        found = self.alignments.get(key)
        if found is None or not found.sure or key == self.but:
            return None
        return references.get_array(found.tensors[0])

    def without(self, key: Key) -> _Values:
        """The same, but for one value that is to be computed."""
        return _Values(self.rows, key)


def _is_made(graph: Graph, name: str) -> bool:
    node = graph.producer(name)
    return node is not None and node.op_type != "Constant"


def _holder(graph: Graph, op: Table, view: GraphView) -> Node | None:
    """The ONNX If that an MNN operator stands for."""
    if op.label("type") != "If":
        return None
    for name in (op["name"] or "", *(view.tensors[index] for index in op.ints("outputIndexes"))):
        node = graph.producer(name)
        if node is not None and node.op == "If":
            return node
    return None


def _conditions(view: GraphView) -> list[Key]:
    """What decides which branch an If takes, by the operators that compute it."""
    makers = {index: (op["name"] or "", slot) for op in view.ops for slot, index in enumerate(op.ints("outputIndexes"))}
    decided = [op.ints("inputIndexes")[0] for op in view.ops if op.label("type") == "If"]
    return [makers[index] for index in decided if index in makers]


def _outputs(view: GraphView) -> list[str]:
    if not view.name:
        return view.table.texts("outputName")
    return [view.tensors[index] for index in view.table.ints("outputs")]
