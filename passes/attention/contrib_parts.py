"""Query, key and value of onnxruntime's MultiHeadAttention operators, in any of their layouts.

They come apart ([batch, seq, hidden]), as one packed value ([batch, seq, heads, 3, d]; for DecoderMaskedMultiHead-
Attention [batch, seq, 3·hidden]), key and value packed ([batch, seq, heads, 2, d]), or key and value with their heads
split (cross attention: [batch, heads, seq, d]); see docs/ContribOperators.md of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from graphkit.node import Dim, Node
from graphkit.passes._emit import Emit
from graphkit.passes.attention import contrib_common as common
from graphkit.passes.attention import form as forms
from graphkit.passes.attention.contrib_common import require


@dataclass(frozen=True)
class Inputs:
    """Values that an operator reads, "" for one that is omitted.

    packs: a query alone of rank 3 holds key and value, too.
    """

    query: str
    key: str
    value: str
    bias: str
    mask: str
    attention_bias: str
    past_key: str
    past_value: str
    past_length: str
    packs: bool = False


def inputs_of(node: Node, order: Iterable[int], *, packs: bool = False) -> Inputs:
    """The inputs of a node, by their places in the order of the fields."""
    query, key, value, *others = (node.input(index) for index in order)
    bias, mask, attention_bias, past_key, past_value, past_length = others
    return Inputs(query, key, value, bias, mask, attention_bias, past_key, past_value, past_length, packs)


@dataclass(frozen=True)
class Parts:
    """Query, key and value, [batch, heads, seq, d], the size of a head, the batch, and lengths (None: not known)."""

    query: str
    key: str
    value: str
    size: int
    batch: Dim
    sq: Dim
    fresh: Dim
    before: Dim = 0  # how many keys of before there are
    start: str = ""  # the same as an int64 scalar, "" when there are none


def read(build: Emit, inputs: Inputs, heads: int) -> Parts:
    """Query, key and value, biases added."""
    shapes = [build.graph.shape(value) if value else () for value in (inputs.query, inputs.key)]
    ranks = tuple(-1 if shape is None else len(shape) for shape in shapes)
    require(-1 not in ranks, "the ranks of query and key are not known, which tell how they are packed")
    if ranks == (5, 0):
        return _packed(build, inputs, heads)
    if ranks == (3, 0) and inputs.packs:
        return _packed_flat(build, inputs, heads)
    require(ranks[0] == 3 and ranks[1] in (3, 4, 5), f"query of rank {ranks[0]} and key of rank {ranks[1]}")
    require(bool(inputs.value) == (ranks[1] != 5), "the value and how the key is packed do not go together")
    return _apart(build, inputs, heads, ranks[1])


def _apart(build: Emit, inputs: Inputs, heads: int, rank: int) -> Parts:
    """Query apart from the others; the rank of the key tells whether its heads are split or the value is in it."""
    hidden = common.number(build, inputs.query, 2, "the hidden size")
    size = common.divided(hidden, heads, "the hidden size")
    batch, sq = common.dim(build, inputs.query, 0), common.dim(build, inputs.query, 1)
    biases = split_bias(build, inputs.bias, heads, hidden)
    query = forms.split_heads(build, common.with_bias(build, inputs.query, biases[0]), heads)
    if rank == 4:  # onnxruntime adds the bias to the query only
        return Parts(query, inputs.key, inputs.value, size, batch, sq, common.dim(build, inputs.key, 2))
    fresh = common.dim(build, inputs.key, 1)
    if rank == 5:
        require(not inputs.bias, "a bias beside packed key and value")
        key, value = unpacked(build, inputs.key, 2)
        return Parts(query, key, value, size, batch, sq, fresh)
    pairs = ((inputs.key, biases[1]), (inputs.value, biases[2]))
    key, value = (forms.split_heads(build, common.with_bias(build, x, bias), heads) for x, bias in pairs)
    return Parts(query, key, value, size, batch, sq, fresh)


def _packed_flat(build: Emit, inputs: Inputs, heads: int) -> Parts:
    """[batch, seq, 3·hidden], with a bias [3·hidden] perhaps."""
    whole = common.number(build, inputs.query, 2, "the hidden size")
    hidden = common.divided(whole, 3, "the packed size")
    size = common.divided(hidden, heads, "the hidden size")
    batch, sq = common.dim(build, inputs.query, 0), common.dim(build, inputs.query, 1)
    joined = common.with_bias(build, inputs.query, inputs.bias)
    query, key, value = (forms.split_heads(build, x, heads) for x in build.split(joined, 2, [hidden] * 3))
    return Parts(query, key, value, size, batch, sq, sq)


def _packed(build: Emit, inputs: Inputs, heads: int) -> Parts:
    """[batch, seq, heads, 3, d], with a bias [3·heads·d] perhaps."""
    packed = inputs.query
    size = common.number(build, packed, 4, "the size of a head")
    batch, sq = common.dim(build, packed, 0), common.dim(build, packed, 1)
    packed = common.with_bias(build, packed, packed_bias(build, inputs.bias, heads, size))
    query, key, value = unpacked(build, packed, 3)
    return Parts(query, key, value, size, batch, sq, sq)


def packed_bias(build: Emit, bias: str, heads: int, size: int) -> str:
    """A bias [3·heads·d] as one for [.., heads, 3, d]; "" without."""
    if not bias:
        return ""
    return build.op("Transpose", build.op("Reshape", bias, build.ints(3, heads, size)), perm=[1, 0, 2])


def unpacked(build: Emit, packed: str, count: int) -> list[str]:
    """[batch, seq, heads, count, d] → that many of [batch, heads, seq, d]."""
    ordered = build.op("Transpose", packed, perm=[3, 0, 2, 1, 4])
    return [build.squeeze(part, 0) for part in build.split(ordered, 0, [1] * count)]


def split_bias(build: Emit, bias: str, heads: int, hidden: int) -> list[str]:
    """Biases of query, key and value; "" without."""
    if not bias:
        return ["", "", ""]
    whole = common.number(build, bias, 0, "the size of the bias")
    require(whole > 2 * hidden, f"a bias of size {whole} for a hidden size of {hidden}")
    common.divided(whole - 2 * hidden, heads, "the hidden size of the value")
    return build.split(bias, 0, [hidden, hidden, whole - 2 * hidden])


def with_past(build: Emit, inputs: Inputs, parts: Parts) -> tuple[Parts, tuple[str, str]]:
    """Keys and values with those of before, and the present ones."""
    require(bool(inputs.past_key) == bool(inputs.past_value), "past_key and past_value go together")
    before = common.dim(build, inputs.past_key, 2) if inputs.past_key else 0
    if before == 0:
        return parts, (parts.key, parts.value)
    if inputs.past_length:
        return _with_buffer(build, inputs, parts)
    key = forms.append(build, inputs.past_key, parts.key)
    value = forms.append(build, inputs.past_value, parts.value)
    start = common.length(build, inputs.past_key)
    return replace(parts, key=key, value=value, before=before, start=start), (key, value)


def _with_buffer(build: Emit, inputs: Inputs, parts: Parts) -> tuple[Parts, tuple[str, str]]:
    """Past and present are buffers of one size, of which past_sequence_length rows are filled."""
    start = common.scalar(build, inputs.past_length)
    pairs = ((inputs.past_key, parts.key), (inputs.past_value, parts.value))
    present = [common.put(build, past, new, start) for past, new in pairs]
    end = build.unsqueeze(build.op("Add", start, common.length(build, parts.key)), 0)
    key, value = (build.op("Slice", x, build.ints(0), end, build.ints(2)) for x in present)
    return replace(parts, key=key, value=value, before=None, start=start), (present[0], present[1])
