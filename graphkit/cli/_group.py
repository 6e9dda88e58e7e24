"""The command group: commands are imported when they are called, their short help stands in a table."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from graphkit.cli._guard import guard
from graphkit.errors import UsageError
from graphkit.report.console import Report
from graphkit.version import __version__

COMMANDS: Mapping[str, str] = {
    "optimize": "Run passes over an ONNX model and prove that its outputs stay equal.",
    "convert": "Convert a model to MNN and prove that MNN computes the same.",
    "quantize": "Store weights with 2 to 8 bits, as ONNX or as a .mnn file.",
    "check": "Say what MNN would refuse or get wrong, and which pass fixes it.",
    "verify": "Compare two models, .onnx or .mnn, on the same inputs.",
    "bisect": "Name the layer MNN gets wrong, or the pass that breaks a model.",
    "inspect": "Show what is in a model: inputs, outputs, operators, bytes.",
    "mnn": "Look into .mnn files and change them without loss; JSON and back.",
    "diff": "Say how two models differ, .onnx or .mnn: operators, fields, weights.",
    "passes": "List the passes and presets, or document one.",
    "completion": "Print the completion script of a shell.",
}


class LazyGroup(click.Group):
    """A group whose command NAME is the `command` of the module `graphkit.cli.NAME`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"graphkit.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Look the command up. Raises UsageError with a suggestion."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            near = get_close_matches(name, COMMANDS, 1)
            raise UsageError(
                f"no such command '{name}'" + (f"; did you mean '{near[0]}'?" if near else ""),
                hint=None if near else f"the commands are {', '.join(COMMANDS)}",
            )
        if isinstance(ctx.obj, Report) and name in COMMANDS:
            ctx.obj.command = name
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the group's own options; `obj` is the report of this run."""
        report = Report(json="--json" in args)
        with guard(report):
            if not args and not extra.get("resilient_parsing"):
                with click.Context(self, info_name=info_name, **self.context_settings) as ctx:
                    click.echo(self.get_help(ctx), err=True)
                raise click.exceptions.Exit(2)
            return super().make_context(info_name, args, parent, **{"obj": report, **extra})

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and end with what it returns as exit code."""
        with guard(ctx.obj):
            code = super().invoke(ctx)
            raise click.exceptions.Exit(code or 0)


cli = LazyGroup(
    name="graphkit",
    help="Take ONNX models to MNN, and prove the result.",
    epilog="Exit codes: 0 done and right, 1 a check failed, 2 bad usage or input, 3 MNN refused the model or "
    "computes it wrong, 4 a bug of graphkit (a folder to reproduce it is named), 128 + N ended by signal N.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
cli = click.version_option(__version__, prog_name="graphkit", message="%(prog)s %(version)s")(cli)
