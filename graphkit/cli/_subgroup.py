"""A command that is a group of commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from graphkit.errors import UsageError
from graphkit.report.console import Report


class Group(click.Group):
    """A group of subcommands that suggests names, and prints its help, with examples, when none is given."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attrs: Any) -> None:
        super().__init__(*args, **attrs)
        self.examples = tuple(examples)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands with whole sentences."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, found.get_short_help_str(limit=200)) for name, found in commands if found])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        with formatter.section("Examples"):
            for line in self.examples:
                formatter.write(f"  {line}\n")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's own options."""
        if not args and not ctx.resilient_parsing:
            click.echo(self.get_help(ctx), err=True)
            raise click.exceptions.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Look the subcommand up. Raises UsageError with a suggestion."""
        name, known = args[0], self.list_commands(ctx)
        path = ctx.command_path.removeprefix("graphkit ")
        if name not in known and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name, known, 1)
            raise UsageError(
                f"no such command '{path} {name}'" + (f"; did you mean '{path} {near[0]}'?" if near else ""),
                hint=None if near else f"the commands of {path} are {', '.join(known)}",
            )
        if isinstance(ctx.obj, Report) and name in known:
            ctx.obj.command = f"{path} {name}"
        return super().resolve_command(ctx, args)
