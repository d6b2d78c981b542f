"""The agent as a server calls it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from repoagent_convert import ConvertAgent, agent

from repoagent.api import Action, CancelledError, InvalidArgumentError, UnsafePathError

Save = Callable[..., Path]


def load(model: Any) -> Any:
    ConvertAgent().model_action(model.as_model(), Action.LOAD)
    return model


def names(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def run(path: Path) -> Any:
    x = np.arange(16, dtype="float32").reshape(2, 8)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_every_version_is_replaced_and_the_rest_is_kept(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    first = save(perceptron)
    save(perceptron, "2/model.onnx", data="weights.bin")
    (first.parents[1] / "labels.txt").write_bytes(b"a\n")
    before = {name: (first.parents[1] / name).read_bytes() for name in names(first.parents[1])}
    model = load(make_load())
    assert model.location == model.target
    assert names(model.target) == ["1/model.onnx", "2/model.onnx", "2/model.onnx.data", "labels.txt"]
    for version in ("1", "2"):
        np.testing.assert_allclose(run(model.target / version / "model.onnx"), run(first), rtol=1e-5)
    assert {name: (first.parents[1] / name).read_bytes() for name in names(first.parents[1])} == before
    assert model.size_hint == sum(map(len, before.values()))


def test_the_report_says_what_was_done(save: Save, make_load: Any, perceptron: "onnx.ModelProto") -> None:
    size = save(perceptron).stat().st_size
    made = load(make_load()).reports[-1]
    again = load(make_load()).reports[-1]
    assert made["bytes_read"] == again["bytes_read"] == size
    assert made["bytes_written"] > 0
    assert again["bytes_written"] == 0
    assert made["digests"] == again["digests"]
    version = ort.__version__
    assert made["note"] == f"1/model.onnx: level extended, ONNX Runtime {version}, built"
    assert again["note"] == f"1/model.onnx: level extended, ONNX Runtime {version}, from the cache"


def test_a_result_is_kept_for_the_next_load_of_the_same_content(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    save(perceptron, "2/model.onnx")
    cache = load(make_load()).cache
    load(make_load())
    assert len(set(cache.keys)) == 1
    load(make_load(("level", "basic")))
    load(make_load(("keep_original", "true")))
    perceptron.producer_name = "another"
    save(perceptron)
    load(make_load())
    assert len(set(cache.keys)) == 4


def test_a_confidential_model_is_optimised_in_its_own_location_and_not_kept(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto", tmp_path: Path
) -> None:
    source = save(perceptron)
    model = make_load()
    model.cache.confidential = True
    load(model)
    np.testing.assert_allclose(run(model.target / "1" / "model.onnx"), run(source), rtol=1e-5)
    assert not (tmp_path / "cache").exists()
    assert model.reports[-1]["note"].endswith("built, not kept: no cache in a confidential load")
    assert model.reports[-1]["bytes_written"] == (model.target / "1" / "model.onnx").stat().st_size


def test_the_configuration_says_what_was_done_and_keeps_the_rest(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    model = make_load()
    model.config.parameters["mine"].string_value = "stays"
    config = load(model).written
    assert config.parameters["mine"].string_value == "stays"
    assert config.default_model_filename == ""
    assert config.backend == "onnxruntime"
    provenance = json.loads(config.parameters["repoagent_convert"].string_value)
    assert provenance["level"] == "extended"
    assert provenance["onnxruntime"] == ort.__version__
    assert len(provenance["sha256"]["1"]) == 64


@pytest.mark.parametrize("data", [None, "weights.bin"])
def test_the_original_can_be_kept_beside_the_result(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto", data: str | None
) -> None:
    source = save(perceptron, data=data)
    model = load(make_load(("keep_original", "true")))
    kept = ["1/model.onnx", "1/model.optimized.onnx"]
    assert names(model.target) == ([*kept, "1/model.optimized.onnx.data", "1/weights.bin"] if data else kept)
    assert (model.target / "1" / "model.onnx").read_bytes() == source.read_bytes()
    assert model.written.default_model_filename == "model.optimized.onnx"
    np.testing.assert_allclose(run(model.target / "1" / "model.optimized.onnx"), run(source), rtol=1e-5)


def test_the_file_name_comes_from_the_parameter_else_from_the_configuration(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron, "1/a.onnx")
    save(perceptron, "1/b.onnx")
    model = make_load()
    model.config.default_model_filename = "a.onnx"
    assert load(model).written.default_model_filename == "a.onnx"
    model = make_load(("input", "b.onnx"))
    assert load(model).written.default_model_filename == "b.onnx"


def test_a_model_that_is_a_directory_becomes_a_file(save: Save, make_load: Any, perceptron: "onnx.ModelProto") -> None:
    source = save(perceptron, "1/model.onnx/model.onnx", data="weights.bin")
    model = load(make_load())
    assert names(model.target) == ["1/model.onnx", "1/model.onnx.data"]
    np.testing.assert_allclose(run(model.target / "1" / "model.onnx"), run(source), rtol=1e-5)


def test_a_large_model_gets_external_weights(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    save(perceptron)
    monkeypatch.setattr(agent, "EXTERNAL_ABOVE", 1000)
    assert names(load(make_load()).target) == ["1/model.onnx", "1/model.onnx.data"]


def test_a_file_in_the_way_of_the_result_is_not_overwritten(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron).with_name("model.optimized.onnx").write_bytes(b"mine")
    with pytest.raises(InvalidArgumentError, match=r"into 1/model.optimized.onnx, but the model has such a file"):
        load(make_load(("keep_original", "true")))


@pytest.mark.parametrize(("field", "value"), [("backend", "tensorrt"), ("platform", "pytorch_libtorch")])
def test_a_model_of_another_backend_is_refused(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto", field: str, value: str
) -> None:
    save(perceptron)
    model = make_load()
    setattr(model.config, field, value)
    with pytest.raises(InvalidArgumentError, match=f"the configuration says '{value}'"):
        load(model)


def test_without_a_configuration_none_is_written_as_nothing_in_it_would_differ(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    save(perceptron)
    model = load(make_load(config=None))
    assert model.written is None
    assert names(model.target) == ["1/model.onnx"]


def test_a_broken_model_is_one_clear_message_and_leaves_nothing_in_the_cache(
    save: Save, make_load: Any, perceptron: "onnx.ModelProto"
) -> None:
    path = save(perceptron)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidArgumentError, match=r"^1/model.onnx is not an ONNX model, or it is cut off"):
        load(make_load())


def test_a_file_name_in_the_configuration_may_not_leave_the_version(make_load: Any) -> None:
    model = make_load()
    model.config.default_model_filename = "../model.onnx"
    with pytest.raises(UnsafePathError, match="default_model_filename"):
        load(model)


def test_a_cancelled_load_is_given_up(save: Save, make_load: Any, perceptron: "onnx.ModelProto") -> None:
    save(perceptron)
    with pytest.raises(CancelledError):
        load(make_load(cancelled=True))


@pytest.mark.parametrize("action", [action for action in Action if action is not Action.LOAD])
def test_every_other_action_does_nothing(make_load: Any, action: Action) -> None:
    model = make_load(("nonsense", ""))
    ConvertAgent().model_action(model.as_model(), action)
    assert model.location is None
