"""The activation that a fused operator of onnxruntime carries as an attribute, as an operator of its own."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.passes._emit import Emit

# What onnxruntime's kernels assume for parameters that are not given (those of the ONNX operators).
_PARAMETERS: dict[str, tuple[tuple[str, float], ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "ThresholdedRelu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Selu": (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
}


def activate(build: Emit, y: str, activation: str, values: Sequence[float | None], dtype: int) -> str | None:
    """The activation of `y` with its parameters in order (None: the default); None for one that is unknown."""
    if not activation:
        return y
    if activation == "HardSwish":
        return _hard_swish(build, y)
    if activation == "Clip" and dtype:
        low, high = (*values, None, None)[:2]
        y = y if low is None else build.op("Max", y, build.number(low, dtype))
        return y if high is None else build.op("Min", y, build.number(high, dtype))
    if activation not in _PARAMETERS:
        return None
    given = (*values, None, None)
    attrs = {
        name: default if given[index] is None else given[index]
        for index, (name, default) in enumerate(_PARAMETERS[activation])
    }
    return build.op(activation, y, **attrs)


def _hard_swish(build: Emit, y: str) -> str:
    """x · max(0, min(1, x/6 + ½)); an operator of its own from opset 14 on."""
    if build.opset >= 14:
        return build.op("HardSwish", y)
    return build.op("Mul", y, build.op("HardSigmoid", y, alpha=1 / 6, beta=0.5))
