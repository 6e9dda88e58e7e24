"""Options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from graphkit.cli._command import F, option

PATH = click.Path(path_type=Path)


class Finite(click.FloatRange):
    """A number within a range; infinity and NaN are in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Raises click's BadParameter."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number", param, ctx)
        return number


def combined(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """Several decorators as one, the first on top."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


model_argument = click.argument("model", type=PATH)

bind_options = combined(
    option(
        "--bind",
        "binds",
        multiple=True,
        metavar="DIM=N",
        help="Fix a dim: batch=1, or x[0]=1 for an input's axis. May be repeated.",
    ),
    option(
        "--input-shape",
        "shapes",
        multiple=True,
        metavar="NAME:DIMS",
        help="Fix an input's shape: x:1,3,224,224. The name may go when there is one input.",
    ),
)

verify_options = combined(
    option(
        "--verify",
        type=click.Choice(["none", "end", "each"]),
        default="end",
        show_default=True,
        section="Verification",
        help="Compare outputs with the original: never, at the end, or after each pass.",
    ),
    option(
        "--on-mismatch",
        type=click.Choice(["rollback", "stop"]),
        default="rollback",
        show_default=True,
        section="Verification",
        help="What to do about a pass that breaks outputs: undo it, or undo it and stop.",
    ),
)

sample_options = combined(
    option(
        "--inputs",
        type=PATH,
        metavar="F.npz|DIR",
        section="Verification",
        help="Samples to compare on: an .npz, a folder of .npz, or a folder with one .npy for each input; "
        "random ones otherwise.",
    ),
    option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="N",
        default=0,
        show_default=True,
        section="Verification",
        help="Seed of random samples.",
    ),
)

tolerance_options = combined(
    option(
        "--rtol",
        type=Finite(min=0),
        metavar="X",
        section="Verification",
        help="Largest error over the reference's largest value.",
    ),
    option(
        "--atol",
        type=Finite(min=0),
        metavar="X",
        section="Verification",
        help="Absolute errors up to this are no fault.",
    ),
)

plugin_option = option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE.py|MODULE",
    section="Passes",
    help="Load passes from a file or module. May be repeated.",
)

run_options = combined(
    option(
        "--stop-after",
        type=click.IntRange(min=0),
        metavar="N",
        section="Passes",
        help="Do only the first N rewrites.",
    ),
    plugin_option,
    option(
        "--print-after",
        multiple=True,
        metavar="PASS",
        section="Passes",
        help="Print the graph after a pass, on stderr. May be repeated.",
    ),
)

report_option = option(
    "--report", "report_file", type=PATH, metavar="F.json", help="Also write what --json prints to a file."
)

timeout_option = option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds that one step of MNN, or a check, may take.",
)
