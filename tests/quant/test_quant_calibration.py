"""Calibration data from arrays: what belongs to which input, where samples end, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from graphkit.errors import ModelError, UsageError
from graphkit.model import Model
from graphkit.quant.calibration import Calibration, load_calibration
from graphkit.testing import parse

Array = npt.NDArray[Any]


def model_of(inputs: str) -> Model:
    """A model with these inputs, given as ONNX text."""
    return parse(f"g ({inputs}) => (float[1] y) <float[1] k = {{1}}> {{ y = Identity(k) }}")


TOKENS = "int64[batch,seq] ids, int64[batch,seq] mask"


def saved(path: Path, **arrays: Array) -> Path:
    np.savez(path, **arrays)
    return path


def numbers(*shape: int, start: int = 0) -> Array:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def test_an_npz_is_one_sample_or_a_stack(tmp_path: Path) -> None:
    model = model_of("float[n,2] x, int64 rate")
    one = load_calibration(saved(tmp_path / "a.npz", x=np.ones((5, 2), np.float32), rate=np.int64(8)), model)
    assert [sample["x"].shape for sample in one.samples] == [(5, 2)]
    x = numbers(3, 5, 2).astype(np.float64)
    many = load_calibration(saved(tmp_path / "b.npz", x=x, rate=np.array(8)), model)
    assert [sample["rate"].item() for sample in many.samples] == [8, 8, 8]  # the same for all
    for number, sample in enumerate(many.samples):
        np.testing.assert_array_equal(sample["x"], x[number])
        assert sample["x"].dtype == np.float32
    assert many.note == "3 samples from 1 file: stacked arrays"
    both = load_calibration(saved(tmp_path / "c.npz", x=x, rate=np.array([7, 8, 9])), model)
    assert [sample["rate"].item() for sample in both.samples] == [7, 8, 9]


@pytest.mark.parametrize(
    ("inputs", "shape", "expected"),
    [
        ("float[1,2] x", (4, 2), [(1, 2)] * 4),
        ("float[2,2] x", (4, 2), [(2, 2)] * 2),
        ("float[batch_size,2] x", (4, 2), [(1, 2)] * 4),
        ("float[N,2] x", (4, 2), [(1, 2)] * 4),
        ("float[seq,2] x", (4, 2), [(4, 2)]),
        ("float[?,3,8,8] x", (4, 3, 8, 8), [(1, 3, 8, 8)] * 4),
        ("float[?,3] x", (4, 3), [(4, 3)]),
        ("float[N] x", (4,), [(4,)]),
        ("float[batch,2] x", (1, 2), [(1, 2)]),
        ("float[batch,2] x", (3, 4, 2), [(4, 2)] * 3),
    ],
)
def test_where_one_sample_ends(
    inputs: str, shape: tuple[int, ...], expected: list[tuple[int, ...]], tmp_path: Path
) -> None:
    model = model_of(inputs.replace("?", "d0"))
    if "?" in inputs:
        model.proto.graph.input[0].type.tensor_type.shape.dim[0].ClearField("dim_param")
    x = numbers(*shape).astype(np.float32)
    samples = load_calibration(saved(tmp_path / "a.npz", x=x), model).samples
    assert [sample["x"].shape for sample in samples] == expected
    np.testing.assert_array_equal(np.concatenate([s["x"].reshape(-1) for s in samples]), x.reshape(-1))


def test_inputs_of_one_batch_are_cut_together(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", ids=numbers(3, 4), mask=np.ones((3, 4), np.int32))
    samples = load_calibration(path, model_of(TOKENS)).samples
    assert [sample["ids"].tolist() for sample in samples] == [[row] for row in numbers(3, 4).tolist()]
    assert all(sample["mask"].shape == (1, 4) for sample in samples)


def test_inputs_of_different_first_axes_stay_together(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", x=np.ones((4, 2)), h=np.ones((1, 3)))
    (sample,) = load_calibration(path, model_of("float[batch,2] x, float[layers,3] h")).samples
    assert sample["x"].shape == (4, 2)


def test_a_folder_of_npz_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        saved(tmp_path / f"s{number}.npz", x=np.full((1, 2), number))
    (tmp_path / "expected.npy").write_bytes(b"outputs of somebody")
    found = load_calibration(tmp_path, model_of("int64[1,2] x"))
    assert [sample["x"][0, 0] for sample in found.samples] == [1, 2, 10]
    assert found.note == "3 samples from 3 files"


def test_names_may_hold_digits_that_are_no_numbers(tmp_path: Path) -> None:
    for name in ("²2", "a10", "a٣"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((1, 2), np.float32))
    model = parse("g (float[1,2] x) => (float[1,2] y) { y = Neg(x) }")
    assert len(load_calibration(tmp_path, model)) == 3


def test_a_folder_of_npy_is_a_file_for_each_input_or_samples_of_the_only_one(tmp_path: Path) -> None:
    model = model_of("float[batch,2] x, float[batch,3] c")
    named, plain = tmp_path / "named", tmp_path / "plain"
    named.mkdir()
    np.save(named / "x.npy", np.ones((5, 2)))
    np.save(named / "c.npy", np.ones((5, 3)))
    assert len(load_calibration(named, model).samples) == 5
    plain.mkdir()
    for number in range(3):
        np.save(plain / f"{number}.npy", np.full((2, 2), number, np.float32))
    only = model_of("float[seq,2] x")
    assert [sample["x"][0, 0] for sample in load_calibration(plain, only).samples] == [0, 1, 2]
    assert len(load_calibration(plain / "1.npy", only).samples) == 1
    with pytest.raises(UsageError, match=r"no \.npy is called after an input, such as 'x.npy'"):
        load_calibration(plain, model)


def test_names_that_files_cannot_hold_are_spelled_out(tmp_path: Path) -> None:
    model = model_of("float[seq,2] x")
    model.proto.graph.input[0].name = "in/x:0"
    np.save(tmp_path / "in__s__x__c__0.npy", np.ones((3, 2)))
    (sample,) = load_calibration(tmp_path, model).samples
    assert list(sample) == ["in/x:0"]
    (sample,) = load_calibration(saved(tmp_path / "a.npz", in__s__x__c__0=np.ones((3, 2))), model).samples
    assert list(sample) == ["in/x:0"]


def test_the_array_of_an_only_input_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, np.ones((3, 1, 2)))
    assert len(load_calibration(path, model_of("float[1,2] x")).samples) == 3


def test_a_limit_chooses_at_random_and_reproducibly(tmp_path: Path) -> None:
    path, model = saved(tmp_path / "a.npz", x=numbers(40, 1, 2)), model_of("int64[1,2] x")

    def chosen(**how: Any) -> list[int]:
        return [int(sample["x"][0, 0]) // 2 for sample in load_calibration(path, model, **how).samples]

    first = chosen(limit=5)
    assert len(first) == 5
    assert first == sorted(first)
    assert first == chosen(limit=5)
    assert first != chosen(limit=5, seed=1)
    assert chosen(limit=100) == list(range(40))
    assert load_calibration(path, model, limit=5).note.startswith("5 of 40 samples")
    with pytest.raises(UsageError, match="leaves none"):
        load_calibration(path, model, limit=0)


def test_files_that_a_limit_leaves_out_are_not_read(tmp_path: Path) -> None:
    model = model_of("int64[1,2] x")
    saved(tmp_path / "0.npz", x=numbers(1, 2))
    (tmp_path / "1.npz").write_bytes(b"damaged")
    read = 0
    for seed in range(8):
        try:
            load_calibration(tmp_path, model, limit=1, seed=seed)
        except UsageError:
            continue
        read += 1
    assert 0 < read < 8


@pytest.mark.parametrize(
    ("arrays", "message", "hint"),
    [
        ({"idz": numbers(1, 4), "mask": numbers(1, 4)}, "the model has no input 'idz'", "ids: int64[batch,seq]"),
        ({"ids": numbers(1, 4)}, "no value for input 'mask'", "ids: int64[batch,seq]"),
        ({"ids": numbers(4), "mask": numbers(1, 4)}, r"input 'ids' has shape \[4\]", "ids: int64[batch,seq]"),
        ({"ids": np.ones((1, 4)), "mask": numbers(1, 4)}, "input 'ids' is float64", "ids: int64[batch,seq]"),
        ({"ids": numbers(2, 1, 4), "mask": numbers(3, 1, 4)}, "number of samples: 'ids' 2, 'mask' 3", None),
        ({"ids": numbers(0, 1, 4), "mask": numbers(0, 1, 4)}, "holds no samples", None),
    ],
)
def test_names_and_shapes_that_do_not_fit(
    arrays: Mapping[str, Array], message: str, hint: str | None, tmp_path: Path
) -> None:
    path = saved(tmp_path / "a.npz", **arrays)
    with pytest.raises(UsageError, match=message) as caught:
        load_calibration(path, model_of(TOKENS))
    assert caught.value.file == str(path)
    assert hint is None or hint in str(caught.value.hint)


def test_sizes_and_values_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has shape \[3, 2\]"):
        load_calibration(saved(tmp_path / "a.npz", x=np.ones((3, 2))), model_of("float[2,2] x"))
    with pytest.raises(UsageError, match=r"has shape \[1, 3\]"):
        load_calibration(saved(tmp_path / "b.npz", x=np.ones((4, 1, 3))), model_of("float[1,2] x"))
    with pytest.raises(UsageError, match="cannot hold"):
        load_calibration(saved(tmp_path / "c.npz", x=np.array([300])), model_of("uint8[n] x"))
    for bad in (np.nan, np.inf):
        with pytest.raises(UsageError, match="'x' holds NaN or infinities"):
            load_calibration(saved(tmp_path / "d.npz", x=np.array([1, bad])), model_of("float[n] x"))


def test_of_many_files_the_wrong_one_is_named(tmp_path: Path) -> None:
    saved(tmp_path / "1.npz", x=np.ones((1, 2)))
    saved(tmp_path / "2.npz", x=np.ones((1, 3)))
    with pytest.raises(UsageError, match=r"has shape \[1, 3\]") as caught:
        load_calibration(tmp_path, model_of("float[1,2] x"))
    assert caught.value.file == str(tmp_path / "2.npz")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    model = model_of("float[n] x")
    (tmp_path / "a.npz").write_bytes(b"no archive")
    (tmp_path / "a.npy").write_bytes(b"no array")
    (tmp_path / "a.json").write_text("{}")
    empty = tmp_path / "empty"
    empty.mkdir()
    np.savez(tmp_path / "pickled.npz", x=np.array([{}], dtype=object))
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name, message in (
        ("a.npz", r"cannot be read as \.npz"),
        ("a.npy", r"cannot be read as \.npy"),
        ("pickled.npz", r"cannot be read as \.npz"),
        ("array.npz", "is one array"),
        ("a.json", r"is none of \.npz"),
        ("empty", "holds no calibration data"),
        ("missing", "is not there"),
    ):
        with pytest.raises(UsageError, match=message) as caught:
            load_calibration(tmp_path / name, model)
        assert caught.value.file == str(tmp_path / name)


def test_defaults_of_inputs_need_no_data_and_a_model_without_inputs_takes_none(tmp_path: Path) -> None:
    text = "g (float[n] x, float[1] k) => (float[1] y) <float[1] k = {1}> { y = Identity(k) }"
    path = saved(tmp_path / "a.npz", x=np.ones(3))
    (sample,) = load_calibration(path, parse(text)).samples
    assert list(sample) == ["x"]
    with pytest.raises(ModelError, match="has no inputs"):
        load_calibration(path, parse("g () => (float[1] y) <float[1] k = {1}> { y = Identity(k) }"))


def test_a_path_to_the_model_will_do(tmp_path: Path) -> None:
    model_of("float[n] x").save(tmp_path / "m.onnx")
    assert len(load_calibration(str(saved(tmp_path / "a.npz", x=np.ones(3))), str(tmp_path / "m.onnx"))) == 1


def calibration(count: int) -> Calibration:
    return Calibration([{"x": np.array(number)} for number in range(count)], "counted")


def held(part: Calibration) -> list[int]:
    return [int(sample["x"]) for sample in part.samples]


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_a_split_parts_all_samples_and_keeps_their_order(count: int, share: float) -> None:
    first, second = calibration(count).split(share)
    assert sorted(held(first) + held(second)) == list(range(count))
    assert held(first) == sorted(held(first))
    assert held(second) == sorted(held(second))
    assert len(second) == min(max(1, round(count * share)), count - 1)
    assert first.note == "counted"


def test_a_split_is_random_by_its_seed() -> None:
    whole = calibration(50)
    assert held(whole.split()[1]) == held(whole.split()[1])
    assert held(whole.split()[1]) != held(whole.split(seed=1)[1])
    assert held(whole.split()[1]) != list(range(40, 50))


def test_one_sample_is_not_held_out_and_shares_are_between_0_and_1() -> None:
    for count in (0, 1):
        first, second = calibration(count).split()
        assert (len(first), len(second)) == (count, 0)
    for share in (0, 1, -0.1, 2):
        with pytest.raises(UsageError, match="cannot be held out"):
            calibration(3).split(share)


def test_real_samples_are_what_the_naturals_are(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    from fixtures.naturals import natural

    for model_id in ("ppocr4_rec", "centerface"):
        model = Model.load(model_path(model_id))
        samples = natural(model_id)
        for number, sample in enumerate(samples):
            saved(tmp_path / f"{model_id}{number}.npz", **sample)
            found = load_calibration(tmp_path / f"{model_id}{number}.npz", model).samples
            assert sum(len(one[name]) for one in found for name in one) == sum(map(len, sample.values()))
