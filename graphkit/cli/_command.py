"""Commands and options with examples and sections in their help, and the options that all commands share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from graphkit.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


class Option(click.Option):
    """An option that stands under a heading of its own in the help."""

    def __init__(self, *args: Any, section: str = "Options", **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.section = section


class Command(click.Command):
    """A command whose help ends with examples, printed as they are."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.examples = tuple(examples)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options section by section."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(param, "section", "Options"), []).append(record)
        general = sections.pop("Options", [])
        for title, records in [*sections.items(), ("Options", general)]:
            with formatter.section(title):
                formatter.write_dl(records, col_max=34)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"  {line}\n")


def option(*names: str, section: str = "Options", **attrs: Any) -> Callable[[F], F]:
    """A click option under a heading."""
    return click.option(*names, cls=Option, section=section, **attrs)


def _set_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.obj.json = ctx.obj.json or value


def _set_verbosity(ctx: click.Context, param: click.Parameter, value: int) -> None:
    change = -value if param.name == "quiet" else value
    if change * ctx.obj.verbosity < 0:
        raise UsageError("-q and -v exclude each other")
    ctx.obj.verbosity += change


def output_flags(function: F) -> F:
    """Add `--json`, `-v` and `-q`, which set up the report."""
    shared: dict[str, Any] = {"expose_value": False, "is_eager": True}
    quiet = click.option("-q", "--quiet", count=True, callback=_set_verbosity, help="Print errors only.", **shared)
    verbose = click.option(
        "-v", "--verbose", count=True, callback=_set_verbosity, help="Print more; -vv logs steps and times.", **shared
    )
    json = click.option(
        "--json",
        is_flag=True,
        callback=_set_json,
        help="Print one JSON object; everything for people goes to stderr.",
        **shared,
    )
    return json(verbose(quiet(function)))
