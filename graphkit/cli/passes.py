"""`graphkit passes`."""

from __future__ import annotations

import click

from graphkit.cli._command import Command, option, output_flags
from graphkit.report.console import Report

EXAMPLES = (
    "graphkit passes",
    "graphkit passes fuse-gelu",
    "graphkit passes mnn",
    "graphkit passes my-pass --plugin mine.py",
)


@click.command("passes", cls=Command, examples=EXAMPLES)
@click.argument("name", required=False)
@option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="FILE.py|MODULE",
    help="Also list the passes of a file or module. May be repeated.",
)
@output_flags
@click.pass_obj
def command(report: Report, name: str | None, plugins: tuple[str, ...]) -> int:
    """List the passes and presets, or document one: options, what it rewrites, what it refuses."""
    with report.working("loading passes"):
        from graphkit.registry import Registry
        from graphkit.report import catalogue

        registry = Registry(plugins)
        data = catalogue.listing(registry) if name is None else catalogue.document(registry, name)
    if name is None:
        catalogue.show_listing(report, data)
    else:
        catalogue.show_document(report, data)
    report.emit({"command": "passes", "exit_code": 0, "ok": True, **data})
    return 0
