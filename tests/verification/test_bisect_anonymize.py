"""Anonymizing: nothing of the user's is left, or it is said what is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from bisect_faults import Feeds, confuses, op_types
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import feeds as random_feeds
from random_models import models

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model, tensors
from graphkit.runtime import Session
from graphkit.testing import parse
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect._fresh import drawn, fresh_feeds, is_data
from graphkit.verification.bisect.anonymize import Anonymized, anonymize, renamed
from graphkit.verification.bisect.search import Exhausted

SECRET = """
    <ir_version: 8, opset_import: ["": 18, "secret.pkg": 1]>
    secret_graph (float[secret_batch,4] secret_input, int64[secret_batch] secret_ids)
        => (float[secret_batch,4] secret_output)
    <float[4] secret_weight = {11.0, 12.0, 13.0, 14.0}, float secret_eps = {0.5}> {
        [secret_node] secret_a = Mul(secret_input, secret_weight)
        [secret_call] secret_b = secret.pkg.SecretFunction(secret_a, secret_eps)
        [secret_sin] secret_c = Sin(secret_b)
        [secret_table] secret_t = Constant<value = float[3,4]
            {71.0, 72.0, 73.0, 74.0, 75.0, 76.0, 77.0, 78.0, 79.0, 80.0, 81.0, 82.0}>()
        [secret_gather] secret_d = Gather(secret_t, secret_ids)
        [secret_sum] secret_output = Add(secret_c, secret_d)
    }
    <domain: "secret.pkg", opset_import: ["": 18]>
    SecretFunction (secret_p, secret_q) => (secret_r) { secret_s = Add(secret_p, secret_q) secret_r = Abs(secret_s) }
