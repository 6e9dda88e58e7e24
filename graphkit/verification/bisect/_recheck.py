"""Does the model as shipped agree? It runs once more with the reference in place of the faulty values alone."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit._scratch import scratch
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.mnn import tracing, worker
from graphkit.mnn.document import read, write
from graphkit.mnn.fileinfo import read_file_info
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.verification.bisect import references
from graphkit.verification.bisect.alignment import align

Array = npt.NDArray[Any]


def complete(
    graph: Graph, model: Model, candidate: Path, feeds: Feeds, tensors: Collection[str], tolerance: Tolerance, *,
    timeout: float, wanted: Collection[str] = (),
) -> tuple[bool, str] | None:  # fmt: skip
    """Whether the outputs are right once these values are, and a line that says so.

    None when that cannot be told: no session runs the model, it computes one of the values before it runs (constants),
    no output is aligned, all are among the values, or MNN does not show one of the `wanted` outputs.
    """
    info = read_file_info(candidate)
    outputs = [name for name in graph.outputs if name not in tensors]
    plan = [item.target for item in align(graph, info.ops, info.outputs) if {*item.tensors[:1]} & {*tensors, *outputs}]
    try:
        with references.gather(model, feeds, [*tensors, *outputs], graph=graph) as known:
            traces = tracing.trace(candidate, feeds, known, plan, timeout=timeout)
    except GraphkitError:
        return None
    seen = [trace for trace in traces if trace.tensor in outputs]
    if set(wanted) - {*tensors, *(trace.tensor for trace in seen)}:
        return None
    if not seen or set(tensors) - {trace.tensor for trace in traces if trace.forced}:
        return None
    error = float(max(np.inf if trace.mismatched else trace.error for trace in seen))
    values = f"{len(tensors)} value{'s' if len(tensors) != 1 else ''}"
    if error <= tolerance.rtol:
        return True, f"with the reference in place of {values} the model as shipped is right ({error:.1e})"
    return False, f"with the reference in place of {values} the model as shipped is still off by {error:.1e}"


def held(candidate: Path, op: str, slot: int, feeds: Feeds, *, timeout: float) -> Array | None:
    """What an operator of the main graph computes in the file as shipped, nothing put right; None if MNN cannot say.

    A copy of the file hands the value out: no conversion comes between, so that nothing is fused otherwise.
    """
    document = read(candidate)
    ops = read_file_info(candidate).ops
    names = [other.outputs[slot] for other in ops if other.name == op and len(other.outputs) > slot]
    if not names:
        return None
    with scratch("held") as folder:
        copy = Path(folder) / "model.mnn"
        try:
            if names[-1] not in document.net.texts("outputName"):
                document.net.fields["outputName"] = [*document.net.texts("outputName"), names[-1]]
            write(document, copy)
            return worker.run(copy, feeds, winograd=0, timeout=timeout).outputs[names[-1]]
        except GraphkitError:
            return None
