"""Random inputs that models accept, loaded inputs, and the checks on both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphkit.errors import GraphkitError, UsageError
from graphkit.graph import Graph
from graphkit.inputs import check_feeds, load_inputs, random_inputs, usable_inputs
from graphkit.model import Model
from graphkit.runtime import InputSpec
from graphkit.testing import parse


def graph_of(text: str, **weights: np.ndarray) -> Graph:
    """A graph from ONNX text (graph only, opset 18)."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return Graph.of(Model.from_proto(model))


def table(rows: int) -> np.ndarray:
    return np.zeros((rows, 4), np.float32)


TEXT_MODEL = """g (int64[batch,seq] input_ids, int64[batch,seq] attention_mask, int64[batch,seq] position_ids)
=> (float[batch,seq,D] y) {
    ids = Cast<to = 6>(input_ids)
    words = Gather(words_table, ids)
    places = Gather(place_table, position_ids)
    m = Cast<to = 1>(attention_mask)
    axes = Constant<value_ints = [-1]>()
    wide = Unsqueeze(m, axes)
    both = Add(words, places)
    y = Mul(both, wide)
}"""


def text_graph() -> Graph:
    return graph_of(TEXT_MODEL, words_table=table(7), place_table=table(100))


def test_equal_symbols_get_equal_sizes_and_variants_differ_in_all() -> None:
    first, second = random_inputs(text_graph())
    assert {a.shape for a in first.values()} == {(1, 16)}
    assert {a.shape for a in second.values()} == {(2, 23)}


def test_indices_stay_inside_the_smallest_table() -> None:
    samples = random_inputs(text_graph(), variants=6)
    ids = np.concatenate([s["input_ids"].ravel() for s in samples])
    assert (ids.min(), ids.max()) == (0, 6)
    graph = graph_of(
        "g (int64[N] i) => (float[N,4] y) { a = Gather(big, i) b = Gather(small, i) y = Add(a, b) }",
        big=table(50),
        small=table(3),
    )
    assert max(s["i"].max() for s in random_inputs(graph, variants=4)) < 3


def test_offsets_before_the_table_count() -> None:
    graph = graph_of(
        "g (int64[N] i) => (float[N,4] y) { j = Add(i, two) y = Gather(t, j) }", t=table(5), two=np.array(2)
    )
    assert {int(v) for s in random_inputs(graph, variants=40) for v in s["i"]} == {0, 1, 2}


def test_indices_in_a_branch_are_followed() -> None:
    graph = graph_of(
        """g (bool c, int64[N] i) => (float[N,4] y) {
            y = If (c) <then_branch = yes () => (float[N,4] a) { a = Gather(t, i) },
                        else_branch = no () => (float[N,4] b) { f = Gather(t, i) b = Neg(f) }>
        }""",
        t=table(4),
    )
    assert max(s["i"].max() for s in random_inputs(graph, variants=4)) < 4


