"""The kind of a model is found by its content: one line in the configuration is enough."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import repoagent_llm.plugin
from repoagent_convert import plugin
from repoagent_convert.agent import PARAMETERS, PROVENANCE, copy_others, find_versions, parameters_of

from repoagent.api import InvalidArgumentError, ModelConfig, UnsafePathError, UnsupportedError
from repoagent.config import read_text
from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.loader.converting import registry
from repoagent.loader.converting.registry import resolve
from repoagent.testing import Outcome

STORE = np.load(Path(__file__).with_name("trees") / "data/models.npz")
Load = Callable[..., Outcome]
Save = Callable[..., Path]


def put(root: Path, path: str, name: str) -> Any:
    """Write the recorded file ``name``; its rows."""
    place = root / "source" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(bytes(STORE[f"{name}/file"]))
    return STORE[f"{name}/rows"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("model.bst", "xgb-binary-logistic.ubj", "xgboost"),
        ("model.bst", "xgb-binary-logistic.json", "xgboost"),
        ("model.onnx", "xgb-binary-logistic.ubj", "xgboost"),
        ("forest", "lgb-binary.txt", "lightgbm"),
    ],
)
def test_one_line_serves_a_model_whatever_its_file_is_called(
    tmp_path: Path, load: Load, file: str, name: str, kind: str
) -> None:
    rows = put(tmp_path, f"1/{file}", name)
    (tmp_path / "source/1/labels.txt").write_text("no\nyes\n")
    outcome = load("")
    assert sorted(outcome.files) == ["1/labels.txt", "1/model.onnx", "1/model.onnx.intoto.json", "config.pbtxt"]
    session = ort.InferenceSession(outcome.files["1/model.onnx"], providers=["CPUExecutionProvider"])
    answers = session.run(None, {"input": rows})[1][:, 1]
    assert np.abs(answers - STORE[f"{name}/answers"]).max() < 1e-6
    config: Any = read_text(outcome.config)
    assert (config.backend, config.max_batch_size) == ("onnxruntime", 1024)
    assert [one.name for one in (*config.input, *config.output)] == ["input", "label", "probabilities"]
    stated = json.loads(config.parameters["repoagent_convert"].string_value)
    assert (stated["from"], stated["to"]) == (kind, "onnx")


@pytest.mark.slow
def test_each_version_may_have_another_file(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/old.ubj", "xgb-binary-logistic.ubj")
    put(tmp_path, "2/new.json", "xgb-dart.json")
    assert {"1/model.onnx", "2/model.onnx"} <= load("", names="mlserver").files.keys()


@pytest.mark.slow
def test_for_a_file_that_is_onnx_no_other_converter_is_imported(
    load: Load, save: Save, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    save(perceptron)
    watched = Mock(side_effect=resolve)
    monkeypatch.setattr(registry, "resolve", watched)
    assert load("").loaded
    assert {call.args for call in watched.call_args_list} == {(BUILT_IN_CONVERTERS["onnx", "optimized"],)}


@pytest.mark.slow
def test_an_onnx_model_is_optimised_as_before(
    tmp_path: Path, load: Load, save: Save, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    put(tmp_path, "1/other.ubj", "xgb-binary-logistic.ubj")
    stated = json.loads(read_text(load("").config).parameters["repoagent_convert"].string_value)
    assert (stated["from"], stated["to"]) == ("onnx", "optimized")


@pytest.mark.slow
def test_several_models_are_refused_with_their_names(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/a.ubj", "xgb-binary-logistic.ubj")
    put(tmp_path, "1/b.txt", "lgb-binary.txt")
    both = r"1 has a.ubj \(xgboost\) and b.txt \(lightgbm\); the parameter 'input' names the one to convert"
    assert re.search(both, str(load("").error))
    for parameters in ({"input": "b.txt"}, {"from": "lightgbm"}, {"to": "onnx", "input": "a.ubj"}):
        assert load("", **parameters).loaded, parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, r"1/model.onnx: no such file; the parameter 'input' names the model file"),
        ({"to": "onnx"}, r"no file is of a kind that becomes onnx \(.*xgboost.*\); 'from' and 'input' name it"),
        ({"from": "xgboost"}, r"no file is of a kind that becomes onnx \(xgboost\)"),
    ],
)
def test_what_is_of_no_known_kind_is_refused(tmp_path: Path, load: Load, parameters: dict[str, str], text: str) -> None:
    (tmp_path / "source/1").mkdir(parents=True)
    (tmp_path / "source/1/model.ubj").write_bytes(b"{not a model")
    assert re.search(text, str(load("", **parameters).error))


@pytest.mark.slow
def test_versions_of_different_kinds_are_refused(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/model.ubj", "xgb-binary-logistic.ubj")
    put(tmp_path, "2/model.txt", "lgb-binary.txt")
    assert re.search(r"the versions are of different kinds \(1 is xgboost, 2 is lightgbm\)", str(load("").error))


@pytest.mark.slow
def test_the_report_states_what_was_compared(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/model.ubj", "xgb-binary-logistic.ubj")
    notes = load("").report.entries[0].actions[0].notes
    assert "1/model.ubj: objective binary:logistic" in notes
    assert any("compared" in note and "xgboost" in note for note in notes)


@pytest.mark.slow
def test_a_damaged_model_is_refused_with_its_name(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/model.ubj", "xgb-binary-logistic.ubj")
    place = tmp_path / "source/1/model.ubj"
    place.write_bytes(place.read_bytes()[:-50])
    assert re.search(r"1/model.ubj: is not a model of XGBoost, or is damaged: is cut off", str(load("").error))


# Finding versions, and making a new repository of what is not replaced.


def test_versions_are_found_in_order_of_number(tmp_path: Path) -> None:
    for name in ("10", "2", "1", "00", "01", "x1", "configs", "²"):
        (tmp_path / name).mkdir()
    assert find_versions(tmp_path) == ["1", "2", "10"]


def test_a_model_without_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no version directory"):
        find_versions(tmp_path)


def test_a_version_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePathError, match=r"^1 is a symbolic link"):
        find_versions(tmp_path)


def test_everything_else_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "1" / "deep").mkdir(parents=True)
    (source / "2").mkdir()
    target.mkdir()
    for name in ("config.pbtxt", "1/labels.txt", "1/deep/.hidden", "1/model.onnx"):
        (source / name).write_bytes(b"1234")
    assert copy_others(source, target, {"1/model.onnx"}) == 12
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert found == ["1", "1/deep", "1/deep/.hidden", "1/labels.txt", "2", "config.pbtxt"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_special_file_is_not_copied(tmp_path: Path, kind: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    if kind == "link":
        (tmp_path / "source" / "x").symlink_to("/etc/hostname")
    else:
        os.mkfifo(tmp_path / "source" / "x")
    with pytest.raises(UnsafePathError, match=r"^x is a link or a special file"):
        copy_others(tmp_path / "source", tmp_path / "target", ())


# Triton's way of asking for TensorRT is understood.


def _config(name: str = "tensorrt", **parameters: str) -> ModelConfig:
    config = ModelConfig()
    one = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name=name)
    one.parameters.update(parameters)
    return config


def test_nothing_is_taken_from_a_configuration_that_does_not_ask() -> None:
    assert parameters_of(None) == parameters_of(ModelConfig()) == parameters_of(_config("cuda")) == {}


def test_parameters_are_translated() -> None:
    given = {"max_workspace_size_bytes": "1000", "trt_profile_min_shapes": "x:1x8", "precision_mode": "FP32"}
    wanted = {"to": "tensorrt", "workspace": "1000", "min_shapes": "x:1x8"}
    assert parameters_of(_config(**given, trt_engine_cache_enable="1")) == wanted


def test_other_numbers_than_those_of_the_model_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="precision_mode 'FP16' is not possible: plans are strongly typed"):
        parameters_of(_config(precision_mode="FP16"))


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="tensorrt has no parameter 'sped'; there are max_cached_engines"):
        parameters_of(_config(sped="1"))


# The README keeps up with the code.

README = (Path(__file__).parents[1] / "README.md").read_text()
CONVERTERS = {**BUILT_IN_CONVERTERS, **plugin.register_converters(), **repoagent_llm.plugin.register_converters()}
OPTIONS = {name for target in CONVERTERS.values() for name in resolve(target).options}


@pytest.mark.parametrize("name", [*PARAMETERS, *sorted(OPTIONS), "basic", "extended", "all", PROVENANCE])
def test_every_parameter_and_level_is_documented(name: str) -> None:
    assert f"`{name}`" in README
