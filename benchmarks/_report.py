"""What a run found, as tables for people (Markdown) and as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = (
    *("graphkit-mnn", "onnx", "onnxruntime", "MNN", "numpy", "protobuf", "onnxsim", "onnxslim"),
    *("onnxscript", "onnxoptimizer", "onnx-graphsurgeon", "onnx-ir"),
)


@dataclass(frozen=True)
class Table:
    """Rows of cells under a header; the first column is text, the others are set right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def markdown(self) -> str:
        """The table in Markdown, with its caption before it."""
        lines = [_row(self.header), "|:--" + "|--:" * (len(self.header) - 1) + "|", *map(_row, self.rows)]
        return (f"{self.caption}\n\n" if self.caption else "") + "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


@dataclass(frozen=True)
class Bar:
    """A bar the project set itself: what is claimed, what was measured, and whether it was met."""

    claim: str
    measured: str
    met: bool

    def markdown(self) -> str:
        """One list item."""
        return f"- **{'met' if self.met else 'MISSED'}**: {self.claim}. Measured: {self.measured}."


@dataclass(frozen=True)
class Section:
    """One part of the benchmark; `faults` are results that are wrong, which no speed makes up for."""

    name: str
    title: str
    text: str
    tables: Sequence[Table]
    bars: Sequence[Bar] = ()
    faults: Sequence[str] = ()
    data: dict[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        """The section in Markdown."""
        parts = [f"## {self.title}", self.text, *(table.markdown() for table in self.tables)]
        if self.bars:
            parts.append("\n".join(bar.markdown() for bar in self.bars))
        if self.faults:
            parts.append("\n".join(f"- **WRONG**: {fault}" for fault in self.faults))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        bars = [vars(bar) for bar in self.bars]
        return {"title": self.title, "bars": bars, "faults": list(self.faults), **self.data}


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, Python and package versions; nothing that names the machine."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": _memory_gb(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _memory_gb() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError, AttributeError):
        return 0


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def page(sections: Iterable[Section], facts: dict[str, Any], date: str, command: str) -> str:
    """The whole result in Markdown."""
    packages = ", ".join(f"{name} {number}" for name, number in facts["packages"].items())
    head = (
        f"# graphkit and its peers\n\n"
        f"{date}, `{command}`: one run, every tool on the same machine in turn.\n\n"
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gb']} GB; {facts['system']}; "
        f"Python {facts['python']}; {packages}.\n\n"
        "CPU s: user and system seconds of all threads around the call from file to file, in a child process "
        "that had imported and run the tool before; medians. "
        "How each tool is called: `benchmarks/_calls.py`."
    )
    return "\n\n".join([head, *(section.markdown() for section in sections)]) + "\n"


def median(values: Iterable[float]) -> float:
    """The median, NaN of nothing."""
    found = list(values)
    return statistics.median(found) if found else float("nan")


def seconds(value: float) -> str:
    """A time with two or three digits that mean something."""
    return "–" if value != value else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def times(value: float) -> str:
    """A ratio."""
    return "–" if value != value else f"{value:.1f}×" if value < 100 else f"{value:.0f}×"
