"""The command line: arguments only. `graphkit --help` imports click and nothing heavier."""

from __future__ import annotations


def main() -> None:
    """Run the `graphkit` command and end the process with its exit code."""
    import signal

    from graphkit.cli._group import cli

    signal.signal(signal.SIGTERM, _terminate)
    cli.main(prog_name="graphkit")


def _terminate(number: int, frame: object) -> None:
    """End through the interpreter, so that temporary files go and children are stopped."""
    raise SystemExit(128 + number)
