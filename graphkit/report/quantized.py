"""What quantization did: layers by kind, what stayed float and why, and how far the outputs moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from graphkit.report import text
from graphkit.report.console import Report, Step
from graphkit.report.table import Column, Grid

if TYPE_CHECKING:
    from graphkit.quant.layers import Excluded
    from graphkit.quant.report import LayerRecord
    from graphkit.quantizing import Quantized


def progress_line(step: Step) -> Callable[[int, int, str], None]:
    """A progress callback that shows layer, count, and the time that is left by what it took so far."""
    import time

    started: dict[int, float] = {}

    def progress(done: int, total: int, name: str) -> None:
        now = time.monotonic()
        first = started.setdefault(total, now)
        left = (now - first) / done * (total - done) if done else 0.0
        remaining = f"  {text.seconds(left)} left" if done and left >= 1 else ""
        step(f"{done}/{total}  {name}{remaining}")

    return progress


def show_quantized(report: Report, done: Quantized) -> None:
    """Print a finished quantization."""
    if done.note:
        report.say(f"calibration: {text.clean(done.note)}")
    report.table(_kinds(done))
    if report.verbose:
        report.table(_layers(done.result.records))
    _show_kept(report, done.result.kept)
    if done.result.note:
        report.say(f"search: {text.clean(done.result.note)}")
    report.say(accuracy_line(done))


def accuracy_line(done: Quantized) -> str:
    """One line: how far the outputs moved, and on what."""
    found = done.accuracy
    lowest = f" (min {found.lowest:.6f})" if found.samples > 1 else ""
    return (
        f"output cosine {found.cosine:.6f}{lowest}, relative L2 up to {found.error:.2g}"
        f" on {text.count(found.samples, found.source.removesuffix('s'))}"
    )


def _kinds(done: Quantized) -> Grid:
    grid = Grid(
        Column("kind"),
        Column("layers", right=True),
        Column("float", right=True),
        Column("quantized", right=True),
        Column("bits", spare=1),
        Column("mean error", right=True, spare=2),
    )
    for total in done.result.totals:
        members = [record for record in done.result.records if record.kind == total.kind]
        grid.add(
            total.kind, f"{total.layers:,}", text.size(total.float_bytes), text.size(total.nbytes),
            _bits(members), f"{total.mean_error:.2g}",
        )  # fmt: skip
    kept = done.result.kept
    if kept:
        size = text.size(sum(entry.bytes for entry in kept))
        grid.add("kept float, from 1 kB", f"{len(kept):,}", size, size, "", "")
    return grid


def _bits(records: Sequence[LayerRecord]) -> str:
    counts: dict[str, int] = {}
    for record in records:
        counts[str(record.setting)] = counts.get(str(record.setting), 0) + 1
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} × {setting}" for setting, count in sorted(counts.items()))


def _layers(records: Sequence[LayerRecord]) -> Grid:
    grid = Grid(
        Column("layer"),
        Column("kind", spare=4),
        Column("shape", spare=3),
        Column("setting"),
        Column("method", spare=5),
        Column("bytes", right=True),
        Column("weight error", right=True, spare=1),
        Column("output error", right=True, spare=2),
        Column("sensitivity", right=True, spare=6),
        Column("why", spare=7),
    )
    for record in records:
        grid.add(
            record.name, record.kind, "×".join(map(str, record.shape)), str(record.setting), record.method,
            f"{record.nbytes:,}", f"{record.weight_error:.2g}", _number(record.output_error),
            _number(record.sensitivity), record.why,
        )  # fmt: skip
    return grid


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def _show_kept(report: Report, kept: Sequence[Excluded]) -> None:
    """What stayed float: with -v each weight, else a line for each reason."""
    ordered = sorted(kept, key=lambda entry: -entry.bytes)
    groups: dict[str, list[Excluded]] = {}
    for entry in ordered:
        groups.setdefault(entry.name if report.verbose else entry.reason, []).append(entry)
    for members in groups.values():
        first, size = members[0], text.size(sum(entry.bytes for entry in members))
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        report.say(f"  float: {text.clean(first.name)}{more}  {size}  {text.clean(first.reason)}")
