"""What other tools get wrong, each as a test of ours (found in the versions named in benchmarks/_calls.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from fixtures import exports
from graphkit.cli._group import cli
from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.mnn.options import ConverterOptions
from graphkit.optimizer import optimize
from graphkit.testing import assert_equal_outputs, parse, run

Find = Callable[[str], Path]


def test_folding_heeds_start_and_end_of_shape() -> None:
    """Peers fold Shape(0:1) of [2,3,4] → Concat(-1) → Reshape to [2,3,4,-1]."""
    model = parse(
        """
        g (float[2,3,4] x) => (float[2,12] y)
        {
            s = Shape<start=0, end=1>(x)
            rest = Constant<value_ints=[-1]>()
            shape = Concat<axis=0>(s, rest)
            y = Reshape(x, shape)
        }
        """
    )
    result = optimize(model)
    assert result.proof.kind == "equal"
    assert [node.op for node in Graph.of(result.model).nodes] == ["Reshape"]
    assert_equal_outputs(model, result.model)


def test_empty_integers_stay_int64() -> None:
    """A peer makes an empty value_ints a double."""
    model = parse("g () => (int64[0] y) { e = Constant<value_ints=[1]>() y = Identity(e) }")
    del model.proto.graph.node[0].attribute[0].ints[:]
    result = optimize(model)
    (out,) = run(result.model, {}).values()
    assert out.dtype == np.int64
    assert out.shape == (0,)


def test_a_dynamic_dim_stays_dynamic() -> None:
    """A peer turns a dynamic sequence into 128 and exits 0."""
    model = parse(
        """
        g (int64[batch, seq] ids) => (float[batch, seq] y)
        {
            shape = Shape(ids)
            one = Constant<value_float=1.0>()
            mask = Expand(one, shape)
            f = Cast<to=1>(ids)
            y = Mul(f, mask)
        }
        """
    )
    result = optimize(model)
    graph = Graph.of(result.model)
    assert graph.shape("ids") == ("batch", "seq")
    assert_equal_outputs(model, result.model)


def test_a_wrong_declared_shape_is_not_believed() -> None:
    """A peer changes the output by folding with a shape that the file declares wrongly."""
    model = parse(
        """
        g (float[N, 4] x) => (float[N, 4] y)
        {
            a = Relu(x)
            s = Shape(a)
            y = Reshape(a, s)
        }
        """
    )
    wrong = onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [7, 4])
    model.proto.graph.value_info.append(wrong)
    assert_equal_outputs(model, optimize(model).model)


def test_a_wrong_declared_output_is_corrected_and_said() -> None:
    model = parse("g (float[2, 4] x) => (float[5, 4] y) { y = Relu(x) }")
    result = optimize(model, "infer-shapes")
    (output,) = result.model.proto.graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == [2, 4]
    assert any("declared" in note for record in result.report.records for note in record.notes)


def test_an_unknown_pass_is_an_error(tmp_path: Path) -> None:
    """A peer accepts any pass name and exits 0."""
    path = tmp_path / "m.onnx"
    parse("g (float[N] x) => (float[N] y) { y = Relu(x) }").save(path)
    result = CliRunner().invoke(cli, ["optimize", str(path), "--passes", "no-such-pass"])
    assert result.exit_code == 2
    assert not (tmp_path / "m.opt.onnx").exists()


@pytest.mark.parametrize("preset", ["default", "mnn", "onnxruntime"])
@pytest.mark.parametrize("kind", exports.PEER_KINDS)
def test_results_are_valid_standard_onnx(kind: str, preset: str, export_path: Find) -> None:
    """Peers emit operators that onnx.checker or MNN refuse, and one an invalid graph."""
    result = optimize(export_path(kind), preset)
    onnx.checker.check_model(result.model.materialized(), full_check=True)
    domains = {node.domain for node in result.model.proto.graph.node}
    assert domains <= {"", "ai.onnx"}


def test_an_unknown_converter_flag_is_an_error() -> None:
    """MNNConvert swallows `--weightQuantBit 4` and leaves the model unquantized."""
    with pytest.raises(UsageError) as caught:
        ConverterOptions.of(weightQuantBit=4)
    assert "weightQuantBits" in f"{caught.value} {caught.value.hint}"


def test_a_converter_value_out_of_range_is_an_error() -> None:
    """MNNConvert accepts `--weightQuantBits 9`."""
    with pytest.raises(UsageError, match="out of range"):
        ConverterOptions.of(weightQuantBits=9)
