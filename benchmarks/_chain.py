"""Speed on long graphs: one chain against the peers that can do it, and our growth with its length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx

from benchmarks._bench import Bench, count_nodes, say
from benchmarks._report import Bar, Section, Table, median, seconds, times
from benchmarks._runner import Job, Outcome
from fixtures import chains

# Our passes that do what the peer does to the chain: fold, deduplicate, remove; onnxsim also makes LayerNormalization.
SAME_WORK = {
    "onnxsim": "fold-constants,fold-shapes,fuse-layernorm,cleanup",
    "graphsurgeon": "fold-constants,fold-shapes,cleanup",
}
TOLERANCE = 1e-5
BARS = {"onnxsim": 8.0, "graphsurgeon": 4.0}
GROWTH = 1.1
SHAPES = [{"x": [1, 4, chains.HIDDEN]}]


@dataclass
class Entry:
    """A tool under a name and its source, what its runs cost, what it left, and whether that is right."""

    name: str
    tool: str
    source: str
    options: dict[str, Any] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    target: str = ""
    nodes: tuple[int, int] = (0, 0)
    verdict: dict[str, Any] = field(default_factory=dict)

    @property
    def failure(self) -> str:
        """Why the tool failed, empty when it did not."""
        return next((outcome.failure for outcome in self.outcomes if outcome.failure), "")

    @property
    def cpu(self) -> float:
        """Median CPU seconds, NaN when it failed."""
        return float("nan") if self.failure else median(outcome.cpu for outcome in self.outcomes)

    @property
    def wall(self) -> float:
        """Median wall seconds, NaN when it failed."""
        return float("nan") if self.failure else median(outcome.wall for outcome in self.outcomes)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "tool": self.tool,
            **self.options,
            "failure": self.failure,
            "cpu": [round(outcome.cpu, 4) for outcome in self.outcomes],
            "wall": [round(outcome.wall, 4) for outcome in self.outcomes],
            "nodes": self.nodes[0],
            "nodes_without_constants": self.nodes[1],
            **self.verdict,
            "passes": self.outcomes[-1].result.get("passes", {}) if self.outcomes else {},
        }


def alternate(bench: Bench, entries: Sequence[Entry]) -> None:
    """Run all entries in turn, as many rounds as the sizes say, each call in a warm child of its own."""
    runner = bench.runner()
    for number in range(bench.sizes.rounds):
        for entry in entries:
            if entry.failure:
                continue
            entry.target = bench.file(f"{entry.name}.onnx")
            entry.outcomes.append(runner.one(Job(entry.tool, entry.source, entry.target, entry.options)))
            outcome = entry.outcomes[-1]
            say(f"  round {number + 1}, {entry.name}: {outcome.failure or f'{outcome.cpu:.2f} CPU s'}")


def chain(bench: Bench) -> Section:
    """One long chain: ours in full, and each peer beside ours held to that peer's kind of work."""
    source = bench.file("chain.onnx")
    onnx.save(chains.chain(bench.sizes.chain), source)
    full = Entry("graphkit, preset default", "graphkit", source, {"pipeline": "default"})
    peers = [Entry(name, name, source) for name in BARS]
    held = [Entry(f"graphkit, work of {name}", "graphkit", source, {"pipeline": SAME_WORK[name]}) for name in BARS]
    entries = [full, *peers, *held]
    alternate(bench, entries)
    checker = bench.runner(600, warm=False)
    for entry in entries:
        if not entry.failure:
            entry.nodes = count_nodes(entry.target)
            options = {"samples": SHAPES, "tolerance": TOLERANCE}
            verdict = checker.one(Job("judge", source, entry.target, options))
            entry.verdict = dict(verdict.result) or {"error": None, "fault": verdict.failure}
    return _chain_section(bench, full, list(zip(peers, held, strict=True)), count_nodes(source))


