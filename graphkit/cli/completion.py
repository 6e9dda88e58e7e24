"""`graphkit completion`."""

from __future__ import annotations

from typing import Literal

import click

from graphkit.cli._command import Command

EXAMPLES = (
    'eval "$(graphkit completion bash)"      # in ~/.bashrc',
    'eval "$(graphkit completion zsh)"       # in ~/.zshrc',
    "graphkit completion fish | source       # in ~/.config/fish/config.fish",
)


@click.command("completion", cls=Command, examples=EXAMPLES)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: Literal["bash", "zsh", "fish"]) -> int:
    """Print the script that completes commands and options in a shell."""
    from click.shell_completion import get_completion_class

    root = ctx.find_root().command
    click.echo(get_completion_class(shell)(root, {}, "graphkit", "_GRAPHKIT_COMPLETE").source())
    return 0
