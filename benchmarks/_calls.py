"""What is measured: one function a tool, from model file to model file, as its own documentation calls it.

Every function takes the source, the target and options, loads, works and saves. They run in a child process
(`_child.py`) and import what they need when they are called, which the warm-up does before anything is timed.
Options: `shapes` maps every input to its size when all dims are to be fixed (for the tools of `FIXES_DIMS`;
the others get a file whose dims are fixed already), `pipeline` is ours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Options = Mapping[str, Any]
Result = Mapping[str, Any] | None
Tool = Callable[[Path, Path, Options], Result]


def graphkit(source: Path, target: Path, options: Options) -> Result:
    """Load, run a pipeline without the numeric check (peers have none either), save."""
    from graphkit.model import Model
    from graphkit.optimizer import optimize

    model = Model.load(source)
    result = optimize(model, options.get("pipeline", "default"), bind=options.get("shapes"), verify="none")
    result.model.save(target)
    return {"passes": {record.text: round(record.seconds, 3) for record in result.report.records}}


def onnxsim(source: Path, target: Path, options: Options) -> Result:
    """onnxsim.simplify with its defaults; without its own check, as by default."""
    import onnx
    import onnxsim

    model, _ = onnxsim.simplify(onnx.load(source), overwrite_input_shapes=options.get("shapes"))
    onnx.save(model, target)
    return None


def onnxslim(source: Path, target: Path, options: Options) -> Result:
    """onnxslim.slim with its defaults."""
    import onnx
    import onnxslim

    shapes = options.get("shapes")
    texts = [f"{name}:{','.join(map(str, dims))}" for name, dims in shapes.items()] if shapes else None
    onnx.save(onnxslim.slim(onnx.load(source), input_shapes=texts), target)
    return None


def onnxscript(source: Path, target: Path, options: Options) -> Result:
    """onnxscript.optimizer.optimize with its defaults."""
    import onnx
    from onnxscript import optimizer

    onnx.save(optimizer.optimize(onnx.load(source)), target)
    return None


def onnxoptimizer(source: Path, target: Path, options: Options) -> Result:
    """onnxoptimizer.optimize with its default passes."""
    import onnx
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source)), target)
    return None


def graphsurgeon(source: Path, target: Path, options: Options) -> Result:
    """onnx's shape inference, then onnx-graphsurgeon's import, fold_constants, cleanup, sort and export."""
    import onnx
    import onnx_graphsurgeon as gs

    model = onnx.shape_inference.infer_shapes(onnx.load(source), data_prop=True)
    graph = gs.import_onnx(model)
    graph.fold_constants().cleanup().toposort()
    onnx.save(gs.export_onnx(graph), target)
    return None


def onnxruntime(source: Path, target: Path, options: Options) -> Result:
    """onnxruntime's basic graph optimizations, those that keep to standard operators."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(target)
    settings.log_severity_level = 4
    ort.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    return None


def graphkit_copy(source: Path, target: Path, options: Options) -> Result:
    """Load and save with graphkit; weights stay where they were."""
    from graphkit.model import Model

    Model.load(source).save(target)
    return None


def onnx_copy(source: Path, target: Path, options: Options) -> Result:
    """Load and save with onnx; weights in one external file when `external`."""
    import onnx

    model = onnx.load(source)
    if options.get("external"):
        location = f"{target.name}.data"
        onnx.save(model, target, save_as_external_data=True, location=location, all_tensors_to_one_file=True)
    else:
        onnx.save(model, target)
    return None


def onnx_ir_copy(source: Path, target: Path, options: Options) -> Result:
    """Load and save with onnx_ir, whose external tensors are lazy."""
    import onnx_ir

    onnx_ir.save(onnx_ir.load(source), target, external_data=f"{target.name}.data" if options.get("external") else None)
    return None


def graphkit_int8(source: Path, target: Path, options: Options) -> Result:
    """Load, quantize to 8 bits with blocks of `block` (0: one scale a channel), save; without passes before."""
    from graphkit.quant.engine import quantize
    from graphkit.quant.options import QuantizeOptions

    quantize(source, QuantizeOptions(8, options.get("block", 0))).model.save(target)
    return None


def onnxruntime_int8(source: Path, target: Path, options: Options) -> Result:
    """onnxruntime's MatMulNBitsQuantizer with 8 bits, symmetric as ours; saved as its documentation does."""
    import logging

    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer as peer

    logging.disable(logging.ERROR)
    block = options.get("block", 0) or 128
    made = peer.MatMulNBitsQuantizer(onnx.load(source), bits=8, block_size=block, is_symmetric=True)
    made.process()
    made.model.save_model_to_file(str(target), use_external_data_format=False)
    return None


def digest(source: Path, target: Path, options: Options) -> Result:
    """A hash over names, types, shapes and bytes of all initializers of `source`, as onnx reads them."""
    import onnx

    total = hashlib.sha256()
    for tensor in sorted(onnx.load(source).graph.initializer, key=lambda tensor: tensor.name):
        total.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}\n".encode())
        total.update(tensor.raw_data or onnx.numpy_helper.to_array(tensor).tobytes())
    return {"digest": total.hexdigest()}


def judge(source: Path, target: Path, options: Options) -> Result:
    """Compare the model `target` with the original `source`; see `_judge.judge`."""
    from benchmarks import _judge

    return _judge.judge(source, target, options["samples"], options["tolerance"])


TOOLS: dict[str, Tool] = {
    "graphkit": graphkit,
    "onnxsim": onnxsim,
    "onnxslim": onnxslim,
    "onnxscript.optimizer": onnxscript,
    "onnxoptimizer": onnxoptimizer,
    "graphsurgeon": graphsurgeon,
    "onnxruntime basic": onnxruntime,
    "graphkit copy": graphkit_copy,
    "onnx copy": onnx_copy,
    "onnx_ir copy": onnx_ir_copy,
}
QUANTIZERS: dict[str, Tool] = {"graphkit int8": graphkit_int8, "onnxruntime int8": onnxruntime_int8}
CHECKS: dict[str, Tool] = {"digest": digest, "judge": judge}
PEERS = tuple(name for name in TOOLS if name != "graphkit" and not name.endswith("copy"))
FIXES_DIMS = ("graphkit", "onnxsim", "onnxslim")