def _chain_section(bench: Bench, full: Entry, pairs: Sequence[tuple[Entry, Entry]], raw: tuple[int, int]) -> Section:
    rows = [
        ["the chain itself", *map(str, raw), "–", "–", "–", "–", "–"],
        [full.name, *_cells(full), "–", "–"],
    ]
    for peer, held in pairs:
        rows.append([peer.name, *_cells(peer), times(peer.cpu / full.cpu), times(peer.cpu / held.cpu)])
        rows.append([held.name, *_cells(held), "–", "–"])
    header = [
        "",
        "nodes",
        "without Constant",
        "CPU s",
        "wall s",
        "outputs",
        "CPU ÷ ours",
        "÷ ours, same work",
    ]
    entries = [full, *(entry for pair in pairs for entry in pair)]
    faults = [f"{entry.name}: {entry.failure or entry.verdict['fault']}" for entry in entries if _bad(entry)]
    held_texts = "; ".join(f"{peer.name}: `{held.options['pipeline']}`" for peer, held in pairs)
    text = (
        f"A transformer-like chain of {raw[0]:,} nodes (`fixtures/chains.py`), load to save. Equal work is "
        f"asserted: outputs within {TOLERANCE:g} of the original's largest value in onnxruntime without "
        "optimizations, and no more nodes left than the peer leaves. Our preset looks for more fusions than "
        f"the peers do; *work of …* holds us to what that peer does ({held_texts})."
    )
    data = {"nodes": raw[0], "entries": {entry.name: entry.to_dict() for entry in entries}}
    bars = [_chain_bar(full, held, peer) for peer, held in pairs] if bench.sizes.judged else []
    return Section("chain", "One long chain", text, [Table(header, rows)], bars, faults, data)


def _cells(entry: Entry) -> list[str]:
    if entry.failure:
        return ["–", "–", "–", "–", entry.failure]
    fault, error = entry.verdict["fault"], entry.verdict["error"]
    return [*map(str, entry.nodes), seconds(entry.cpu), seconds(entry.wall), fault or f"equal ({error:.0e})"]


def _bad(entry: Entry) -> bool:
    return bool(entry.failure or entry.verdict["fault"])


def _chain_bar(full: Entry, held: Entry, peer: Entry) -> Bar:
    """For equal work ours must be fast enough; both of ours right, and with no more nodes left than the peer."""
    least = BARS[peer.tool]
    ratios = [peer.cpu / ours.cpu for ours in (full, held)]
    fewer = all(0 < ours.nodes[0] <= peer.nodes[0] for ours in (full, held))
    measured = f"{times(ratios[1])} for equal work, {times(ratios[0])} with all passes of the preset"
    if not fewer:
        measured += f"; but {full.nodes[0]} and {held.nodes[0]} nodes against {peer.nodes[0]}"
    met = ratios[1] >= least and fewer and not _bad(full) and not _bad(held)
    claim = f"at least {least:g} times faster than {peer.name} for equal work, with no more nodes left"
    return Bar(claim, measured, met)


def scaling(bench: Bench) -> Section:
    """Our time on chains of growing length, and the exponent of its growth."""
    entries: list[Entry] = []
    for nodes in bench.sizes.scaling:
        source = bench.file(f"chain{nodes}.onnx")
        onnx.save(chains.chain(nodes), source)
        entries.append(Entry(f"graphkit {nodes}", "graphkit", source, {"pipeline": "default"}))
    alternate(bench, entries)
    for entry in entries:
        entry.nodes = count_nodes(entry.target) if not entry.failure else (0, 0)
    return _scaling_section(bench, entries, [count_nodes(entry.source)[0] for entry in entries])


def _scaling_section(bench: Bench, entries: Sequence[Entry], counts: Sequence[int]) -> Section:
    growth = exponent(counts, [entry.cpu for entry in entries])
    rows = [
        [
            f"{count:,}",
            f"{entry.nodes[0]:,}",
            seconds(entry.cpu),
            seconds(entry.wall),
            _each(entry.cpu, count),
        ]
        for count, entry in zip(counts, entries, strict=True)
    ]
    table = Table(["nodes", "nodes left", "CPU s", "wall s", "µs a node"], rows)
    bar = Bar(f"time grows with at most the power {GROWTH} of the nodes", f"{growth:.2f}", growth <= GROWTH)
    text = "The same chain, longer and longer; preset `default`, load to save."
    faults = [f"{entry.name}: {entry.failure}" for entry in entries if entry.failure]
    data = {"exponent": growth, "runs": {str(n): e.to_dict() for n, e in zip(counts, entries, strict=True)}}
    return Section("scaling", "Growth", text, [table], [bar] if bench.sizes.judged else [], faults, data)


def _each(cpu: float, count: int) -> str:
    return "–" if math.isnan(cpu) else f"{cpu / count * 1e6:.0f}"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Slope of the least-squares line through (log size, log cost); NaN when a cost is missing."""
    x, y = [math.log(size) for size in sizes], [math.log(c) if c > 0 else math.nan for c in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)
