"""ONNX's own evaluator as a reference for small models that onnxruntime does not accept.

onnxruntime lacks kernels for some operators, types and attributes of the standard; without a reference a model with
one of them would be handed over unproven. The evaluator is numpy and slow, so it is only for small models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from graphkit.errors import GraphkitError, ModelError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.runtime import InputSpec, with_outputs

Array = npt.NDArray[Any]

MAX_BYTES = 4 << 20
MAX_NODES = 500


class Evaluator:
    """The evaluator with the interface of `runtime.Session`.

    Raises ModelError when it does not accept the model, or the model is too large for it.
    """

    def __init__(self, model: Model, *, outputs: Sequence[str] | None = None) -> None:
        if model.nbytes > MAX_BYTES or len(model.proto.graph.node) > MAX_NODES:
            raise ModelError("is too large for ONNX's own evaluator", file=model.path)
        self._model = model
        chosen = model if outputs is None else with_outputs(model, outputs)
        try:
            self._evaluator = ReferenceEvaluator(chosen.materialized())
        except Exception as error:  # it raises whatever its operators raise
            raise self._error(error) from error

    @property
    def input_specs(self) -> tuple[InputSpec, ...]:
        """The inputs that must be fed."""
        graph = Graph.of(self._model)
        names = [name for name in graph.inputs if name not in graph.initializers]
        return tuple(
            InputSpec(name, np.dtype(onnx.helper.tensor_dtype_to_np_dtype(graph.dtype(name))), graph.shape(name) or ())
            for name in names
        )

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run the model; raises GraphkitError with the evaluator's reason."""
        try:
            with np.errstate(all="ignore"):
                results = self._evaluator.run(None, dict(feeds))
        except Exception as error:  # as above
            raise self._error(error) from error
        if not all(isinstance(value, np.ndarray | np.generic) for value in results):
            raise GraphkitError("only tensors are supported as outputs", file=self._model.path)
        names = self._evaluator.output_names
        return {name: np.asarray(value) for name, value in zip(names, results, strict=True)}

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def _error(self, error: Exception) -> GraphkitError:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return ModelError(f"ONNX's own evaluator cannot run the model: {reason}", file=self._model.path)