"""
FEEDS = {
    "secret_input": np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4),
    "secret_ids": np.array([0, 2], np.int64),
}


def secret() -> Model:
    model = parse(SECRET)
    model.proto.producer_name = "secret exporter"
    model.proto.metadata_props.add(key="secret", value="secret")
    model.proto.graph.node[0].doc_string = "secret/path.py"
    return model


def numbers(model: Model) -> set[float]:
    found: set[float] = set()
    for weight in model.weights():
        array = weight.array()
        if is_data(array):
            found |= set(array.reshape(-1).astype(np.float64).tolist())
    return found


def test_names_weights_and_texts_are_gone() -> None:
    model, predicate = secret(), confuses("Sin", "Cos")
    result = anonymize(model, FEEDS, predicate)
    assert result.shows
    assert predicate(result.model, result.feeds) is True
    stored = result.model.materialized().SerializeToString()
    assert stored.count(b"secret") == stored.count(b"secret.pkg")  # domains stay: MNN may treat them differently
    assert b"Secret" not in stored
    old, new = numbers(model), numbers(result.model)
    inner = {number for number in old if number not in (11.0, 14.0, 71.0, 82.0)}  # the ends are what clipping keeps
    assert not inner & new
    onnx.checker.check_model(result.model.materialized(), full_check=True)
    assert op_types(result.model)[0] == "Mul"
    assert set(result.feeds) == {info.name for info in result.model.proto.graph.input}
    for name, array in FEEDS.items():
        assert result.feeds[result.names[name]].dtype == array.dtype
        assert result.feeds[result.names[name]].shape == array.shape
    assert b"secret" in model.materialized().SerializeToString()


def test_messages_are_translated() -> None:
    result = anonymize(secret(), FEEDS, confuses("Sin", "Cos"))
    sin = next(node for node in Graph.of(result.model).nodes if node.op == "Sin")
    text = result.translated("node 'secret_sin' makes 'secret_c', and 'no name' stays")
    assert text == f"node '{sin.label}' makes '{sin.outputs[0]}', and 'no name' stays"


def test_a_fault_of_the_weights_does_not_show() -> None:
    def predicate(model: Model, feeds: Feeds) -> bool:
        return any(12.0 in weight.array() for weight in model.weights() if is_data(weight.array()))

    result = anonymize(secret(), FEEDS, predicate)
    assert not result.shows
    assert "the fault does not show" in result.note
    assert 12.0 not in numbers(result.model)


def test_integer_inputs_that_matter_stay_and_that_is_said() -> None:
    ids = np.arange(40, dtype=np.int64) % 3

    def predicate(model: Model, feeds: Feeds) -> bool:
        return any(np.array_equal(array, ids) for array in feeds.values())

    feeds = {"secret_input": np.ones((40, 4), np.float32), "secret_ids": ids}
    result = anonymize(secret(), feeds, predicate)
    assert result.shows
    assert "integer inputs" in result.kept
    assert "integer inputs" in result.note


def test_what_is_left_is_told() -> None:
    numbers = ", ".join(map(str, range(20)))
    model = parse(
        f"""g (int64[N] i) => (int64[N] y) <int64[20] table = {{{numbers}}}> {{
            y = Gather(table, i)
        }}"""
    )
    result = anonymize(model, {"i": np.array([1, 2])}, lambda model, feeds: True)
    assert len(result.kept) == 1
    assert result.kept[0].startswith("int64 constant 't")
    assert result.kept[0].endswith("[20]")
    labels = onnx.helper.make_node(
        "LabelEncoder", ["i"], ["y"], domain="ai.onnx.ml", keys_strings=["who"], values_int64s=[1]
    )
    text = onnx.helper.make_tensor_value_info("i", onnx.TensorProto.STRING, [1])
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1])
    imports = [onnx.helper.make_opsetid("ai.onnx.ml", 2), onnx.helper.make_opsetid("", 18)]
    proto = onnx.helper.make_model(
        onnx.helper.make_graph([labels], "g", [text], [out]), opset_imports=imports, ir_version=8
    )
    feeds = {"i": np.array(["who"], object)}
    kept = anonymize(Model.from_proto(proto), feeds, lambda model, feeds: True).kept
    assert "attribute 'keys_strings' of 'LabelEncoder_t1'" in kept
    assert "text inputs" in kept


def test_at_least_one_try() -> None:
    with pytest.raises(UsageError, match="at least one try"):
        anonymize(secret(), FEEDS, lambda model, feeds: True, tries=0)


@settings(max_examples=30, deadline=None)
@given(proto=models(shadow=False), flag=st.booleans())
def test_a_renamed_model_computes_the_same(proto: onnx.ModelProto, flag: bool) -> None:
    model = Model.from_proto(proto)
    made, names, _ = renamed(model)
    feeds = random_feeds(flag)
    with Session(model) as one, Session(made) as two:
        expected = one.run(feeds)
        actual = two.run({names[name]: array for name, array in feeds.items() if names.get(name)})
    for name, array in expected.items():
        np.testing.assert_array_equal(array, actual[names[name]])
    known = {name for graph in Graph.of(made).walk() for name in graph.all_names()}
    assert not known & {"x0", "x1", "w0", "w1", "c", "limit", "n"}
    assert not any(tensor.name in ("k", "w0", "w1") for tensor in tensors(made.proto))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8"])
def test_drawn_numbers_keep_their_kind_and_bounds(dtype: str) -> None:
    old = np.array([[3, 5], [7, 100]], dtype)
    new = drawn(old, np.random.default_rng(0))
    assert (new.dtype, new.shape) == (old.dtype, old.shape)
    assert new.min() >= 3
    assert new.max() <= 100
    assert not np.array_equal(old, new)


def test_what_is_not_finite_is_not_copied_and_does_not_hurt() -> None:
    new = drawn(np.array([1.0, np.nan, np.inf, 2.0], np.float32), np.random.default_rng(0))
    assert np.isfinite(new).all()
    nothing = np.array([np.nan, np.nan], np.float32)
    assert np.isnan(drawn(nothing, np.random.default_rng(0))).all()


def test_feeds_are_drawn_by_kind() -> None:
    feeds = {
        "f": np.ones(4, np.float32) * 2,
        "i": np.array([5, 9, 7]),
        "b": np.array([True, False]),
        "e": np.zeros((0, 2)),
    }
    new = fresh_feeds(feeds)
    assert np.array_equal(new["i"], feeds["i"])
    assert new["e"].shape == (0, 2)
    new = fresh_feeds(feeds, integers=True)
    assert new["i"].min() >= 5
    assert new["i"].max() <= 9
    assert np.array_equal(new["b"], feeds["b"])


def test_an_empty_result_says_nothing_of_what_is_kept() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    result = Anonymized(model, {}, True)
    assert result.note == "weights and inputs are random and names are replaced"


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2, 3, 2**63 - 1], np.int64),
        np.array([-(2**63), 2**63 - 1], np.int64),
        np.array([2**63 + 1, 2**64 - 1], np.uint64),
        np.array([2**53 + 1, 2**53 + 1], np.int64),
        np.array([1e308, -1e308, 1.7e308]),
        np.array([np.inf, np.nan]),
        np.zeros((0, 2), np.int64),
    ],
)
def test_the_largest_numbers_can_be_drawn(array: np.ndarray) -> None:
    made = drawn(array, np.random.default_rng(0))
    assert (made.dtype, made.shape) == (array.dtype, array.shape)
    if array.size and np.isfinite(array).all():
        assert array.min() <= made.min() <= made.max() <= array.max()


def test_when_the_time_is_up_nothing_is_asked_and_nothing_is_the_users() -> None:
    def never(model: Model, feeds: Feeds) -> bool:
        raise AssertionError("the time is up")

    made = anonymize(secret(), FEEDS, never, effort=Effort(1e-9))
    assert made.shows is None
    assert "the time was up before it was tried" in made.note
    assert b"secret_" not in made.model.proto.SerializeToString()
    tried = Effort(60.0, probes=1)
    tried.spend()  # by the reduction; the time is not up
    assert anonymize(secret(), FEEDS, lambda model, feeds: True, effort=tried).shows is True
    asked: list[int] = []

    def ended(model: Model, feeds: Feeds) -> bool:
        asked.append(1)
        raise Exhausted

    assert anonymize(secret(), FEEDS, ended).shows is None
    assert len(asked) == 1
