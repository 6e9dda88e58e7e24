"""What all sections share: where files go, how big the workloads are, and how nodes are counted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx

from benchmarks._runner import Runner
from fixtures import chains

QUICK_EXPORTS = ("mbv3_ts", "bert2_ts")


@dataclass(frozen=True)
class Sizes:
    """How much is measured. `judged`: whether the bars, which hold for the full sizes, are judged."""

    chain: int = 20_000
    scaling: tuple[int, ...] = (5_000, 10_000, 20_000, 50_000, 100_000)
    megabytes: int = 1_500
    rounds: int = 3
    exports: tuple[str, ...] = ()
    judged: bool = True


QUICK = Sizes(1_000, (1_000, 2_000, 4_000), 100, 1, QUICK_EXPORTS, False)


@dataclass(frozen=True)
class Bench:
    """One run: an empty folder on a real disk, and the sizes."""

    folder: Path
    sizes: Sizes

    def runner(self, timeout: float = 180.0, *, warm: bool = True) -> Runner:
        """A runner whose children are warmed on a chain of one block, unless they only check."""
        warmup = self.folder / "warmup.onnx"
        if warm and not warmup.exists():
            onnx.save(chains.chain(33), warmup)
        return Runner(self.folder, warmup if warm else None, timeout)

    def file(self, name: str) -> str:
        """Path of a file of this run; characters that paths or options could trip over become `-`."""
        return str(self.folder / "".join(c if c.isalnum() or c in "._" else "-" for c in name))


def say(text: str) -> None:
    """Tell on stderr how far the run is."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def count_nodes(path: str | Path) -> tuple[int, int]:
    """Nodes of a model file, those of subgraphs and functions too: all, and all but Constant."""
    if not Path(path).is_file():
        return 0, 0
    model = onnx.load(path, load_external_data=False)
    ops = [node.op_type for node in _nodes(model.graph.node)]
    ops += [node.op_type for function in model.functions for node in _nodes(function.node)]
    return len(ops), sum(op != "Constant" for op in ops)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g.node)
