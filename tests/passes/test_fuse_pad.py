"""fuse-pad: constant Pad goes into the node behind it exactly where the border means the same."""

from __future__ import annotations

import pytest

from graphkit.passes.fuse_pad import FusePad
from graphkit.testing import assert_rewrites, assert_unchanged

CONSTANTS = """<float[2,3,3,3] w = {@}, int64[8] p = {0, 0, 1, 2, 0, 0, 3, 4},
    int64[8] even = {0, 0, 1, 1, 0, 0, 1, 1},
    int64[8] crop = {0, 0, -1, 0, 0, 0, 0, 0}, int64[8] batch = {1, 0, 0, 0, 0, 0, 0, 0}, float one = {1},
    int64[8] wide = {0, 0, 3, 3, 0, 0, 3, 3}, float lowest = {-3.4028234663852886e38}, float zero = {0},
    int64[4] q = {1, 2, 3, 4}, int64[2] axes = {2, 3}, int64[2] back = {-2, -1},
    int64[8] uneven = {0, 0, 0, 0, 0, 0, 1, 1}>""".replace(
    "@", ", ".join(f"{(i * 7 % 13) / 13 - 0.4:.3f}" for i in range(54))
)


def model(body: str, outputs: str = "float[a,b,c,d] y") -> str:
    """A model of this body."""
    return f"g (float[1,3,6,6] x, int64[8] given) => ({outputs}) {CONSTANTS} {{ {body} }}"


AVERAGE = "AveragePool<kernel_shape = [3, 3], strides = [2, 2]"
MAX = "MaxPool<kernel_shape = [3, 3], strides = [2, 2]"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = Pad(x, p) y = Conv(a, w)", "y = Conv<pads = [1, 2, 3, 4]>(x, w)"),
        ("a = Pad(x, p, zero) y = Conv(a, w)", "y = Conv<pads = [1, 2, 3, 4]>(x, w)"),
        (
            "a = Pad(x, p) y = Conv<pads = [1, 1, 1, 1], strides = [2, 2]>(a, w)",
            "y = Conv<pads = [2, 3, 4, 5], strides = [2, 2]>(x, w)",
        ),
        (
            'a = Pad(x, even) y = Conv<auto_pad = "VALID">(a, w)',
            "y = Conv<pads = [1, 1, 1, 1]>(x, w)",
        ),
        ("a = Pad(x, q, , axes) y = Conv(a, w)", "y = Conv<pads = [1, 2, 3, 4]>(x, w)"),
        ("a = Pad(x, q, , back) y = Conv(a, w)", "y = Conv<pads = [1, 2, 3, 4]>(x, w)"),
        (
            f"a = Pad(x, even) y = {AVERAGE}>(a)",
            f"y = {AVERAGE}, pads = [1, 1, 1, 1], count_include_pad = 1>(x)",
        ),
        (f"a = Pad(x, even, lowest) y = {MAX}>(a)", f"y = {MAX}, pads = [1, 1, 1, 1]>(x)"),
        (f"r = Relu(x) a = Pad(r, even) y = {MAX}>(a)", f"r = Relu(x) y = {MAX}, pads = [1, 1, 1, 1]>(r)"),
        (f"r = Relu(x) a = Pad(r, uneven) y = {MAX}>(a)", f"r = Relu(x) y = {MAX}, pads = [0, 0, 1, 1]>(r)"),
    ],
)
def test_rewrites(before: str, after: str) -> None:
    assert_rewrites(FusePad(), model(before), model(after), opset=18)


def test_pads_as_an_attribute() -> None:
    before = "a = Pad<pads = [0, 0, 1, 2, 0, 0, 3, 4]>(x) y = Conv(a, w)"
    assert_rewrites(FusePad(), model(before), model("y = Conv<pads = [1, 2, 3, 4]>(x, w)"), opset=10)


def test_pad_of_two_convolutions() -> None:
    outputs = "float[a,b,c,d] y, float[a,b,c,d] z"
    before = model("a = Pad(x, even) y = Conv(a, w) z = Conv(a, w)", outputs)
    after = model("y = Conv<pads = [1, 1, 1, 1]>(x, w) z = Conv<pads = [1, 1, 1, 1]>(x, w)", outputs)
    assert_rewrites(FusePad(), before, after)


def test_half_precision_and_subgraph() -> None:
    def wrapped(body: str) -> str:
        other = "else_branch = l () => (float16[a,b,c,d] u) { u = Identity(x) }"
        branch = f"then_branch = t () => (float16[a,b,c,d] y) {{ {body} }}"
        head = "g (bool i, float16[1,3,6,6] x) => (float16[a,b,c,d] z)"
        constants = f"<float16[2,3,1,1] w = {{{', '.join(['14336'] * 6)}}}, int64[8] p = {{0,0,1,1,0,0,1,1}}>"
        return f"{head} {constants} {{ z = If(i) <{branch}, {other}> }}"

    before, after = "a = Pad(x, p) y = Conv(a, w)", "y = Conv<pads = [1, 1, 1, 1]>(x, w)"
    assert_rewrites(FusePad(), wrapped(before), wrapped(after))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("a = Pad(x, given) y = Conv(a, w)", "are not known"),
        ('a = Pad<mode = "reflect">(x, p) y = Conv(a, w)', "mode reflect"),
        ("a = Pad(x, crop) y = Conv(a, w)", "crops"),
        ("a = Pad(x, batch) y = Conv(a, w)", "batch or channel"),
        ("a = Pad(x, p, one) y = Conv(a, w)", "fills with 1"),
        ('a = Pad(x, p) y = Conv<auto_pad = "SAME_UPPER">(a, w)', "auto_pad is SAME_UPPER"),
        (f"a = Pad(x, even) y = {AVERAGE}, pads = [1, 1, 1, 1]>(a)", "pads of its own"),
        (f"a = Pad(x, even, one) y = {AVERAGE}>(a)", "other than zero"),
        (f"a = Pad(x, uneven) y = {AVERAGE}>(a)", "uneven counted pads"),
        (f"a = Pad(x, even) y = {AVERAGE}, ceil_mode = 1>(a)", "ceil_mode"),
        (f"a = Pad(x, wide) y = {AVERAGE}>(a)", "as large as the kernel"),
        (f"a = Pad(x, even) y = {MAX}>(a)", "could be the maximum"),
        (f"a = Pad(x, even, lowest) y, i = {MAX}>(a)", "indices"),
        (f"a = Pad(x, even, lowest) y = {MAX}, dilations = [2, 2]>(a)", "dilated"),
    ],
)
def test_near_misses_say_why(body: str, reason: str) -> None:
    assert_unchanged(FusePad(), model(body), refuses=reason, opset=18)


def test_no_pad_no_word() -> None:
    assert not assert_unchanged(FusePad(), model("y = Conv(x, w)")).refusals