def test_masks_are_ones_with_a_tail_but_never_all_zero() -> None:
    first, second = random_inputs(text_graph())
    assert (first["attention_mask"] == 1).all()
    mask = second["attention_mask"]
    assert (mask[:, -1] == 0).all()
    assert (mask[:, : mask.shape[1] // 2] == 1).all()
    assert (np.diff(mask, axis=1) <= 0).all()


def test_positions_increase() -> None:
    for sample in random_inputs(text_graph()):
        positions = sample["position_ids"]
        assert (positions == np.arange(positions.shape[1])).all()


def test_masks_without_the_name_are_recognized_by_use() -> None:
    graph = graph_of(
        "g (int64[b,s] keep) => (float[b,s] y) { f = Cast<to = 1>(keep) y = Sub(one, f) }",
        one=np.float32(1),
    )
    assert set(random_inputs(graph)[1]["keep"].ravel()) == {0, 1}


def test_compared_scalars_take_the_constant() -> None:
    graph = graph_of("g (int64 sr) => (bool y) { y = Equal(sr, k) }", k=np.array(16000))
    assert random_inputs(graph)[0]["sr"] == 16000


def test_images_and_channels() -> None:
    w = np.zeros((8, 6, 3, 3), np.float32)
    graph = graph_of(
        "g (float[N,C,H,W] x) => (float[N,8,A,B] y) { s = Mul(x, k) y = Conv(s, w) }", w=w, k=np.float32(2)
    )
    assert [s["x"].shape for s in random_inputs(graph)] == [(1, 6, 64, 96), (2, 6, 96, 128)]


def test_cache_and_expressions() -> None:
    graph = cache_graph()
    first, second = random_inputs(graph)
    assert first["past_k"].shape == (1, 2, 4, 8)
    assert first["mask"].shape == (1, 4 + 16)
    assert second["mask"].shape == (2, 7 + 23)
    bound = random_inputs(graph, bind={"past_len": 3})[0]
    assert (bound["past_k"].shape[2], bound["mask"].shape[1]) == (3, 3 + 16)


def cache_graph() -> Graph:
    """Inputs of a decoder with a cache; the mask covers past and present."""
    helper, kinds = onnx.helper, onnx.TensorProto
    inputs = [
        helper.make_tensor_value_info("ids", kinds.INT64, ["batch", "seq"]),
        helper.make_tensor_value_info("past_k", kinds.FLOAT, ["batch", 2, "past_len", 8]),
        helper.make_tensor_value_info("mask", kinds.INT64, ["batch", "past_len + seq"]),
    ]
    node = helper.make_node("Neg", ["past_k"], ["y"])
    outputs = [helper.make_tensor_value_info("y", kinds.FLOAT, None)]
    return Graph.of(Model.from_proto(helper.make_model(helper.make_graph([node], "g", inputs, outputs))))


def test_dimensions_without_a_name() -> None:
    graph = graph_of("g (int64[?,?] a, int64[?,?] b, float[2,?,8] h) => (float[2,?,8] y) { y = Neg(h) }")
    for sample, batch in zip(random_inputs(graph), (1, 2), strict=True):
        assert sample["a"].shape == sample["b"].shape
        assert sample["a"].shape[0] == sample["h"].shape[1] == batch


def test_types_keep_their_ranges() -> None:
    graph = graph_of(
        "g (uint8[64] u, int8[64] i, float16[64] h, bfloat16[64] f, bool[4,8] b, double[3] d)"
        " => (uint8[64] y) { y = Identity(u) }"
    )
    sample = random_inputs(graph)[0]
    assert {n: str(a.dtype) for n, a in sample.items()} == {
        "u": "uint8",
        "i": "int8",
        "h": "float16",
        "f": "bfloat16",
        "b": "bool",
        "d": "float64",
    }
    assert sample["u"].max() > 127
    assert sample["i"].min() < 0


def test_equal_seeds_give_equal_samples() -> None:
    one, two, other = (random_inputs(text_graph(), seed=s)[0]["input_ids"] for s in (5, 5, 6))
    np.testing.assert_array_equal(one, two)
    assert (one != other).any()


def test_bindings() -> None:
    graph = text_graph()
    for sample in random_inputs(graph, bind={"seq": 5}):
        assert sample["input_ids"].shape[1] == 5
    with pytest.raises(UsageError, match="no dimension 'sequence'") as caught:
        random_inputs(graph, bind={"sequence": 5})
    assert "'batch', 'seq'" in str(caught.value.hint)
    with pytest.raises(UsageError, match="cannot be -1"):
        random_inputs(graph, bind={"seq": -1})
    nameless = graph_of("g (float[?,3] x) => (float[?,3] y) { y = Neg(x) }")
    assert random_inputs(nameless, bind={"x[0]": 9})[0]["x"].shape == (9, 3)


def test_text_inputs_cannot_be_made_up() -> None:
    graph = graph_of("g (string[N] s) => (string[N] y) { y = Identity(s) }")
    with pytest.raises(GraphkitError, match=r"input 's' \(string\)"):
        random_inputs(graph)


def test_usable_inputs_vary_what_the_model_lets_them() -> None:
    graph = text_graph()
    found = usable_inputs(graph.model, graph)
    assert [s["input_ids"] for s in found.shapes] == [(1, 16), (2, 23)]
    assert found.note == ""


def test_rejected_shapes_are_replaced_and_what_does_not_vary_is_noted() -> None:
    w = np.zeros((512, 4), np.float32)
    graph = graph_of(
        "g (float[batch,samples] x) => (float[batch,4] y) { r = Reshape(x, shape) y = MatMul(r, w) }",
        w=w,
        shape=np.array([-1, 512]),
    )
    found = usable_inputs(graph.model, graph)
    assert len(found.samples) == 2
    assert all(np.prod(shape["x"]) % 512 == 0 for shape in found.shapes)
    exact = graph_of("g (float[batch,64] x, float[n] z) => (float[batch,n] y) { y = Mul(x, z) }")
    fixed = usable_inputs(exact.model, exact)
    assert fixed.samples[0]["z"].shape in ((64,), (1,))


def test_static_models_get_samples_with_other_values() -> None:
    graph = graph_of("g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }")
    found = usable_inputs(graph.model, graph)
    assert len(found.samples) == 2
    assert found.note == ""
    assert (found.samples[0]["x"] != found.samples[1]["x"]).any()


def test_when_nothing_runs_the_error_says_what_was_tried() -> None:
    graph = graph_of("g (float[n] x) => (float[n] y) { r = Reshape(x, shape) y = Neg(r) }", shape=np.array([7919]))
    with pytest.raises(GraphkitError, match=r"no random input runs; of \d+ tries the last was 'x'\[") as caught:
        usable_inputs(graph.model, graph)
    assert "--inputs" in str(caught.value.hint)


def test_loads_files_and_folders(tmp_path: Path) -> None:
    one, two = {"a": np.arange(3)}, {"a": np.arange(4), "b": np.float32(1)}
    archives = tmp_path / "archives"
    archives.mkdir()
    np.savez(archives / "s10.npz", **two)
    np.savez(archives / "s9.npz", **one)
    assert list(load_inputs(archives / "s10.npz")[0]) == ["a", "b"]
    assert [len(sample) for sample in load_inputs(archives)] == [1, 2]
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    for name, array in two.items():
        np.save(arrays / f"{name}.npy", array)
    (sample,) = load_inputs(arrays)
    assert sorted(sample) == ["a", "b"]


def test_unreadable_files_are_usage_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    np.save(tmp_path / "one.npy", np.ones(2))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    np.savez(tmp_path / "pickled.npz", a=np.array([{}], object))
    for name, reason in (("bad", "cannot be read"), ("one", "is one array"), ("pickled", "cannot be read")):
        with pytest.raises(UsageError, match=reason):
            load_inputs(tmp_path / f"{name}.npz")
    with pytest.raises(UsageError, match="is not there"):
        load_inputs(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.npz"):
        load_inputs(tmp_path / "empty")


SPECS = (
    InputSpec("ids", np.dtype(np.int64), ("n", 3)),
    InputSpec("a/x:0", np.dtype(np.float32), (2,)),
)


def test_feeds_are_cast_where_nothing_is_lost() -> None:
    feeds = check_feeds(SPECS, {"ids": np.ones((5, 3), np.int32), "a__s__x__c__0": np.ones(2, np.float64)})
    assert {n: str(a.dtype) for n, a in feeds.items()} == {"ids": "int64", "a/x:0": "float32"}


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"ids": np.ones((5, 3), int)}, "no value for input 'a/x:0'"),
        ({"ids": np.ones((5, 3), int), "a/x:0": np.ones(2), "q": np.ones(1)}, "no input 'q'"),
        ({"ids": np.ones((5, 4), int), "a/x:0": np.ones(2)}, r"'ids' has shape \[5, 4\]"),
        ({"ids": np.ones(3, int), "a/x:0": np.ones(2)}, r"'ids' has shape \[3\]"),
        ({"ids": np.ones((5, 3)), "a/x:0": np.ones(2)}, "'ids' is float64"),
        ({"ids": np.full((5, 3), 2**63, np.uint64), "a/x:0": np.ones(2)}, "int64 cannot hold"),
    ],
)
def test_wrong_feeds_are_usage_errors(feeds: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_feeds(SPECS, feeds)


@pytest.mark.parametrize("name", ["magika", "silero_vad", "silero_seq", "centerface", "ppocr4_rec"])
def test_real_models_take_the_inputs(model_path: Callable[[str], Path], name: str) -> None:
    path = model_path(name)
    graph = Graph.of(Model.load(path))
    assert len(usable_inputs(path, graph).samples) == 2


def probes(text: str) -> list[dict[str, np.ndarray]]:
    graph = graph_of(text)
    return list(usable_inputs(graph.model, graph).probes)


def test_probes_have_ties_halves_zeros_and_large_values() -> None:
    found = np.concatenate([p["x"].ravel() for p in probes("g (float[4,4] x) => (float[4,4] y) { y = Relu(x) }")])
    assert {0.0, 0.5, -1.5, 7.0} <= set(found.tolist())
    assert np.abs(found).max() > 20


def test_probes_of_topk_have_no_ties() -> None:
    text = "g (float[1,32] x) => (float[1,3] v, int64[1,3] i) <int64[1] k = {3}> { v, i = TopK(x, k) }"
    found = probes(text)
    assert found
    assert all(np.unique(p["x"]).size == p["x"].size for p in found)


def test_large_models_are_not_probed() -> None:
    chain = " ".join(f"v{i + 1} = Neg(v{i})" for i in range(70))
    assert probes(f"g (float[4] v0) => (float[4] v70) {{ {chain} }}") == []
    assert probes("g (float[300,300] x) => (float[300,300] y) { y = Neg(x) }") == []


def test_probes_that_do_not_run_are_left_out() -> None:
    text = "g (float[4] x, int64[2] i) => (float[2] y) { a = Add(i, i) y = Gather(x, a) }"
    found = probes(text)
    assert all(p["i"].max() < 2 for p in found)


def test_integers_that_are_calculated_with_have_signs() -> None:
    found = probes("g (int32[8] x, int32[8] d) => (int32[8] y) { y = Div(x, d) }")
    assert min(p["x"].min() for p in found) < 0
    assert all((p["d"] != 0).all() for p in found)


def test_indices_that_count_from_the_end() -> None:
    found = probes("g (float[4,4] x, int64[4,4] i) => (float[4,4] y) { y = GatherElements(x, i) }")
    assert min(p["i"].min() for p in found) < 0
    tokens = probes("g (float[9,4] x, int64[5] i) => (float[5,4] y) { y = Gather(x, i) }")
    assert min(p["i"].min() for p in tokens) == 0


@pytest.mark.parametrize(
    ("text", "name", "size"),
    [
        ("g (float[3,9] x, int64[3] t) => (float l) { l = NegativeLogLikelihoodLoss(x, t) }", "t", 9),
        ("g (float[9] x, int64[40,1] i) => (float[40] y) { y = GatherND(x, i) }", "i", 9),
        ("g (float[3] x, int64[3] i, float[3] u) => (float[3] y) { y = ScatterElements(x, i, u) }", "i", 3),
    ],
)
def test_indices_cover_their_table(text: str, name: str, size: int) -> None:
    values = np.concatenate([sample[name].ravel() for sample in random_inputs(graph_of(text), variants=20)])
    assert (values.min(), values.max()) == (0, size - 1)


def test_factors_of_a_resize_are_positive() -> None:
    text = 'g (float[1,1,4,4] x, float[4] s) => (float[A,B,C,D] y) { y = Resize<mode = "nearest">(x, , s) }'
    assert all((sample["s"] > 0).all() for sample in random_inputs(graph_of(text), variants=4))


def test_scores_and_thresholds_of_nonmaxsuppression_are_shares() -> None:
    text = """g (float[1, 9, 4] b, float[1, 1, 9] s, float t, float u) => (int64[K, 3] y)
    <int64 m = {3}> { y = NonMaxSuppression(b, s, m, t, u) }"""
    feeds = random_inputs(graph_of(text))[0]
    assert feeds["b"].min() >= 0
    assert feeds["s"].min() >= 0
    assert feeds["s"].max() <= 1
    assert 0 <= feeds["t"] <= 0.5
    assert 0 <= feeds["u"] <= 0.5


def test_integers_of_unknown_use_become_smaller_until_they_fit() -> None:
    graph = graph_of("g (float[4] x, int64[6] i) => (float[6] y) { s = Abs(i) t = Max(s, s) y = Gather(x, t) }")
    (first, _) = usable_inputs(graph.model, graph).samples
    assert first["i"].max() < 4


def test_an_input_that_would_fill_the_memory_is_refused() -> None:
    graph = Graph.of(parse("g (float[1000000, 2048] x) => (float[1000000, 2048] y) { y = Relu(x) }"))
    with pytest.raises(UsageError, match=r"'x' of 1000000x2048 would take 8\.2 GB"):
        random_inputs(graph)


def test_indices_of_tables_in_blocks_stay_inside() -> None:
    text = """g (int64[4, 50] i) => (float[4, 50, 32] y) {
        y = com.microsoft.GatherBlockQuantized<block_size=16, gather_axis=0>(t, i, s) }"""
    graph = graph_of(text, t=np.zeros((3, 16), np.uint8), s=np.ones((3, 2), np.float32))
    assert set(np.unique(random_inputs(graph)[0]["i"])) <= {0, 1, 2}
