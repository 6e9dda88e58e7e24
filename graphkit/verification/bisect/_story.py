"""What a repro folder tells: the answer, the command that shows it, and what belongs beside the model."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.tolerances import mnn_tolerance
from graphkit.verification.bisect.mnn_faults import Observation
from graphkit.version import __version__

_SCRIPT = Path(__file__).with_name("_reproduce.py")
_NAMES = ("model.onnx", "inputs.npz", "expected.npz", "README.md", "report.txt")


@dataclass(frozen=True)
class Story:
    """What to write beside a model: see `mnn_story`, `pass_story` and `file_story`.

    answer: one line. command: what shows it, to be run in the folder; it then ends with `exit_code`. needs: what must
    be installed for it. facts: lines of the report, by what they are. files: more files for the folder, contents or
    paths to copy, or models to save with their weights, by name. log: what the program at fault printed.
    """

    answer: str
    command: tuple[str, ...]
    exit_code: int = 1
    needs: str = "graphkit"
    facts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | Path | Model] = field(default_factory=dict)
    log: str = ""

    def __post_init__(self) -> None:
        taken = [name for name in self.files if name in _NAMES or Path(name).name != name]
        if taken:
            raise UsageError(f"'{taken[0]}' cannot be a file of a repro folder", hint="give it a plain name of its own")

    @property
    def line(self) -> str:
        """The command as one line for a shell."""
        return shlex.join(self.command)


def mnn_story(
    found: Observation,
    model: Model,
    *,
    answer: str = "",
    options: ConverterOptions | None = None,
    tolerance: float | None = None,
    seconds: float = 120.0,
) -> Story:
    """The story of a fault of MNN: a script that needs numpy and MNN only, so that MNN's developers can run it.

    answer: by default what was observed. tolerance: largest error over the largest value that is right.
    """
    options = options or ConverterOptions.of()
    if tolerance is None:
        tolerance = mnn_tolerance(Graph.of(model), halved=bool(options.get("fp16"))).rtol
    flags = options.argv(Path("model.onnx"), Path("model.mnn"))[7:]
    script = _SCRIPT.read_text(encoding="utf-8")
    for line, now in (
        ("FLAGS: list[str] = []", f"FLAGS: list[str] = {flags!r}"),
        ("TOLERANCE = 1e-3", f"TOLERANCE = {tolerance!r}"),
        ("SECONDS = 120", f"SECONDS = {seconds!r}"),
    ):
        assert script.count(line) == 1, line
        script = script.replace(line, now)
    facts = {"observed": str(found)}
    if found.error is not None and found.max_ref is not None:
        facts["error"] = f"{found.error:.3g} of the largest value, which is {found.max_ref:.3g}"
    return Story(
        answer or str(found), ("python", "reproduce.py"), 1, "numpy and MNN (pip install numpy MNN)",
        {**facts, "converter options": shlex.join(flags)}, {"reproduce.py": script}, found.log,
    )  # fmt: skip


def pass_story(answer: str, pipeline: str, plugins: tuple[str, ...] = (), facts: Mapping[str, str] = {}) -> Story:
    """The story of a wrong pass: `graphkit optimize` undoes it and ends with 1. Plugin files are taken along."""
    files: dict[str, str | Path | Model] = {}
    flags: list[str] = []
    for plugin in plugins:
        path = Path(plugin)
        name = plugin
        if path.suffix == ".py":
            name = path.name if path.name not in files else f"{path.stem}_{len(files)}.py"
            files[name] = path
        flags += ["--plugin", name]
    command = (
        *("graphkit", "optimize", "model.onnx", "-o", "optimized.onnx", "--passes", pipeline),
        *("--inputs", "inputs.npz", *flags),
    )
    return Story(answer, command, 1, facts={"pipeline": pipeline, **facts}, files=files)


def file_story(answer: str, candidate: Path, facts: Mapping[str, str] = {}, *, runs: bool = True) -> Story:
    """The story of a given candidate, a .mnn or .onnx file, that computes something else than the model.

    runs: False for a file that MNN does not even run.
    """
    name = f"candidate{candidate.suffix.lower()}"
    command = ("graphkit", "verify", "model.onnx", name, "--inputs", "inputs.npz")
    weights = candidate.with_name(f"{candidate.name}.weight")
    files: dict[str, str | Path | Model] = {name: candidate}
    if weights.exists():
        files[f"{name}.weight"] = weights
    if candidate.suffix.lower() != ".mnn":
        model = Model.load(candidate)
        files[name] = model if model.store.files() else candidate
    return Story(answer, command, 1 if runs else 3, facts=facts, files=files)


def versions() -> dict[str, str]:
    """Versions of everything that may matter."""
    found = {"graphkit": __version__}
    for package in ("MNN", "onnx", "onnxruntime", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return {**found, "Python": platform.python_version(), "machine": f"{platform.system()} {platform.machine()}"}


def nodes_text(model: Model, feeds: Feeds) -> list[str]:
    """A line for each node: operator, name, what it reads and makes, its attributes."""
    from graphkit import shapes

    graph = Graph.of(model)
    shapes.infer(graph)
    lines = []
    for node in graph.nodes:
        if node.op == "Constant":
            continue
        reads = ", ".join(_value(graph, name, feeds) for name in node.inputs)
        makes = ", ".join(_value(graph, name, feeds) for name in node.outputs)
        attributes = " ".join(f"{key}={_short(value)}" for key, value in node.attrs.items())
        bodies = " ".join(f"{key}=(graph of {len(body)} nodes)" for key, body in node.subgraphs.items())
        told = " ".join(part for part in (attributes, bodies) if part)
        lines.append(f"{node.op} '{node.label}': {reads or 'nothing'} -> {makes}{f'  [{told}]' if told else ''}")
    return lines


def _value(graph: Graph, name: str, feeds: Feeds) -> str:
    if not name:
        return "-"
    if name in feeds:
        return f"{name} {feeds[name].dtype}{list(feeds[name].shape)}"
    type_ = graph.type(name)
    constant = " constant" if graph.is_constant(name) else ""
    return f"{name}{constant} {type_}" if type_ is not None else f"{name}{constant}"


def _short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
