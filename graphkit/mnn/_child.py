"""What runs inside the child process; started as a script, imports nothing of graphkit.

Usage: `python -I _child.py request.json` in a private working directory. The request names a task and
its arguments; the answer is `result.json` (`error` when the task failed for a known reason) and, for
runs, `outputs-K.npz` for each sample K in `inputs-K.npz`, with the arrays named `o0`, `o1`, … in the order
of the request, written as soon as the sample is done: a crash tells by their number which sample it was.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

_IONBF = 2  # stdio.h
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_WINOGRAD_MEMORY_LEVEL = 3  # Interpreter::HintMode of MNN 3.6


def main() -> None:
    """Do the task of the request file, write the result file, leave without cleaning up."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    _settle(request["path"])
    result = TASKS[request["task"]](request)
    Path("result.json").write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)
    # MNN's destructors may crash after the work is done; that must not look like a failed run.
    os._exit(0)


def _settle(path: list[str]) -> None:
    """Take over the parent's import path, log line by line, write no core files, take no more memory than there is,
    die with the parent."""
    sys.path += [entry for entry in path if entry not in sys.path]
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "__stdoutp" if sys.platform == "darwin" else "stdout")
    # Unbuffered, or what MNN printed before a crash is lost.
    libc.setvbuf(stdout, None, _IONBF, 0)
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # A size that MNN misreads can ask for more memory than there is; better the child fails than the machine.
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        if hard == resource.RLIM_INFINITY or hard > memory:
            resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _convert(request: dict[str, Any]) -> dict[str, Any]:
    import _tools  # the converter itself, without the MNN.tools wrappers around it

    _tools.mnnconvert(request["argv"])
    return {}


def _load(request: dict[str, Any]) -> Any:
    """Load the model; raises SystemError when MNN refuses it."""
    import MNN.nn as nn

    config = {
        "backend": 0,
        "numThread": request.get("threads", 1),
        "precision": request.get("precision", 1),
        "memory": request.get("memory", 0),
    }
    runtime = nn.create_runtime_manager((config,))
    if request.get("winograd") is not None:
        runtime.set_hint(_WINOGRAD_MEMORY_LEVEL, request["winograd"])
    return nn.load_module_from_file(request["model"], request["inputs"], request["outputs"], runtime_manager=runtime)


def _info(request: dict[str, Any]) -> dict[str, Any]:
    try:
        module = _load(request)
    except SystemError:
        return {"error": "MNN cannot load the model"}
    info = module.get_info()
    inputs = [{"shape": list(v.shape), "dtype": _tail(v.dtype), "format": _tail(v.data_format)} for v in info["inputs"]]
    return {"inputs": inputs, "version": info.get("version", "")}


def _run(request: dict[str, Any]) -> dict[str, Any]:
    seconds: list[float] = []
    for number in range(request["samples"]):
        # Loaded anew: a sample must not depend on what the one before left in MNN's buffers.
        try:
            module = _load(request)
        except SystemError:
            return {"error": "MNN cannot load the model", "seconds": seconds}
        reason = _run_one(module, number, request["outputs"], seconds)
        if reason:
            return {"error": reason, "seconds": seconds}
    return {"seconds": seconds}


def _run_one(module: Any, number: int, wanted: list[str], seconds: list[float]) -> str:
    """Run one sample and store its outputs; returns why that failed, or nothing."""
    import MNN.expr as F
    import numpy as np

    declared = module.get_info()["inputs"]
    with np.load(f"inputs-{number}.npz", allow_pickle=False) as stored:
        feeds = [_feed(F, stored[f"i{k}"], var) for k, var in enumerate(declared)]
    start = time.perf_counter()
    results = module.forward(feeds)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    if not results:
        return "MNN computed nothing: forward() returned an empty list, as it does after a shape error"
    if len(results) != len(wanted):
        return f"MNN returned {len(results)} outputs where {len(wanted)} were asked for"
    arrays = {}
    for k, (name, var) in enumerate(zip(wanted, results, strict=True)):
        array = _read(F, var)
        if array is None:
            return f"MNN computed output '{name}' but its value cannot be read"
        arrays[f"o{k}"] = array
    seconds.append(time.perf_counter() - start)
    np.savez("part.npz", **arrays)
    Path("part.npz").replace(f"outputs-{number}.npz")
    return ""


def _time(request: dict[str, Any]) -> dict[str, Any]:
    """Wall seconds of each of `repeat` runs on one sample, after `warmup` runs that do not count."""
    import MNN.expr as F
    import numpy as np

    module = _load(request)
    declared = module.get_info()["inputs"]
    with np.load("inputs-0.npz", allow_pickle=False) as stored:
        feeds = [_feed(F, stored[f"i{k}"], var) for k, var in enumerate(declared)]
    seconds = []
    for _ in range(request["warmup"] + request["repeat"]):
        start = time.perf_counter()
        for var in module.forward(feeds):
            _read(F, var)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[request["warmup"] :]}


def _feed(F: Any, array: Any, declared: Any) -> Any:
    """Wrap one array (float32, int32 or uint8, made so by the parent) as MNN's variable."""
    dtype = {"float32": F.float, "int32": F.int, "uint8": F.uint8}[array.dtype.name]
    layout = F.NHWC if declared.data_format == F.NHWC else F.NCHW
    var = F.const(array, list(array.shape), layout, dtype)
    return F.convert(var, F.NC4HW4) if declared.data_format == F.NC4HW4 else var


def _read(F: Any, var: Any) -> Any:
    """Return the value as an array, None when MNN cannot give it."""
    import numpy as np

    if var.data_format == F.NC4HW4:
        var = F.convert(var, F.NCHW)
    try:
        return np.array(var.read()).reshape(var.shape)
    except SystemError:
        # A result without elements cannot be read; its shape is still right.
        if 0 not in var.shape:
            return None
        names = {"int": "int32", "int32": "int32", "uint8": "uint8", "int8": "int8"}
        return np.zeros(var.shape, names.get(_tail(var.dtype), "float32"))


def _tail(value: Any) -> str:
    """Return 'float' for MNN's `dtype.float`."""
    return str(value).rsplit(".", 1)[-1]


def _trace(request: dict[str, Any]) -> dict[str, Any]:
    """Run with a look at every value; kept in a file of its own, which lies beside this one."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("_child_trace", Path(__file__).with_name("_child_trace.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    result: dict[str, Any] = module.trace(request)
    return result


TASKS = {"convert": _convert, "info": _info, "run": _run, "time": _time, "trace": _trace}

if __name__ == "__main__":
    main()
