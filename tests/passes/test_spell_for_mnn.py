"""spell-for-mnn: each form and each thing it leaves alone; MNN's operator counts are what it is for."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkit.mnn.road import convert
from graphkit.passes.spell_for_mnn import SpellForMnn
from graphkit.testing import assert_rewrites, assert_unchanged, parse
from tests.in_mnn import assert_right_in_mnn

HEAD = "g (float[N, S, 8] x) =>"


def test_one_dim_of_a_shape_is_asked_for_directly() -> None:
    assert_rewrites(
        SpellForMnn(),
        f"{HEAD} (int64[1] y) {{ s = Shape(x) i = Constant<value_ints=[1]>() y = Gather(s, i) }}",
        f"{HEAD} (int64[1] y) {{ y = Shape<start=1, end=2>(x) }}",
    )


def test_a_scalar_dim_is_squeezed() -> None:
    assert_rewrites(
        SpellForMnn(),
        f"{HEAD} (int64 y) {{ s = Shape(x) i = Constant<value_int=-1>() y = Gather(s, i) }}",
        f"{HEAD} (int64 y) {{ s = Shape<start=2, end=3>(x) a = Constant<value_ints=[0]>() y = Squeeze(s, a) }}",
    )


def test_dims_of_a_part_of_a_shape_count_from_its_start() -> None:
    assert_rewrites(
        SpellForMnn(),
        f"{HEAD} (int64[2] y) {{ s = Shape<start=1>(x) i = Constant<value_ints=[0, 1]>() y = Gather(s, i) }}",
        f"{HEAD} (int64[2] y) {{ y = Shape<start=1, end=3>(x) }}",
    )


def test_shape_before_opset_15_has_no_start() -> None:
    text = f"{HEAD} (int64[1] y) {{ s = Shape(x) i = Constant<value_ints=[1]>() y = Gather(s, i) }}"
    result = assert_rewrites(
        SpellForMnn(),
        text,
        f"""{HEAD} (int64[1] y) {{
            s = Shape(x) a = Constant<value_ints=[1]>() b = Constant<value_ints=[2]>()
            c = Constant<value_ints=[0]>() y = Slice(s, a, b, c) }}""",
        opset=13,
    )
    assert result.counters == {"gather-to-slice": 1}


def test_the_first_token_is_sliced() -> None:
    assert_rewrites(
        SpellForMnn(),
        f"{HEAD} (float[N, 8] y) {{ i = Constant<value_int=0>() y = Gather<axis=1>(x, i) }}",
        f"""{HEAD} (float[N, 8] y) {{
            a = Constant<value_ints=[0]>() b = Constant<value_ints=[1]>() c = Constant<value_ints=[1]>()
            s = Slice(x, a, b, c) y = Squeeze(s, c) }}""",
    )


def test_the_last_token_is_sliced_to_the_end() -> None:
    assert_rewrites(
        SpellForMnn(),
        f"{HEAD} (float[N, 1, 8] y) {{ i = Constant<value_ints=[-1]>() y = Gather<axis=-2>(x, i) }}",
        f"""{HEAD} (float[N, 1, 8] y) {{
            a = Constant<value_ints=[-1]>() b = Constant<value_ints=[2147483647]>()
            c = Constant<value_ints=[1]>() y = Slice(x, a, b, c) }}""",
    )


@pytest.mark.parametrize("indices", ["[0, 2]", "[1, 0]", "[-1, 0]"])
def test_indices_that_do_not_run_on_stay(indices: str) -> None:
    text = f"{HEAD} (float[N, 2, 8] y) {{ i = Constant<value_ints={indices}>() y = Gather<axis=1>(x, i) }}"
    assert_unchanged(SpellForMnn(), text)


def test_computed_indices_and_tables_stay() -> None:
    text = (
        f"{HEAD} (float y) {{ t = Constant<value_floats=[1.0, 2.0]>() i = Constant<value_int=0>() y = Gather(t, i) }}"
    )
    assert_unchanged(SpellForMnn(), text)
    text = "g (float[N, S, 8] x, int64[1] i) => (float[N, 1, 8] y) { y = Gather<axis=1>(x, i) }"
    assert_unchanged(SpellForMnn(), text)


POOL = """
g (float[N, 3, H, W] x) => (float[N, 3, 1, 1] y)
{
    w = ConstantOfShape<value = float[1] {0.1}>(ws)
    c = Conv(x, w)
    y = POOL
}
"""


def pool(form: str) -> str:
    body = POOL.replace("POOL", form).replace("w = ", "ws = Constant<value_ints=[3, 3, 1, 1]>() w = ")
    return body.replace("c = Conv", "a = Constant<value_ints=[-1, 2]>() c = Conv")


def test_a_spatial_mean_beside_a_convolution_is_a_pool() -> None:
    assert_rewrites(SpellForMnn(), pool("ReduceMean(c, a)"), pool("GlobalAveragePool(c)"))


def test_a_spatial_mean_that_drops_dims_stays() -> None:
    text = pool("ReduceMean<keepdims=0>(c, a)").replace("float[N, 3, 1, 1] y", "float[N, 3] y")
    assert_unchanged(SpellForMnn(), text)


def test_mnn_needs_fewer_operators(tmp_path: Path) -> None:
    path = tmp_path / "first.onnx"
    parse(f"{HEAD} (float[N, 8] y) {{ i = Constant<value_int=0>() y = Gather<axis=1>(x, i) }}").save(path)
    before = convert(path, tmp_path / "a.mnn", passes=None)
    after = convert(path, tmp_path / "b.mnn", passes="spell-for-mnn")
    assert after.proof.kind == "equal"
    assert after.ops < before.ops / 2


@pytest.mark.parametrize("layer", ["Conv", "ConvTranspose"])
def test_batch_normalization_in_three_dims(layer: str, tmp_path: Path) -> None:
    text = f"""g (float[n,2,3,4,3] x) => (float[a,b,c,d,e] y) <float[2,2,2,1,1] w = {{1,2,3,-4,5,-6,7,8}},
        float[2] scale = {{1,2}}, float[2] shift = {{3,-4}}, float[2] mean = {{0,1}}, float[2] var = {{1,4}}> {{
        c = {layer}(x, w)
        z = BatchNormalization(c, scale, shift, mean, var)
        y = Relu(z)
    }}"""
    assert_right_in_mnn(text, tmp_path)
