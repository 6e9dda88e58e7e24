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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._bad_layer import GRAPHKIT, layernorm
from benchmarks._quant import RESULTS, head
from benchmarks._report import Bar, Table, median, seconds, times
from benchmarks._watched import watched
from fixtures import chains
from graphkit.compare import Tolerance, compare
from graphkit.graph import Graph
from graphkit.mnn import convert as converting
from graphkit.mnn import worker
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.verification.bisect import _lab
from graphkit.verification.bisect.locate_faults import bisect_layers
from graphkit.verification.bisect.search import first_bad

LESS = 5.0  # times less converter time than a conversion for each probe
MEMORY = 1 << 30
LENGTH = 32_768  # tokens of the long chain: its values are more than the memory that is given


# -- converter time ---


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

    @property
    def counts(self) -> list[str]:
        """Conversions of large and of small models."""
        large = sum(count > max(self.nodes) // 2 for count in self.nodes)
        return [str(large), str(len(self.nodes) - large)]


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


def probing(model: Model, folder: Path, converter: Converter) -> str:
    """A binary search over the nodes: the output of one is made the model's, which is converted and run anew.

    The node that is found; the model's own output is the first probe.
    """
    nodes = [node for node in Graph.of(model).nodes if node.op_type != "Constant"]
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

    if not bad(len(nodes)):
        return ""
    return nodes[first_bad(0, len(nodes), bad).first_bad - 1].label


def chain(folder: Path, rounds: int) -> tuple[str, list[Bar]]:
    """The second section."""
    model = faulty_chain(400)
    ways: dict[str, list[Converter]] = {"answer": [], "more": [], "probes": []}
    for _ in range(rounds):
        made = {name: Converter() for name in ways}
        with made["answer"].listening():
            nodes = [fault.node for fault in bisect_layers(model, suggestions=False).faults]
        with made["more"].listening():
            bisect_layers(model)
        node = probing(model, folder, made["probes"])
        for name, converter in made.items():
            ways[name].append(converter)
    spent = {name: median(sum(one.spent) for one in found) for name, found in ways.items()}
    ratio = spent["probes"] / spent["answer"]
    named = ", ".join(f"`{one}`" for one in nodes)
    rows = [
        ["graphkit bisect, the answer", *ways["answer"][0].counts, seconds(spent["answer"]), named],
        [
            "graphkit bisect, with what avoids it",
            *ways["more"][0].counts,
            seconds(spent["more"]),
            "the same, and a pass",
        ],
        ["a conversion for each probe", *ways["probes"][0].counts, seconds(spent["probes"]), f"`{node}`"],
    ]
    bars = [
        Bar(
            f"at least {LESS:g} times less converter time than a conversion for each probe", times(ratio), ratio >= LESS
        ),
        Bar("the node is named, and no other", ", ".join(nodes), nodes == ["scatter"]),
    ]
    text = (
        f"## Converter time, {len(model.proto.graph.node)} nodes\n\nA chain with a ScatterND that MNN 3.6.1 computes "
        "wrong. The other way is the *method* of MNN's testMNNFromOnnx.py DEBUG in a driver of our "
        "own, not the script: "
        "for each probe of a binary search the output of one node is made the model's, and the whole is converted and "
        "run anew. It finds one fault, on a path to one output. Both run MNNConvert in a child; seconds are the "
        f"child's, medians of {rounds}."
    )
    header = ["", "whole conversions", "small ones", "converter s", "found"]
    return "\n\n".join([text, Table(header, rows).markdown()]), bars


# -- a long model ---


def long(folder: Path) -> tuple[str, list[Bar]]:
    """The third section."""
    model = faulty_chain(2000, LENGTH)
    model.save(folder / "long.onnx")
    graph = Graph.of(model)
    values = sum(
        1 for node in graph.nodes if node.op_type not in ("Constant", "Shape", "Gather", "Unsqueeze", "Concat")
    )
    size = values * LENGTH * chains.HIDDEN * 4
    command = [
        *GRAPHKIT,
        "bisect",
        "long.onnx",
        "--no-optimize",
        "--no-repro",
        "--no-suggestions",
        "--memory",
        "1GB",
        "--json",
    ]
    ran = watched(command, folder)
    told = json.loads(ran.text[ran.text.index("{") :])
    nodes = [fault["node"] for fault in told["faults"]]
    made = told["conversions"]
    rows = [
        [
            f"{len(model.proto.graph.node):,}",
            f"{size / 1e9:.1f} GB",
            str(made["whole"]),
            str(made["small"]),
            seconds(ran.wall),
            seconds(ran.cpu),
            f"{ran.peak / 1e9:.2f} GB",
            f"{ran.tree / 1e9:.2f} GB",
            ", ".join(f"`{one}`" for one in nodes),
        ]
    ]
    bars = [
        Bar("the node is named, and no other", ", ".join(nodes), nodes == ["scatter"]),
        Bar(
            "one conversion of the whole model to find it, small ones besides",
            f"{made['whole']} whole, {made['small']} small",
            made["whole"] == 1,
        ),
        Bar(
            "memory bounded by --memory 1GB",
            f"at most {ran.peak / 1e9:.2f} GB of our process, for {size / 1e9:.1f} GB of values",
            ran.peak <= MEMORY + 300e6,
        ),
    ]
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
        f"## {len(model.proto.graph.node):,} nodes\n\nThe same fault in a longer chain on [1, "
        f"{LENGTH}, {chains.HIDDEN}]; "
        "`graphkit bisect long.onnx --no-optimize --no-suggestions --memory 1GB`. Peaks are anonymous resident memory."
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
            makers = {
                "layernorm": lambda f=folder: layernorm(f, args.rounds),
                "chain": lambda f=folder: chain(f, args.rounds),
                "long": lambda f=folder: long(f),
            }
            text, found = makers[name]()
        print(text, *(bar.markdown() for bar in found), sep="\n", flush=True)
        parts.append("\n\n".join([text, "\n".join(bar.markdown() for bar in found)]))
        bars += found
    if args.only is None:
        made = "\n\n".join([head("Finding one bad layer", "python benchmarks/bisection.py").strip(), *parts])
        (args.output / "bisection.md").write_text(made + "\n", encoding="utf-8")
    if not all(bar.met for bar in bars):
        sys.exit(1)


if __name__ == "__main__":
    main()
