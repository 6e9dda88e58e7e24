"""Finding one bad layer: graphkit bisect, polygraphy, and the method of MNN's own script.

    python benchmarks/bisection.py [--rounds N] [-o FOLDER] [--only layernorm|chain|long]

1. BERT with a LayerNorm weight × 1.01, all dims fixed: `graphkit bisect` gets the changed model as .onnx and as .mnn;
   `polygraphy run` compares all values of the two .onnx files, `polygraphy debug reduce` shrinks the changed one. CPU
   seconds are those of all processes.
2. A 400-node chain with one node that MNN 3.6.1 computes wrong: seconds in MNN's converter, ours and those of a binary
   search that converts and runs the model anew for every probe. That is the method of MNN's testMNNFromOnnx.py DEBUG,
   not the script.
3. A chain of 2,000 nodes whose values are larger than the memory that is given.

Needs `pip install polygraphy`, here or in a folder on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._faults import plants
from benchmarks._quant import RESULTS, head
from benchmarks._report import Bar, Table, median, seconds, times
from benchmarks._watched import Ran, watched
from fixtures import chains, exports
from graphkit.compare import Tolerance, compare
from graphkit.graph import Graph
from graphkit.mnn import convert as converting
from graphkit.mnn import worker
from graphkit.model import Model
from graphkit.optimizer import bound_model
from graphkit.runtime import Session
from graphkit.verification.bisect import _lab
from graphkit.verification.bisect.locate_faults import bisect_layers
from graphkit.verification.bisect.search import first_bad

SHAPE = [1, 16]
LESS = 5.0  # times less converter time than a conversion for each probe
MEMORY = 1 << 30
LENGTH = 16_384  # tokens of the long chain: its values are 1.6 times the memory that is given
GRAPHKIT = (sys.executable, "-m", "graphkit")
_RUN = "import sys; from polygraphy.tools import main; sys.argv[0] = 'polygraphy'; sys.exit(main())"
POLYGRAPHY = (sys.executable, "-c", _RUN)
RTOL, ATOL = "1e-4", "1e-4"


# -- 1: a LayerNorm weight ------------------------------------------------------------------------------------------------


def layernorm(folder: Path, rounds: int) -> tuple[str, list[Bar]]:
    """The first section."""
    culprit = _plant(folder)
    ways = {
        "graphkit bisect, .onnx": _ours("bad.onnx"),
        "graphkit bisect, .mnn": _ours("bad.mnn"),
        "polygraphy run, all outputs": _polygraphy_run(),
        "polygraphy debug reduce": [*_polygraphy_golden(), *_polygraphy_reduce("bisect"), *_polygraphy_reduce("linear")],
    }  # fmt: skip
    cost: dict[str, list[float]] = {name: [] for name in ways}
    last: dict[str, list[Ran]] = {}
    for _ in range(rounds):
        for name, commands in ways.items():
            last[name] = [watched(command, folder) for command in commands]
            cost[name].append(sum(ran.cpu for ran in last[name]))
            print(f"{name}: {cost[name][-1]:.2f} CPU s, {sum(ran.lines for ran in last[name])} lines", flush=True)
    answers = {name: _answer(name, last[name], culprit, folder) for name in ways}
    rows = [
        [name, seconds(median(cost[name])), str(sum(ran.lines for ran in last[name])), answers[name][1]]
        for name in ways
    ]
    mine, theirs = list(ways)[:2], list(ways)[2:]
    slowest, fastest = (max(median(cost[name]) for name in mine), min(median(cost[name]) for name in theirs))
    bars = [
        Bar("one node, the right one, from .onnx and from .mnn", "; ".join(answers[name][1] for name in mine),
            all(answers[name][0] for name in mine)),
        Bar("fewer CPU seconds than either of polygraphy's ways",
            f"at most {seconds(slowest)} against at least {seconds(fastest)}", slowest < fastest),
    ]  # fmt: skip
    text = (
        f"## A LayerNorm weight × 1.01\n\nBERT, 2 layers, all dims fixed, `{culprit}` changed. polygraphy does not run "
        "MNN and gets the changed .onnx; its reduction needs the values of the original first, as its guide says. "
        f"Medians of {rounds} round{'s' if rounds > 1 else ''}; everything from the start of the command."
    )
    return "\n\n".join([text, Table(["", "CPU s", "lines printed", "the answer"], rows).markdown()]), bars


def _plant(folder: Path) -> str:
    """good.onnx, bad.onnx, bad.mnn in the folder; the label of the node whose weight was changed."""
    source = Model.load(exports.export("bert2_ts"))
    model = bound_model(source, dict.fromkeys(Graph.of(source).inputs, SHAPE))
    model, made = plants.converted(model, folder, "good")
    label = [node.label for node in Graph.of(model).nodes if node.op_type == "LayerNormalization"][2]
    proto = onnx.load(folder / "good.onnx")
    node = next(node for node in proto.graph.node if node.name == label)
    with Session(model, outputs=[node.input[1]]) as session:  # exporters share equal weights through Identity
        gamma = session.run({name: np.zeros(SHAPE, np.int64) for name in Graph.of(model).inputs})[node.input[1]]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(gamma * np.float32(1.01), "gamma/changed"))
    node.input[1] = "gamma/changed"
    onnx.save(proto, folder / "bad.onnx")
    plants.planted(made, folder / "bad.mnn", plants.scaled(node.output[0], "gamma", 1.01))
    return label


def _ours(candidate: str) -> list[Sequence[str]]:
    return [[*GRAPHKIT, "bisect", "good.onnx", candidate, "--no-repro", "--no-suggestions", "--json"]]


def _polygraphy_run() -> list[Sequence[str]]:
    marked = ["--onnxrt", "--onnx-outputs", "mark", "all"]
    golden = [*POLYGRAPHY, "run", "good.onnx", *marked, "--save-inputs", "in.json", "--save-outputs", "out.json"]
    compared = ["--load-inputs", "in.json", "--load-outputs", "out.json", "--rtol", RTOL, "--atol", ATOL]
    return [golden, [*POLYGRAPHY, "run", "bad.onnx", *marked, *compared]]


def _polygraphy_golden() -> list[Sequence[str]]:
    golden, _ = _polygraphy_run()
    return [golden, [*POLYGRAPHY, "data", "merge", "in.json", "out.json", "-o", "layerwise.json"]]


def _polygraphy_reduce(mode: str) -> list[Sequence[str]]:
    source, target = ("bad.onnx", "first.onnx") if mode == "bisect" else ("first.onnx", "reduced.onnx")
    check = [*POLYGRAPHY, "run", "polygraphy_debug.onnx", "--onnxrt", "--load-inputs", "layerwise.json",
             "--load-outputs", "out.json", "--rtol", RTOL, "--atol", ATOL]  # fmt: skip
    return [[*POLYGRAPHY, "debug", "reduce", source, "-o", target, "--mode", mode, "--load-inputs", "layerwise.json",
             "--check", *check]]  # fmt: skip


def _answer(name: str, ran: Sequence[Ran], culprit: str, folder: Path) -> tuple[bool, str]:
    """Whether the one right node is named and no other, and the answer in words."""
    if name.startswith("graphkit"):
        start = ran[0].text.index("{")
        nodes = [fault["node"] for fault in json.loads(ran[0].text[start:])["faults"]]
        return nodes == [culprit], ", ".join(f"`{node}`" for node in nodes) or "none"
    if name.endswith("outputs"):
        failed = ran[-1].text.count("Difference exceeds tolerance")
        return False, f"{failed} values differ; the first is to be found in the lines"
    path = folder / "reduced.onnx"
    if not path.exists():
        return False, f"failed: {ran[-1].text.strip().splitlines()[-1][:80]}"
    left = onnx.load(path).graph.node
    inside = "with" if any(node.name == culprit for node in left) else "without"
    return False, f"{len(left)} node{'s' if len(left) != 1 else ''} left, {inside} the changed one"


# -- 2: converter time ----------------------------------------------------------------------------------------------------


@dataclass
class Converter:
    """What MNN's converter was asked for: seconds of each conversion, and the nodes of the model."""

    spent: list[float] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    def run(self, source: Path, output: Path, *args: Any, **kwargs: Any) -> converting.ConverterRun:
        """A conversion that is counted, failures too."""
        self.nodes.append(len(onnx.load(source, load_external_data=False).graph.node))
        try:
            run = converting.run_converter(source, output, *args, **kwargs)
        except converting.ConverterError:
            self.spent.append(float("nan"))
            raise
        self.spent.append(run.seconds)
        return run

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While this lasts, conversions of a bisection are counted."""
        with mock.patch.object(_lab, "run_converter", self.run):
            yield

    def told(self) -> list[str]:
        """Conversions of large and of small models, and seconds."""
        large = sum(count > max(self.nodes) // 2 for count in self.nodes)
        return [str(large), str(len(self.nodes) - large), seconds(sum(self.spent))]


def faulty_chain(nodes: int, length: int = 4) -> Model:
    """A chain in the middle of which a ScatterND stands that MNN 3.6.1 computes wrong."""
    proto = chains.chain(nodes)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = length
    adds = [node for node in proto.graph.node if node.op_type == "Add" and node.name.startswith(f"block{nodes // 66}/")]
    made = adds[-1].output[0]
    rng = np.random.default_rng(0)
    parts = {
        "scatter/rows": np.array([[0, 0], [0, 2]], np.int64),
        "scatter/updates": 3 + rng.standard_normal((2, chains.HIDDEN)).astype(np.float32),
    }
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in parts.items())
    for node in proto.graph.node:
        node.input[:] = ["scatter_out" if name == made else name for name in node.input]
    index = next(i for i, node in enumerate(proto.graph.node) if node.output[0] == made)
    scatter = onnx.helper.make_node("ScatterND", [made, *parts], ["scatter_out"], "scatter")
    proto.graph.node.insert(index + 1, scatter)
    return Model.from_proto(proto)


def probing(model: Model, folder: Path, converter: Converter) -> tuple[str, int]:
    """A binary search over the nodes: the output of one is made the model's, which is converted and run anew.

    The node that is found, and the probes that it took.
    """
    graph = Graph.of(model)
    nodes = [node for node in graph.nodes if node.op_type != "Constant"]
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 4, chains.HIDDEN)).astype(np.float32)}

    def bad(index: int) -> bool | None:
        name = nodes[index - 1].outputs[0]
        probe = onnx.ModelProto.FromString(model.proto.SerializeToString())
        del probe.graph.output[:]
        probe.graph.output.append(onnx.ValueInfoProto(name=name))
        with Session(model, outputs=[name]) as session:
            expected = session.run(feeds)
        source, target = folder / "probe.onnx", folder / "probe.mnn"
        onnx.save(probe, source)
        converter.run(source, target)
        actual = worker.run(target, feeds, [name]).outputs
        return not compare(expected, actual, Tolerance(rtol=1e-3), squeeze=True).ok

    found = first_bad(0, len(nodes), bad)
    return nodes[found.first_bad - 1].label, len(converter.spent)


def chain(folder: Path) -> tuple[str, list[Bar]]:
    """The second section."""
    model = faulty_chain(400)
    ours, full, theirs = Converter(), Converter(), Converter()
    with ours.listening():
        found = bisect_layers(model, suggestions=False)
    with full.listening():
        bisect_layers(model)
    node, probes = probing(model, folder, theirs)
    nodes = [fault.node for fault in found.faults]
    ratio = sum(theirs.spent) / sum(ours.spent)
    rows = [
        ["graphkit bisect, the answer", *ours.told(), ", ".join(f"`{one}`" for one in nodes)],
        ["graphkit bisect, with what avoids it", *full.told(), "the same, and the pass"],
        [f"a conversion for each of {probes} probes", *theirs.told(), f"`{node}`"],
    ]
    bars = [
        Bar(f"at least {LESS:g} times less converter time than a conversion for each probe", times(ratio), ratio >= LESS),
        Bar("the node is named, and no other", ", ".join(nodes), nodes == ["scatter"]),
    ]  # fmt: skip
    text = (
        f"## Converter time, {len(model.proto.graph.node)} nodes\n\nA chain with a ScatterND that MNN 3.6.1 computes "
        "wrong. The other way is the *method* of MNN's testMNNFromOnnx.py DEBUG in a driver of our own, not the script: "
        "for each probe of a binary search the output of one node is made the model's, and the whole is converted and "
        "run anew. It finds one fault, on a path to one output. Both run MNNConvert in a child; seconds are the child's."
    )
    header = ["", "whole conversions", "small ones", "converter s", "found"]
    return "\n\n".join([text, Table(header, rows).markdown()]), bars


# -- 3: a long model ------------------------------------------------------------------------------------------------------


def long(folder: Path) -> tuple[str, list[Bar]]:
    """The third section."""
    model = faulty_chain(2000, LENGTH)
    model.save(folder / "long.onnx")
    graph = Graph.of(model)
    values = sum(
        1 for node in graph.nodes if node.op_type not in ("Constant", "Shape", "Gather", "Unsqueeze", "Concat")
    )
    size = values * LENGTH * chains.HIDDEN * 4
    command = [*GRAPHKIT, "bisect", "long.onnx", "--no-optimize", "--no-repro", "--memory", "1GB", "--json"]
    ran = watched(command, folder)
    told = json.loads(ran.text[ran.text.index("{") :])
    nodes = [fault["node"] for fault in told["faults"]]
    made = told["conversions"]
    rows = [[
        f"{len(model.proto.graph.node):,}", f"{size / 1e9:.1f} GB", str(made["whole"]), str(made["small"]), seconds(ran.wall),
        seconds(ran.cpu), f"{ran.peak / 1e9:.2f} GB", f"{ran.tree / 1e9:.2f} GB", ", ".join(f"`{one}`" for one in nodes),
    ]]  # fmt: skip
    bars = [
        Bar("the node is named, and no other", ", ".join(nodes), nodes == ["scatter"]),
        Bar("one conversion of the whole model to find it, small ones besides",
            f"{made['whole']} whole (with those that try what avoids it), {made['small']} small", made["whole"] <= 2),
        Bar("memory bounded by --memory 1GB", f"at most {ran.peak / 1e9:.2f} GB of our process, for {size / 1e9:.1f} GB "
            "of values", ran.peak <= MEMORY + 300e6),
    ]  # fmt: skip
    header = [
        "nodes",
        "values",
        "whole conversions",
        "small ones",
        "s",
        "CPU s",
        "peak, our process",
        "with MNN's",
        "found",
    ]
    text = (
        f"## {len(model.proto.graph.node):,} nodes\n\nThe same fault in a longer chain on [1, {LENGTH}, {chains.HIDDEN}]; "
        "`graphkit bisect long.onnx --no-optimize --memory 1GB`, suggestions included. Peaks are anonymous resident memory."
    )
    return "\n\n".join([text, Table(header, rows).markdown()]), bars


SECTIONS = ("layernorm", "chain", "long")


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description="Finding one bad layer: ours, polygraphy, a conversion per probe.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    parts, bars = [], []
    for name in SECTIONS if args.only is None else (args.only,):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            makers = {"layernorm": lambda f=folder: layernorm(f, args.rounds), "chain": lambda f=folder: chain(f),
                      "long": lambda f=folder: long(f)}  # fmt: skip
            text, found = makers[name]()
        print(text, *(bar.markdown() for bar in found), sep="\n", flush=True)
        parts.append("\n\n".join([text, "\n".join(bar.markdown() for bar in found)]))
        bars += found
    if args.only is None:
        made = "\n\n".join([head("Finding one bad layer", "python benchmarks/bisection.py"), *parts])
        (args.output / "bisection.md").write_text(made + "\n", encoding="utf-8")
    if not all(bar.met for bar in bars):
        sys.exit(1)


if __name__ == "__main__":
    main()
