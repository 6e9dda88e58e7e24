"""A LayerNorm with wrong weights: what graphkit and polygraphy say of it, and what it costs them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks._faults import plants
from benchmarks._report import Bar, Table, median, seconds
from benchmarks._watched import Ran, watched
from fixtures import exports
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import bound_model, optimize

SHAPE = [1, 16]
GRAPHKIT = (sys.executable, "-m", "graphkit")
_RUN = "import sys; from polygraphy.tools import main; sys.argv[0] = 'polygraphy'; sys.exit(main())"


def layernorm(folder: Path, rounds: int) -> tuple[str, list[Bar]]:
    """The first section."""
    culprit = _plant(folder)
    ways = {
        "graphkit bisect, .onnx": _ours("bad.onnx"),
        "graphkit bisect, .mnn": _ours("bad.mnn"),
        "polygraphy run, all outputs": _polygraphy_run(),
        "polygraphy debug reduce": _polygraphy_reduce(),
    }
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
        Bar(
            "one node, the right one, from .onnx and from .mnn",
            "; ".join(answers[name][1] for name in mine),
            all(answers[name][0] for name in mine),
        ),
        Bar(
            "fewer CPU seconds than either of polygraphy's ways",
            f"at most {seconds(slowest)} against at least {seconds(fastest)}",
            slowest < fastest,
        ),
    ]
    text = (
        f"## A LayerNorm weight × 1.01\n\nBERT, 2 layers, all dims fixed, half of the weights of "
        f"`{culprit}` × 1.01. polygraphy does not run "
        "MNN and gets the changed .onnx; its reduction needs the values of the original first, as its "
        "guide says; tolerances are its defaults. "
        f"Medians of {rounds} round{'s' if rounds > 1 else ''}; everything from the start of the command."
    )
    return "\n\n".join([text, Table(["", "CPU s", "lines printed", "the answer"], rows).markdown()]), bars


def _plant(folder: Path) -> str:
    """good.onnx, bad.onnx, bad.mnn in the folder; the label of the node whose weight was changed."""
    source = Model.load(exports.export("bert2_ts"))
    bound = bound_model(source, dict.fromkeys(Graph.of(source).inputs, SHAPE))
    model = optimize(bound, "fold-constants,cleanup", verify="none").model  # no equal weights shared through Identity
    model, made = plants.converted(model, folder, "good")
    label = [node.label for node in Graph.of(model).nodes if node.op_type == "LayerNormalization"][2]
    proto = onnx.load(folder / "good.onnx")
    node = next(node for node in proto.graph.node if node.name == label)
    gamma = Graph.of(model).constant(node.input[1])
    assert gamma is not None
    proto.graph.initializer.append(onnx.numpy_helper.from_array(_louder(gamma), "gamma/changed"))
    node.input[1] = "gamma/changed"
    onnx.save(proto, folder / "bad.onnx")
    plants.planted(made, folder / "bad.mnn", plants.put(node.output[0], "gamma", _louder(gamma)))
    return label


def _louder(gamma: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Half of the weights × 1.01: were it all of them, the next LayerNorm would take most of it away again."""
    made = np.array(gamma, np.float32)
    made[: made.size // 2] *= np.float32(1.01)
    return made


def _ours(candidate: str) -> list[Sequence[str]]:
    return [[*GRAPHKIT, "bisect", "good.onnx", candidate, "--no-repro", "--no-suggestions", "--json"]]


def _polygraphy_run() -> list[Sequence[str]]:
    marked = "--onnxrt --onnx-outputs mark all"
    return [
        _polygraphy(f"run good.onnx {marked} --save-inputs in.json --save-outputs out.json"),
        _polygraphy(f"run bad.onnx {marked} --load-inputs in.json --load-outputs out.json"),
    ]


def _polygraphy_reduce() -> list[Sequence[str]]:
    """As its guide has it: all values of the original become inputs, then first halves, then nodes one by one."""
    check = _polygraphy("run polygraphy_debug.onnx --onnxrt --load-inputs all.json --load-outputs out.json")
    golden, _ = _polygraphy_run()
    steps = [("bad.onnx", "first.onnx", "bisect"), ("first.onnx", "reduced.onnx", "linear")]
    return [
        golden,
        _polygraphy("data merge in.json out.json -o all.json"),
        *(
            [*_polygraphy(f"debug reduce {source} -o {target} --mode {mode} --load-inputs all.json"),
             "--fail-regex", "FAILED", "--check", *check]
            for source, target, mode in steps
        ),
    ]  # fmt: skip


def _polygraphy(arguments: str) -> list[str]:
    return [sys.executable, "-c", _RUN, *arguments.split()]


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
