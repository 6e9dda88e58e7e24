"""`graphkit mnn`: look into .mnn files and change them."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from graphkit.cli import _shared
from graphkit.cli._command import Command, option, output_flags
from graphkit.cli._mnn_edit import edit_options, edited, graph_option
from graphkit.cli._subgroup import Group
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.mnn.document import Document
    from graphkit.mnn.document.edits import Edit

_ELSEWHERE: Mapping[str, tuple[str, str]] = {
    "to-json": ("graphkit.cli.mnn_json", "to_json"),
    "from-json": ("graphkit.cli.mnn_json", "from_json"),
}


class _MnnGroup(Group):
    """The group itself; two of its commands are in a module of their own, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, those for JSON first."""
        return [*_ELSEWHERE, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by name."""
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, name = _ELSEWHERE[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


command = _MnnGroup(
    name="mnn",
    help="Look into .mnn files and change them without loss. Every edited model is validated, loaded and, when its "
    "shapes allow, run by MNN before it is written.",
    examples=(
        "graphkit mnn get det.mnn inputs outputs",
        "graphkit mnn set det.mnn 'inputs[x].dims=[1,3,640,640]' -o det640.mnn",
        "graphkit mnn outputs add det.mnn relu_3 -o det2.mnn",
        "graphkit mnn to-json det.mnn -o det.json",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

_PATHS = (
    "PATH is fields with dots and elements in brackets, by name or index: ops[conv1].main.common.strideX, "
    "inputs[data].dims, outputs[0], subgraphs[body].ops[3].name."
)


@command.command(
    "get",
    cls=Command,
    examples=(
        "graphkit mnn get det.mnn inputs",
        "graphkit mnn get det.mnn 'inputs[x].dims' outputs",
        "graphkit mnn get det.mnn 'ops[conv1].main.common'",
    ),
    help=f"Print values of a .mnn file as JSON.\n\n{_PATHS} Long arrays inside of what is printed are told by type "
    "and length; name one to see its numbers.",
)
@_shared.model_argument
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@output_flags
@click.pass_obj
def get_command(report: Report, model: Path, paths: tuple[str, ...]) -> int:
    """Print values of a .mnn file."""
    with report.working(f"reading {model}"):
        from graphkit.mnn.document import read
        from graphkit.mnn.document.paths import get_plain
        from graphkit.report.edited import LONG, show_values

        doc = read(model)
        values = {path: get_plain(doc, path, longest=LONG) for path in paths}
    show_values(report, values)
    report.emit({"command": "mnn get", "model": str(model), "exit_code": 0, "ok": True, "values": values})
    return 0


@command.command(
    "set",
    cls=Command,
    examples=(
        "graphkit mnn set det.mnn 'inputs[x].dims=[1,3,640,640]' -o det640.mnn",
        "graphkit mnn set net.mnn 'ops[conv1].main.common.strideX=2' 'ops[relu].type=ReLU6' -o net2.mnn",
        "graphkit mnn set net.mnn 'ops[\"a[0]\"].name=first' bizCode=mine -o net2.mnn",
        "graphkit mnn set net.mnn mnn_uuid=null -o net2.mnn",
    ),
    help=f"Set values of a .mnn file.\n\n{_PATHS} VALUE is JSON; names and enums need no quotes; null takes a field "
    "away, which gives it MNN's default.",
)
@_shared.model_argument
@click.argument("assignments", nargs=-1, required=True, metavar="PATH=VALUE...")
@edit_options
def set_command(report: Report, model: Path, assignments: tuple[str, ...], **given: Any) -> int:
    """Set values of a .mnn file."""

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document.paths import set_text, split_assignment

        return [set_text(doc, *split_assignment(text)) for text in assignments]

    return edited(report, "set", model, change, given)


@command.command(
    "rename",
    cls=Command,
    examples=(
        "graphkit mnn rename net.mnn sigmoid_0 prob -o net2.mnn",
        "graphkit mnn rename net.mnn hidden state --graph body -o net2.mnn",
    ),
)
@_shared.model_argument
@click.argument("old")
@click.argument("new")
@option("--only", type=click.Choice(["op", "tensor"]), help="Rename one of the two when both have the name.")
@graph_option
@edit_options
def rename_command(
    report: Report, model: Path, old: str, new: str, only: str | None, graph: str | None, **given: Any
) -> int:
    """Rename the operator and the tensor that are named OLD, wherever the name is: outputs, descriptions of tensors,
    calls of subgraphs.

    In MNN an operator mostly has the name of the tensor it writes; both are renamed then.
    """

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document import edits

        if only is None:
            return edits.rename(doc, old, new, graph=graph)
        one = edits.rename_op if only == "op" else edits.rename_tensor
        return [one(doc, old, new, graph=graph)]

    return edited(report, "rename", model, change, given)


@command.group(
    "outputs",
    cls=Group,
    examples=(
        "graphkit mnn outputs add net.mnn relu_3 17 -o net2.mnn",
        "graphkit mnn outputs remove net.mnn aux -o net2.mnn",
        "graphkit mnn outputs set net.mnn boxes scores -o net2.mnn",
    ),
)
def outputs_group() -> None:
    """Add, remove or set the outputs of a .mnn file.

    TENSOR is the name of a tensor of the main graph, or its index.
    """


@outputs_group.command("add", cls=Command, examples=("graphkit mnn outputs add net.mnn relu_3 -o net2.mnn",))
@_shared.model_argument
@click.argument("tensors", nargs=-1, required=True, metavar="TENSOR...")
@edit_options
def add_command(report: Report, model: Path, tensors: tuple[str, ...], **given: Any) -> int:
    """Hand out further tensors, after the outputs that are there.

    A tensor that shares its name with another is given by index, and gets a name of its own.
    """

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document import edits

        return edits.add_outputs(doc, tensors)

    return edited(report, "outputs add", model, change, given)


@outputs_group.command("remove", cls=Command, examples=("graphkit mnn outputs remove net.mnn aux -o net2.mnn",))
@_shared.model_argument
@click.argument("outputs", nargs=-1, required=True, metavar="OUTPUT...")
@edit_options
def drop_command(report: Report, model: Path, outputs: tuple[str, ...], **given: Any) -> int:
    """Hand some outputs out no more; the operators stay. OUTPUT is a name, or a place among the outputs."""

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document import edits

        return edits.remove_outputs(doc, outputs)

    return edited(report, "outputs remove", model, change, given)


@outputs_group.command("set", cls=Command, examples=("graphkit mnn outputs set net.mnn boxes scores -o net2.mnn",))
@_shared.model_argument
@click.argument("tensors", nargs=-1, required=True, metavar="TENSOR...")
@edit_options
def order_command(report: Report, model: Path, tensors: tuple[str, ...], **given: Any) -> int:
    """Hand out these tensors and no others, in this order."""

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document import edits

        return [edits.set_outputs(doc, tensors)]

    return edited(report, "outputs set", model, change, given)


@command.command("remove", cls=Command, examples=("graphkit mnn remove net.mnn dropout_1 softmax -o net2.mnn",))
@_shared.model_argument
@click.argument("ops", nargs=-1, required=True, metavar="OP...")
@graph_option
@edit_options
def remove_command(report: Report, model: Path, ops: tuple[str, ...], graph: str | None, **given: Any) -> int:
    """Remove operators; what read their result reads their input instead.

    OP is a name or an index. It must have one input, or one that is no constant; a result that is an output keeps
    its name. Operators whose results nobody uses just go.
    """

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document import edits

        return [edits.remove_op(doc, op, graph=graph) for op in ops]

    return edited(report, "remove", model, change, given)


@command.command(
    "weights",
    cls=Command,
    examples=(
        "graphkit mnn weights net.mnn conv1 --npy w.npy --bias b.npy -o net2.mnn",
        "graphkit mnn weights net.mnn norm --array gamma=g.npy --array beta=b.npy -o net2.mnn",
    ),
)
@_shared.model_argument
@click.argument("op")
@option(
    "--npy", type=_shared.PATH, metavar="F.npy", help="The operator's main array: weight, gamma, values of a Const."
)
@option("--bias", type=_shared.PATH, metavar="F.npy", help="Its bias.")
@option("--array", "arrays", multiple=True, metavar="FIELD=F.npy", help="Any of its arrays by name. May be repeated.")
@option("--dequantize", is_flag=True, help="Let floats take the place of quantized weights.")
@graph_option
@edit_options
def weights_command(report: Report, model: Path, op: str, dequantize: bool, graph: str | None, **given: Any) -> int:
    """Replace weights of an operator by arrays of the same shape.

    OP is a name or an index. Convolutions take [out, in / group, kh, kw]; a flat array of the right length will do.
    Weights kept in the model's .weight file move into the model.
    """
    from graphkit.cli._mnn_arrays import array_files, read_arrays

    files = array_files(given["npy"], given["bias"], given["arrays"])

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document import edits

        arrays = read_arrays(doc, op, graph, files)
        return edits.set_weights(doc, op, arrays, graph=graph, dequantize=dequantize)

    return edited(report, "weights", model, change, given, *files.values())


@command.command("patch", cls=Command, examples=("graphkit mnn patch net.mnn changes.json -o net2.mnn",))
@_shared.model_argument
@click.argument("patch", type=_shared.PATH)
@edit_options
def patch_command(report: Report, model: Path, patch: Path, **given: Any) -> int:
    """Apply a JSON patch (RFC 6902): all of its operations, or none.

    Its pointers go through what `graphkit mnn to-json` writes: /net/oplists/3/main/common/strideX.
    """

    def change(doc: Document) -> list[Edit]:
        from graphkit.mnn.document.patch import apply_patch, read_patch

        return apply_patch(doc, read_patch(patch))

    return edited(report, "patch", model, change, given, patch)
