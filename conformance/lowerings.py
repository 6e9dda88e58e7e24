"""`python -m conformance.lowerings`: write docs/lowering.md, the list of what `lower-for-mnn` does."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from graphkit.passes.lowering import FAMILIES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "lowering.md"

_HEAD = """# What `lower-for-mnn` rewrites

Made by `python -m conformance.lowerings` from the rules themselves: do not edit. {count} rules in {families} families;
each was measured against MNN 3.6.1 and has tests in ONNX and in MNN. Attention is a pass of its own:
[attention.md](attention.md). What MNN does with each operator as it is: [conformance.md](conformance.md); what is left
for a model of yours: `graphkit check` ([check.md](check.md)).
"""


def page() -> str:
    """The page."""
    count = sum(len(family.RULES) for family in FAMILIES)
    lines = [_HEAD.format(count=count, families=len(FAMILIES))]
    for family in FAMILIES:
        name = family.__name__.rsplit(".", 1)[-1]
        lines += [f"## {name}", "", _first(family.__doc__), ""]
        lines += ["| rule | operators | why and how |", "|:--|:--|:--|"]
        lines += [f"| {rule.name} | {_ops(rule.ops)} | {_first(rule.match.__doc__)} |" for rule in family.RULES]
        lines.append("")
    return "\n".join(lines)


def _first(text: str | None) -> str:
    """The first paragraph on one line, with bars that do not end a cell."""
    return " ".join((text or "").strip().split("\n\n")[0].split()).replace("|", "\\|")


def _ops(ops: tuple[str, ...]) -> str:
    return ", ".join(op.replace("com.microsoft::", "ms::") for op in sorted(ops, key=str.lower))


@click.command()
def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    click.echo(f"wrote {PAGE}")


if __name__ == "__main__":
    sys.exit(main())
