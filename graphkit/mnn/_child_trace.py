"""The part of the child that traces a run; loaded by `_child.py`, imports nothing of graphkit.

A request has `model`, `inputs` (names, arrays `i0` … in `inputs-0.npz`), `targets` (operator, slot, numbers of files
in `references.json`, whether the first of them is the one, how near a value must be to be overwritten) and `force`.
The answer has one entry for each output that the callbacks showed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_BLOCK = 1 << 20
_WINOGRAD_MEMORY_LEVEL = 3  # Interpreter::HintMode of MNN 3.6
_FLOAT32_MAX = float(np.finfo(np.float32).max)


def trace(request: dict[str, Any]) -> dict[str, Any]:
    """Run once as it is, and once more with the reference put in the place of each value that has one."""
    import MNN

    plain = _Run(MNN, request, {}, force=False)
    reason = plain.run()
    if reason:
        return {"error": reason}
    if request["force"]:
        counts: dict[str, int] = {}
        for entry in plain.entries:
            counts[entry["op"]] = counts.get(entry["op"], 0) + (entry["slot"] == 0)
        forced = _Run(MNN, request, counts, force=True)
        reason = forced.run()
        if reason:
            return {"error": reason}
        return {"plain": plain.entries, "forced": forced.entries}
    return {"plain": plain.entries}


class _Run:
    """One run; `counts` tells how often each operator's name comes up, of which the last is its result."""

    def __init__(self, MNN: Any, request: dict[str, Any], counts: dict[str, int], force: bool) -> None:
        self.MNN, self.request, self.counts, self.force = MNN, request, counts, force
        self.targets = {(op, slot): (files, sure, near) for op, slot, files, sure, near in request["targets"]}
        self.entries: list[dict[str, Any]] = []
        self.seen: dict[str, int] = {}
        self.files = json.loads(Path("references.json").read_text(encoding="utf-8"))

    def run(self) -> str:
        """Why it failed, or nothing."""
        net = self.MNN.Interpreter(self.request["model"])
        if self.request.get("winograd") is not None:
            net.setSessionHint(_WINOGRAD_MEMORY_LEVEL, self.request["winograd"])
        config = {key: self.request[key] for key in ("numThread", "precision", "memory") if key in self.request}
        session = net.createSession(config)
        with np.load("inputs-0.npz", allow_pickle=False) as stored:
            feeds = {name: stored[f"i{k}"] for k, name in enumerate(self.request["inputs"])}
        tensors = net.getSessionInputAll(session)
        for name, array in feeds.items():
            if name not in tensors:
                return f"the session has no input '{name}'"
            net.resizeTensor(tensors[name], tuple(array.shape))
        net.resizeSession(session)
        for name, array in feeds.items():
            tensors[name].copyFrom(self._host(array.shape, array))
        code = net.runSessionWithCallBackInfo(session, lambda tensors, info: True, self._after)
        if code != 0:
            return f"a session cannot run this model (MNN's status {code})"
        return ""

    def _after(self, tensors: Any, info: Any) -> bool:
        name = info.getName()
        self.seen[name] = turn = self.seen.get(name, 0) + 1
        last = turn == self.counts.get(name, turn)
        for slot, tensor in enumerate(tensors):
            entry = {"op": name, "type": info.getType(), "slot": slot, "shape": list(tensor.getShape())}
            self.entries.append(entry)
            found = self.targets.get((name, slot))
            if found is not None and (last or not self.force):
                self._judge(entry, tensor, *found)
        return True

    def _judge(self, entry: dict[str, Any], tensor: Any, files: list[int], sure: bool, near: float) -> None:
        """Compare a value with its reference, the nearest one when there are several, and put that in its place."""
        shape = tuple(entry["shape"])
        size = int(np.prod(shape, dtype=np.int64))
        references = [(k, np.load(self.files[k], mmap_mode="r", allow_pickle=False)) for k in files]
        fitting = [(k, array) for k, array in references if array.size == size]
        if not fitting or size == 0:
            entry["note"] = "no elements" if size == 0 else "no reference of this size"
            return
        value = self._read(tensor, shape)
        if value is None:
            entry["note"] = "MNN gives no host copy of this value"
            return
        judged = [(measure(array.reshape(-1), like(array, value).reshape(-1)), k, array) for k, array in fitting]
        nearest = min(judged, key=lambda item: _badness(item[0]))
        best, number, array = judged[0] if sure else nearest
        entry.update(best, reference=number, nearest=nearest[1], errors={k: _size(stats) for stats, k, _ in judged})
        if self.force and near >= 0 and (sure or _size(best) <= near):
            self._write(tensor, shape, array, value.dtype)
            entry["forced"] = True

    def _read(self, tensor: Any, shape: tuple[int, ...]) -> Any:
        kind = self._kind(tensor.getDataType())
        host = self._host(shape, np.zeros(shape, kind))
        if not tensor.copyToHostTensor(host):
            return None
        return np.array(host.getNumpyData())

    def _write(self, tensor: Any, shape: tuple[int, ...], array: Any, kind: Any) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            tensor.copyFrom(self._host(shape, np.array(array).astype(kind).reshape(shape)))

    def _kind(self, halide: Any) -> Any:
        """Halide types are capsules without equality: their text holds the address that tells them apart."""
        text = str(halide).rsplit(" at ", 1)[-1]
        for name, kind in (("Float", np.float32), ("Int", np.int32), ("Uint8", np.uint8), ("Int64", np.int64)):
            if str(getattr(self.MNN, f"Halide_Type_{name}")).rsplit(" at ", 1)[-1] == text:
                return kind
        return np.float32

    def _host(self, shape: Any, array: Any) -> Any:
        names = {"float32": "Float", "int32": "Int", "uint8": "Uint8", "int64": "Int64"}
        halide = getattr(self.MNN, f"Halide_Type_{names[array.dtype.name]}")
        made = np.ascontiguousarray(array)
        return self.MNN.Tensor(tuple(shape), halide, made, self.MNN.Tensor_DimensionType_Caffe)


