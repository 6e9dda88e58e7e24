"""What is shown while passes run: the pass at work, and graphs that were asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.report import text
from graphkit.report.console import Report, Step

if TYPE_CHECKING:
    from graphkit.graph import Graph
    from graphkit.manager import PassRecord, Stage


class Watch:
    """Called after each pass: changes the progress text and prints the graph after the passes named."""

    def __init__(self, report: Report, step: Step, print_after: Sequence[str] = ()) -> None:
        self.report = report
        self.step = step
        self.print_after = frozenset(print_after)

    def __call__(self, record: PassRecord, graph: Graph) -> None:
        """Take note of what a pass did."""
        self.step(f"optimizing  {record.name} done, {text.count(record.nodes_after, 'node')}")
        if record.name in self.print_after:
            self.report.err.print(f"-- after {record.text} --", soft_wrap=True)
            self.report.err.print(graph_text(graph), soft_wrap=True)


def graph_text(graph: Graph) -> str:
    """The graph in ONNX's text form; values of large weights are left out."""
    import onnx

    lines = onnx.printer.to_text(graph.to_model().proto).splitlines()
    return "\n".join(text.clean(line) for line in lines)


def check_names(names: Iterable[str], stages: Iterable[Stage]) -> None:
    """Raise UsageError for a name that is not a pass of the pipeline."""
    known = list(dict.fromkeys(_names(stages)))
    for name in names:
        if name not in known:
            from graphkit.options import suggest

            problem = f"--print-after: '{name}' is not in the pipeline{suggest(name, known)}"
            raise UsageError(problem, hint=f"the pipeline is {', '.join(known)}")


def _names(stages: Iterable[Stage]) -> Iterator[str]:
    from graphkit.manager import FixpointStage

    for stage in stages:
        if isinstance(stage, FixpointStage):
            yield from _names(stage.stages)
        else:
            yield stage.pass_.name
