"""What is shown while passes run: the pass at work, and graphs that were asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from graphkit.errors import UsageError
from graphkit.report import text
from graphkit.report.console import Report, Step

if TYPE_CHECKING:
    from onnx import TensorProto

    from graphkit.graph import Graph
    from graphkit.manager import PassRecord, Stage


_ELEMENTS = 16  # of a tensor that is printed with its values
_ELIDED = "graphkit elided"  # the printer shows a place instead of values; it cannot leave both out


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
            self.report.aside(f"-- after {record.text} --")
            self.report.aside(graph_text(graph))


def graph_text(graph: Graph) -> str:
    """The graph in ONNX's text form; values of tensors with more than 16 elements are left out."""
    import onnx

    from graphkit.model import tensors

    proto = graph.to_model().proto  # a copy: what is taken out of it is missing nowhere else
    for tensor in tensors(proto):
        if math.prod(tensor.dims) > _ELEMENTS:
            _elide(tensor)
    shown = onnx.printer.to_text(proto).replace(f'["location": "{_ELIDED}"]', "{…}")
    lines = shown.splitlines()
    return "\n".join(text.clean(line) for line in lines)


def _elide(tensor: TensorProto) -> None:
    kept = type(tensor)(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    kept.data_location = kept.EXTERNAL
    kept.external_data.add(key="location", value=_ELIDED)
    tensor.CopyFrom(kept)


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
