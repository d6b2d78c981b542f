"""The kind of a model is found by its content: one line in the configuration is enough."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from repoagent.config import read_text
from repoagent.testing import Outcome

pytestmark = pytest.mark.slow

STORE = np.load(Path(__file__).parents[3] / "tests/converters/trees/data/models.npz")
Load = Callable[..., Outcome]
Save = Callable[..., Path]


def put(root: Path, path: str, name: str) -> Any:
    """Write the recorded file ``name``; its rows."""
    place = root / "source" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(bytes(STORE[f"{name}/file"]))
    return STORE[f"{name}/rows"]


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


def test_each_version_may_have_another_file(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/old.ubj", "xgb-binary-logistic.ubj")
    put(tmp_path, "2/new.json", "xgb-dart.json")
    assert {"1/model.onnx", "2/model.onnx"} <= load("", names="mlserver").files.keys()


def test_an_onnx_model_is_optimised_as_before(
    tmp_path: Path, load: Load, save: Save, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    put(tmp_path, "1/other.ubj", "xgb-binary-logistic.ubj")
    stated = json.loads(read_text(load("").config).parameters["repoagent_convert"].string_value)
    assert (stated["from"], stated["to"]) == ("onnx", "optimized")


def test_several_models_are_refused_with_their_names(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/a.ubj", "xgb-binary-logistic.ubj")
    put(tmp_path, "1/b.txt", "lgb-binary.txt")
    both = r"1 has a.ubj \(xgboost\) and b.txt \(lightgbm\); the parameter 'input' names the one to convert"
    assert re.search(both, str(load("").error))
    for parameters in ({"input": "b.txt"}, {"from": "lightgbm"}, {"to": "onnx", "input": "a.ubj"}):
        assert load("", **parameters).loaded, parameters


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


def test_versions_of_different_kinds_are_refused(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/model.ubj", "xgb-binary-logistic.ubj")
    put(tmp_path, "2/model.txt", "lgb-binary.txt")
    assert re.search(r"the versions are of different kinds \(1 is xgboost, 2 is lightgbm\)", str(load("").error))


def test_the_report_states_what_was_compared(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/model.ubj", "xgb-binary-logistic.ubj")
    notes = load("").report.entries[0].actions[0].notes
    assert "1/model.ubj: objective binary:logistic" in notes
    assert any("compared" in note and "xgboost" in note for note in notes)


def test_a_damaged_model_is_refused_with_its_name(tmp_path: Path, load: Load) -> None:
    put(tmp_path, "1/model.ubj", "xgb-binary-logistic.ubj")
    place = tmp_path / "source/1/model.ubj"
    place.write_bytes(place.read_bytes()[:-50])
    assert re.search(r"1/model.ubj: is not a model of XGBoost, or is damaged: is cut off", str(load("").error))
