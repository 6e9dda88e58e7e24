"""Plans: settings by rule, pattern and file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from quantized_layers import options_of

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant import plan as plan_module
from graphkit.quant.engine import plan_of
from graphkit.quant.layers import Layer
from graphkit.quant.options import Override, QuantizeOptions, parse_layers
from graphkit.quant.plan import Plan, make_plan, parse_plan, read_plan
from graphkit.quant.setting import FLOAT, Setting

TUTORIAL = {"weight_quant": True, "activate_quant": False, "quant_bits": 8, "quant_scheme": "symmetric"}


def network() -> Graph:
    """A table, two products of 64 and one of 40 input channels, a depthwise convolution, an LSTM-free float weight."""
    rng = np.random.default_rng(0)
    weights = {
        "table": (50, 64),
        "q.weight": (64, 64),
        "down.weight": (64, 40),
        "lm.weight": (40, 96),
        "stack.weight": (2, 96, 32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="emb"),
        helper.make_node("MatMul", ["rows", "q.weight"], ["q"], name="layers.0.q_proj"),
        helper.make_node("MatMul", ["q", "down.weight"], ["d"], name="layers.0.down_proj"),
        helper.make_node("MatMul", ["d", "lm.weight"], ["l"], name="model.lm_head"),
        helper.make_node("MatMul", ["l", "stack.weight"], ["y"], name="stacked"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, "n", 32])],
        [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name) for name, s in weights.items()],
    )
    return Graph.of(
        Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    )


def settings(plan: Plan) -> dict[str, str]:
    """Settings by layer, as text."""
    return {entry.layer.name: f"{entry.setting}:{entry.method}" for entry in plan.layers}


def test_a_rule_for_all_and_blocks_only_where_they_divide() -> None:
    plan = plan_of(network(), QuantizeOptions(bits=4, block=32, method="mse"))
    assert settings(plan) == {
        "emb": "8:rtn",
        "layers.0.q_proj": "4b32:mse",
        "layers.0.down_proj": "4b32:mse",
        "model.lm_head": "4:mse",
    }
    assert "32 does not divide its 40 input channels" in plan.layers[3].why
    assert [(entry.name, entry.op) for entry in plan.kept] == [("stacked", "MatMul")]


def test_bytes_are_those_of_the_mnn_file() -> None:
    plan = plan_of(network(), QuantizeOptions(bits=4, block=32))
    by_name = {entry.layer.name: entry for entry in plan.layers}
    q, table = by_name["layers.0.q_proj"], by_name["emb"]
    assert q.nbytes == 64 * 64 // 2 + 64 * 2 * 4 + 1 + 4 + 1 + 16
    assert table.nbytes == 50 * 64 + 50 * 4
    assert q.float_nbytes == 64 * 64 * 4
    assert plan.nbytes == sum(entry.nbytes for entry in plan.layers)


def test_exceptions_change_what_they_name_and_later_ones_win() -> None:
    options = options_of("*_proj=6,*.down_proj=5b0a", "*.lm_head=float", bits=4, block=32)
    assert settings(plan_of(network(), options)) == {
        "emb": "8:rtn",
        "layers.0.q_proj": "6b32:rtn",
        "layers.0.down_proj": "5a:rtn",
        "model.lm_head": "float:rtn",
    }


def test_layers_go_by_the_name_of_their_weight_too() -> None:
    options = QuantizeOptions(layers=parse_layers(["q.weight=3"]), skip=("lm.weight",))
    found = settings(plan_of(network(), options))
    assert found["layers.0.q_proj"] == "3:rtn"
    assert found["model.lm_head"] == "float:rtn"


def test_a_pattern_for_all_leaves_tables_at_a_byte() -> None:
    plan = plan_of(network(), options_of("*=4b32"))
    assert settings(plan)["emb"] == "8:rtn"
    assert settings(plan)["model.lm_head"] == "4:rtn"
    assert settings(plan_of(network(), options_of("*=float")))["emb"] == "float:rtn"


def test_embeddings_have_a_switch() -> None:
    assert settings(plan_of(network(), QuantizeOptions(embeddings=False)))["emb"] == "float:rtn"
    kept_on = options_of("emb=8", embeddings=False)
    assert settings(plan_of(network(), kept_on))["emb"] == "8:rtn"


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("*.lm_hed=8", "no layer is called '*.lm_hed'", "model.lm_head"),
        ("down=8:mse", "no layer is called 'down'", "layers.0.down_proj"),
        ("stacked=8", "'stacked' cannot be quantized: 'stacked' is a stack of matrices", ""),
        ("model.lm_head=4b32", "32 input channels does not divide the 40", "or 0 for one scale"),
        ("*head=4b32", "32 input channels does not divide the 40", "or 0 for one scale"),
        ("emb=4", "8 bits, not 4", "--skip"),
        ("emb=8b32", "no blocks", "block 0"),
        ("*.lm_head=1", "2 to 8", ""),
        ("*.lm_head=9", "2 to 8", ""),
        ("*.lm_head=4b24", "multiple of 16", ""),
        ("*.lm_head=4a:mse", "asymmetric codes are made by rtn, not by mse", ""),
        ("*.lm_head=4:gtpq", "rtn, mse, gptq, not 'gtpq'; did you mean 'gptq'?", ""),
        ("lm_head", "is not a layer's pattern and a setting", "examples"),
        ("=8", "is not a layer's pattern and a setting", "examples"),
    ],
)
def test_bad_exceptions_say_what_is_wrong(text: str, problem: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(network(), options_of(text))
    assert problem in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_a_skip_that_names_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="no layer is called 'lm_heda'"):
        plan_of(network(), QuantizeOptions(skip=("lm_heda",)))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"bits": 1}, "2 to 8"),
        ({"bits": 9}, "2 to 8"),
        ({"bits": 32}, "2 to 8"),
        ({"block": 24}, "multiple of 16"),
        ({"block": -16}, "multiple of 16"),
        ({"method": "awq"}, "rtn, mse, gptq"),
        ({"scales": "half"}, "float32, float16"),
        ({"damping": 0.0}, "damping"),
        ({"symmetric": False, "method": "gptq"}, "asymmetric codes are made by rtn"),
    ],
)
def test_options_out_of_range_are_refused(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        QuantizeOptions(**change)


def test_a_block_that_divides_no_layer_is_an_error() -> None:
    with pytest.raises(UsageError, match="a block of 48 divides the input channels of no layer"):
        plan_of(network(), QuantizeOptions(block=48))


def test_a_model_without_weights_is_an_error() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])], "g", [value], [helper.make_tensor_value_info("y", 1, [2])]
    )
    model = Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    with pytest.raises(UsageError, match="no weights that can be quantized"):
        plan_of(Graph.of(model))


def test_a_weight_that_would_grow_stays_float() -> None:
    graph = network()
    graph.set_initializer("lm.weight", np.ones((40, 1), np.float32))
    graph = Graph.of(graph.to_model())
    entry = next(e for e in plan_of(graph, QuantizeOptions()).layers if e.layer.name == "model.lm_head")
    assert entry.setting == FLOAT
    assert "no fewer than floats" in entry.why


def test_a_plan_file_comes_back_as_it_was(tmp_path: Path) -> None:
    options = options_of(
        "*.lm_head=float", "*q_proj=6a", bits=4, block=32, method="mse", scales="float16", damping=0.3, act_order=True
    )
    plan = plan_of(network(), options)
    plan.save(tmp_path / "plan.json")
    again = plan_of(network(), QuantizeOptions(), read_plan(tmp_path / "plan.json"))
    assert again == plan
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert sum('"name"' in line for line in lines) == len(plan.layers) + len(plan.kept)


def test_a_saved_plan_is_applied_by_name_not_by_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(network(), QuantizeOptions(4))
    monkeypatch.setattr(plan_module, "fnmatchcase", lambda name, pattern: pytest.fail("quadratic in the layers"))
    again = plan_of(network(), QuantizeOptions(), parse_plan(plan.to_dict()))
    assert settings(again) == settings(plan)


def test_a_layer_whose_name_looks_like_a_pattern_is_meant_itself() -> None:
    layers = [Layer(name, "MatMul", f"w{name}", (64, 64), 64, 64) for name in ("a0", "a[0]")]
    plan = make_plan(layers, [], options_of("a[0]=4"))
    assert settings(plan) == {"a0": "8:rtn", "a[0]": "4:rtn"}


def test_exceptions_stand_over_the_file() -> None:
    file = parse_plan({"layers": [{"name": "*_proj", "bits": 4, "block": 16, "method": "mse"}], "default": {"bits": 5}})
    plan = plan_of(network(), QuantizeOptions(layers=(Override("layers.0.q_proj", 6),)), file)
    assert settings(plan) == {
        "emb": "8:rtn",
        "layers.0.q_proj": "6b16:mse",
        "layers.0.down_proj": "4b16:mse",
        "model.lm_head": "5:rtn",
    }


def test_layers_that_a_plan_does_not_name_stay_float() -> None:
    plan = plan_of(network(), QuantizeOptions(bits=4), parse_plan({"layers": [{"name": "*lm_head", "bits": 6}]}))
    assert settings(plan)["layers.0.q_proj"] == "float:rtn"
    assert settings(plan)["model.lm_head"] == "6:rtn"
    assert plan.layers[0].why == "not in the plan"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ([], "a plan is a JSON object"),
        ({"layer": []}, "unknown key 'layer' in the plan; did you mean 'layers'?"),
        ({"version": 2, "layers": []}, "version 2"),
        ({"layers": {}, "version": 1}, "'layers' of a plan is a list"),
        ({"layers": [{"bits": 4}]}, "has no name"),
        ({"layers": [{"name": "a", "bit": 4}]}, "unknown key 'bit'; did you mean 'bits'?"),
        ({"layers": [{"name": "a", "bits": 9}]}, "2 to 8"),
        ({"layers": [{"name": "a", "bits": "4"}]}, "'bits' is 2 to 8, or 'float', not '4'"),
        ({"layers": [{"name": "a", "block": 20}]}, "multiple of 16"),
        ({"layers": [{"name": "a", "symmetric": 1}]}, "'symmetric' is true or false"),
        ({"layers": [{"name": "a", "scales": "f16"}]}, "float32, float16"),
        ({"layers": [{"name": "a", "method": "x"}]}, "rtn, mse, gptq"),
        ({"layers": [{"name": "a", "shape": "4x4"}]}, "'shape' of 'a' is a list of whole numbers"),
        ({"damping": "much"}, "'damping' is a number"),
        ({"damping": 0}, "above 0"),
        ({"damping": 10**400}, "above 0, not inf"),
        ({"act_order": 1}, "'act_order' is true or false"),
        ({"layers": [{"name": "nowhere", "bits": 4}]}, "no layer is called 'nowhere'"),
        ({"layers": [{"name": "model.lm_head", "shape": [40, 95]}]}, "the plan is of another model"),
    ],
)
def test_bad_plans_say_what_is_wrong(data: Any, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_of(network(), QuantizeOptions(), parse_plan(data, "p.json"))
    assert problem in str(caught.value)
    assert caught.value.file == "p.json"


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_plan(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text('{"layers": [')
    with pytest.raises(UsageError, match="is not JSON"):
        read_plan(tmp_path / "bad.json")


def test_the_config_of_the_tutorials_is_a_plan(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(TUTORIAL))
    plan = plan_of(network(), QuantizeOptions(bits=4, block=32, method="mse"), read_plan(tmp_path / "c.json"))
    assert {entry.setting for entry in plan.layers} == {Setting(8)}
    assert {entry.why for entry in plan.layers} == {"config"}
    asymmetric = plan_of(
        network(), QuantizeOptions(), parse_plan({**TUTORIAL, "quant_scheme": "asymmetric", "quant_bits": 4})
    )
    assert settings(asymmetric)["model.lm_head"] == "4a:rtn"


@pytest.mark.parametrize("form", ["flat", "layers", "list"])
def test_the_config_of_the_tutorials_by_layers(form: str) -> None:
    layers: dict[str, Any] = {"*_proj": {**TUTORIAL, "quant_bits": 4}, "model.lm_head": {"weight_quant": False}}
    listed = [{"name": name, **entry} for name, entry in layers.items()]
    data = {
        "flat": {**TUTORIAL, **layers},
        "layers": {**TUTORIAL, "layers": layers},
        "list": {**TUTORIAL, "layers": listed},
    }
    assert settings(plan_of(network(), QuantizeOptions(), parse_plan(data[form]))) == {
        "emb": "8:rtn",
        "layers.0.q_proj": "4:rtn",
        "layers.0.down_proj": "4:rtn",
        "model.lm_head": "float:rtn",
    }


def test_layers_alone_leave_the_others_float() -> None:
    plan = plan_of(network(), QuantizeOptions(), parse_plan({"*lm_head": {"quant_bits": 8}}))
    assert settings(plan)["layers.0.q_proj"] == "float:rtn"
    assert settings(plan)["model.lm_head"] == "8:rtn"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"activate_quant": True}, "activations stay float"),
        ({"activate_quant": "yes"}, "'activate_quant' is true or false"),
        ({"quant_bits": 9}, "2 to 8"),
        ({"quant_bits": 8.0}, "'quant_bits' is a whole number"),
        ({"quant_scheme": "sym"}, "'quant_scheme' is one of symmetric, asymmetric"),
        ({"quant_bit": 4}, "unknown key 'quant_bit' for '*'; did you mean 'quant_bits'?"),
        ({"layers": {"x": 8}}, "'x' has 8 where an object"),
        ({"layers": {"*_proj": {"activate_quant": True}}}, "activations stay float"),
    ],
)
def test_bad_configs_say_what_is_wrong(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_plan({**TUTORIAL, **change}, "config.json")
    assert problem in str(caught.value)


def test_a_refused_config_tells_of_dynamic_int8() -> None:
    with pytest.raises(UsageError) as caught:
        parse_plan({**TUTORIAL, "activate_quant": True})
    assert "memory" in (caught.value.hint or "")
