"""Where onnxruntime departs from the standard, ONNX's own evaluator is the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from graphkit._departures import departure
from graphkit.mnn import worker
from graphkit.mnn.road import convert
from graphkit.proof import Evidence
from graphkit.testing import graph_of, parse

SIZED = """g (float[1,1,2,2] x, int64[1,1,2,2] i) => (float[1,1,5,5] y) <int64[4] s = {1,1,5,5}> {
    y = MaxUnpool<kernel_shape = [2,2], strides = [2,2]>(x, i, s)
}"""
FEEDS = {
    "x": np.array([[[[5, 6], [7, 8]]]], np.float32),
    "i": np.array([[[[5, 7], [13, 15]]]], np.int64),
}


def test_only_the_known_forms_are_doubted() -> None:
    assert "MaxUnpool with output_shape" in departure(graph_of(SIZED, opset=22))
    assert departure(graph_of(SIZED.replace(", s)", ")").replace("5,5] y", "4,4] y"), opset=22)) == ""


def test_the_reference_is_the_standard() -> None:
    evidence = Evidence.gather(parse(SIZED, opset=22), inputs=[FEEDS])
    assert "ONNX's own evaluator" in evidence.note
    y = evidence.samples[0].expected["y"]
    assert np.argwhere(y[0, 0]).tolist() == [[1, 1], [1, 3], [3, 1], [3, 3]]


def test_mnn_follows_it(tmp_path: Path) -> None:
    result = convert(parse(SIZED, opset=22), tmp_path / "m.mnn")
    assert result.proof.kind == "equal"
    got = worker.run(tmp_path / "m.mnn", FEEDS).outputs["y"].reshape(5, 5)
    assert np.argwhere(got).tolist() == [[1, 1], [1, 3], [3, 1], [3, 3]]
