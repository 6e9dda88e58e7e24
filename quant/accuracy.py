"""How far a quantized model's outputs are from the float model's, on samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.model import Model
from graphkit.quant.metric import cosine_distance, relative_l2
from graphkit.runtime import Session

Sample = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Accuracy:
    """Outputs of a quantized model against those of the float model, in onnxruntime.

    samples: how many runs. cosine, lowest: mean and least of the runs' worst output; error: the largest relative L2.
    source: what the samples are, for people.
    """

    samples: int
    cosine: float
    lowest: float
    error: float
    source: str

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "samples": self.samples,
            "cosine": self.cosine,
            "lowest_cosine": self.lowest,
            "relative_l2": self.error,
            "source": self.source,
        }


def accuracy(model: Model, quantized: Model, samples: Sequence[Sample], source: str) -> Accuracy:
    """Run both models on all samples, which must be some; outputs that are not floats do not count.

    Raises ModelError when one of them does not run.
    """
    cosines, errors = [], []
    with Session(model) as before, Session(quantized) as after:
        for sample in samples:
            expected, actual = before.run(sample), after.run(sample)
            floats = [name for name, array in expected.items() if array.dtype.kind == "f" and array.size]
            cosines.append(1 - max((cosine_distance(expected[name], actual[name]) for name in floats), default=0.0))
            errors.append(max((relative_l2(expected[name], actual[name]) for name in floats), default=0.0))
    return Accuracy(len(samples), float(np.mean(cosines)), float(min(cosines)), float(max(errors)), source)
