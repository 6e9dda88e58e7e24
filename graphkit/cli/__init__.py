"""The command line: arguments only. `graphkit --help` imports click and nothing heavier."""

from __future__ import annotations


def main() -> None:
    """Run the `graphkit` command and end the process with its exit code."""
    from graphkit.cli import _process

    _process.settle()
    from graphkit.cli._group import cli

    _process.run(cli)