def like(reference: Any, value: Any) -> Any:
    """A value as it counts beside its reference: MNN has no booleans, whatever is not zero is true."""
    return value != 0 if reference.dtype == np.bool_ else value


def _size(stats: dict[str, Any]) -> float:
    """The error as one number, infinite where NaN or infinity stand in other places."""
    return float("inf") if stats["nan_mismatch"] + stats["inf_mismatch"] else stats["error"]


def _badness(stats: dict[str, Any]) -> tuple[int, float]:
    return (stats["nan_mismatch"] + stats["inf_mismatch"], stats["error"])


def measure(expected: Any, actual: Any) -> dict[str, Any]:
    """Errors as graphkit._measure has them, over positions where both are finite, block by block."""
    total: dict[str, Any] = {
        "max_abs": 0.0,
        "max_ref": 0.0,
        "nan_mismatch": 0,
        "inf_mismatch": 0,
        "differing": 0,
        "worst": None,
    }
    for start in range(0, expected.size, _BLOCK):
        want, got = (_bounded(array[start : start + _BLOCK]) for array in (expected, actual))
        finite = np.isfinite(want) & np.isfinite(got)
        if not finite.all():
            nan = np.isnan(want) != np.isnan(got)
            total["nan_mismatch"] += int(nan.sum())
            total["inf_mismatch"] += int(((np.isinf(want) | np.isinf(got)) & (want != got) & ~nan).sum())
            want, got = np.where(finite, want, 0.0), np.where(finite, got, 0.0)
        error = np.abs(got - want)
        at = int(error.argmax())
        if total["worst"] is None or error[at] > total["max_abs"]:
            total["worst"], total["max_abs"] = start + at, float(error[at])
        total["max_ref"] = max(total["max_ref"], float(np.abs(want).max()))
        total["differing"] += int(np.count_nonzero(error))
    total["error"] = total["max_abs"] / max(total["max_ref"], 1e-30) if total["max_abs"] else 0.0
    return total


def _bounded(array: Any) -> Any:
    """As float64, the borders of float32 as infinities: they stand for them in masks."""
    values = np.asarray(array).astype(np.float64)
    large = np.abs(values) >= _FLOAT32_MAX
    return np.where(large, np.copysign(np.inf, values), values) if large.any() else values
