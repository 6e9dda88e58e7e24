"""Tables that Gather reads, as INT8 rows with one scale each: Gather → Cast → Mul (Gather of the scales).

MNN has no quantized Gather of its own and ignores the scales of a DequantizeLinear behind one; but a table of bytes
stays bytes in a .mnn file, and Cast and Mul of the gathered rows are exact. onnxruntime computes the same numbers.
"""

from __future__ import annotations

from onnx import TensorProto

from graphkit.errors import UsageError
from graphkit.graph import Node
from graphkit.quant._views import maker
from graphkit.quant.codes import Codes
from graphkit.quant.layers import Layer
from graphkit.quant.write import Writer
from graphkit.rewrite import Builder, apply

BITS = 8  # MNN stores a byte a number, whatever the code's width


def write_table(writer: Writer, layer: Layer, codes: Codes) -> None:
    """Put codes in the place of a table, for every Gather of the layer; other users of the table keep it.

    The rows are (code − zero) · scale in float32, then cast to the table's type: exactly `codes.values()[indices]`.
    Raises UsageError when rows are cut into blocks: there is one scale a row.
    """
    check_table(layer.name, codes.bits, codes.blocks)
    home = writer.home(layer)
    users = writer.users(layer)
    views = [maker(node.graph, node.inputs[0]) for node in users if node.inputs[0] != layer.weight]
    table = writer.constant(home, f"{layer.weight}_quantized", codes.codes, TensorProto.INT8, share=True)
    scales = writer.constant(home, f"{layer.weight}_scale", codes.scales, TensorProto.FLOAT)
    zeros = None
    if codes.zeros is not None:
        zeros = writer.constant(home, f"{layer.weight}_zero", codes.zeros, TensorProto.FLOAT)
    for node in users:
        _gather(node, layer, table, scales, zeros)
    writer.drop(home, layer.weight, views)


def check_table(name: str, bits: int, blocks: int) -> None:
    """Raise UsageError for settings that tables cannot have: other than 8 bits, or blocks."""
    if bits != BITS:
        raise UsageError(
            f"a table is stored with {BITS} bits, not {bits}: MNN keeps a byte a number",
            node=name,
            hint="use 8, or leave it float with --skip",
        )
    if blocks > 1:
        raise UsageError("a table has one scale a row and no blocks", node=name, hint="use block 0 for it")


def _gather(node: Node, layer: Layer, table: str, scales: str, zeros: str | None) -> None:
    """One Gather of float rows → Gather of codes, cast and scaled."""
    graph, indices = node.graph, node.inputs[1]
    build = Builder(graph, node)
    rows = build.op("Cast", build.op("Gather", table, indices, axis=0), to=TensorProto.FLOAT)
    if zeros is not None:
        rows = build.op("Sub", rows, build.op("Gather", zeros, indices, axis=0))
    rows = build.op("Mul", rows, build.op("Gather", scales, indices, axis=0))
    if layer.dtype != TensorProto.FLOAT:
        rows = build.op("Cast", rows, to=layer.dtype)
    apply(graph, build.rewrite({node.outputs[0]: rows}, "rows of codes"))
