from typing import Any

import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import CancelledError, InvalidArgumentError
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.versions.model_builder import BuildError, ModelBuilder


@pytest.fixture
def builder() -> ModelBuilder:
    return ModelBuilder(BackendRegistry())


def build(builder: ModelBuilder, config: ModelConfig, files: Any) -> Any:
    return builder.build("m", config, files, builder.plan("m", config, files)).versions


def test_a_model_without_a_configuration_is_completed_from_its_file(
    builder: ModelBuilder, memory_files: Any, add_constant: Any, request_of: Any
) -> None:
    files = memory_files({"1/model.onnx": add_constant(1)})
    served = build(builder, builder.configuration("m", None), files)[1]
    config = served.config
    assert (config.name, config.backend, config.platform) == ("m", "onnxruntime", "onnxruntime_onnx")
    assert (config.max_batch_size, config.default_model_filename) == (4, "model.onnx")
    assert list(config.dynamic_batching.preferred_batch_size) == [4]
    np.testing.assert_array_equal(served.infer(request_of()).outputs["y"].array, [[2, 3, 4, 5]])
    served.close()


def test_a_server_that_is_strict_wants_a_configuration(memory_files: Any, add_constant: Any) -> None:
    strict = ModelBuilder(BackendRegistry(), strict=True)
    with pytest.raises(InvalidArgumentError, match=r"has no config.pbtxt, which strict_model_config requires"):
        strict.configuration("m", None)
    files = memory_files({"1/model.onnx": add_constant(1)})
    with pytest.raises(BuildError):
        build(strict, read_text('backend: "onnxruntime" max_batch_size: 4'), files)


def test_a_model_of_no_known_kind_is_told_with_what_lies_there(builder: ModelBuilder, memory_files: Any) -> None:
    with pytest.raises(BuildError, match=r"must specify 'platform' or 'backend'.*version directory 1 \(weights.bin\)"):
        build(builder, builder.configuration("m", None), memory_files({"1/weights.bin": b""}))


@pytest.mark.parametrize(
    ("file", "way"),
    [
        ("model.skops", "scikit-learn model.*zipmap"),
        ("clf.pkl", "pickle.*skl2onnx"),
        ("model.ubj", 'XGBoost.*name the agent: model_repository_agents { agents { name: "convert" } }'),
        ("model.json", "XGBoost"),
        ("model.lgb", "LightGBM"),
        ("model.cbm", "CatBoost.*format='onnx'"),
        ("model.pt", r"PyTorch.*torch\.onnx\.export"),
        ("model.pt2", "PyTorch program"),
        ("model.keras", r"Keras.*model\.export"),
        ("saved_model.pb", "SavedModel.*tf2onnx"),
        ("MLmodel", "MLflow"),
        ("llama.gguf", "GGUF.*decoder"),
        ("other.onnx", "default_model_filename"),
    ],
)
def test_a_model_of_another_framework_is_refused_with_what_to_do(
    builder: ModelBuilder, memory_files: Any, file: str, way: str
) -> None:
    """U4: nothing named the way."""
    with pytest.raises(BuildError, match=rf"version directory 1 of model 'm' holds an? .*{way}.*\({file}; docs"):
        build(builder, builder.configuration("m", None), memory_files({f"1/{file}": b"x"}))


def test_an_unknown_backend_is_told_with_those_that_there_are(builder: ModelBuilder, memory_files: Any) -> None:
    with pytest.raises(BuildError, match=r"unable to find backend 'nosuch'; available are .*onnxruntime, python"):
        build(builder, read_text('backend: "nosuch"'), memory_files({"1/x": b""}))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('input { name: "x" allow_ragged_batch: true }', "ragged batches without max_batch_size"),
        (
            'max_batch_size: 2 sequence_batching { } input { name: "x" allow_ragged_batch: true }',
            "ragged batches with sequence_batching",
        ),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(
    builder: ModelBuilder, memory_files: Any, text: str, named: str
) -> None:
    with pytest.raises(BuildError, match=f"Unsupported: model 'm' asks for {named}"):
        build(builder, read_text(f'backend: "onnxruntime" {text}'), memory_files({"1/model.onnx": b""}))


def test_a_model_that_fails_its_warm_up_is_not_loaded(
    builder: ModelBuilder, memory_files: Any, add_constant: Any
) -> None:
    text = """
    backend: "onnxruntime"
    model_warmup {
      name: "first"
      batch_size: 1
      inputs { key: "x" value: { data_type: TYPE_FP32 dims: [ 5 ] zero_data: true } }
    }
    """
    with pytest.raises(BuildError, match="failed to run warmup sample 'first'"):
        build(builder, read_text(text), memory_files({"1/model.onnx": add_constant(1)}))


def test_a_cancelled_build_leaves_nothing_loaded(builder: ModelBuilder, scripted: Any, memory_files: Any) -> None:
    builder.registry.add("scripted", scripted)
    files = memory_files({"1/model.txt": b"1", "2/model.txt": b"2"})
    config = read_text('backend: "scripted" version_policy { all {} }')
    with pytest.raises(CancelledError):
        builder.build("m", config, files, [1, 2], cancelled=lambda: scripted.models_open == 1)
    assert scripted.models_open == 0


def test_instances_share_one_version(builder: ModelBuilder, scripted: Any, memory_files: Any) -> None:
    builder.registry.add("scripted", scripted)
    config = read_text('backend: "scripted" instance_group { count: 3 kind: KIND_CPU }')
    (served,) = build(builder, config, memory_files({"1/model.txt": b"1"})).values()
    assert (len(scripted.runners), scripted.models_open) == (3, 1)
    served.close()
    assert all(runner.closed for runner in scripted.runners)


@pytest.mark.parametrize("batching", ["", "dynamic_batching { }"])
def test_whichever_instance_executes_the_scheduler_learns_how_long_it_took(
    builder: ModelBuilder, memory_files: Any, add_constant: Any, request_of: Any, batching: str
) -> None:
    text = f'backend: "onnxruntime" max_batch_size: 4 {batching} instance_group {{ count: 3 kind: KIND_CPU }}'
    served = build(builder, read_text(text), memory_files({"1/model.onnx": add_constant(1)}))[1]
    run_time = served._scheduler._run_time
    before = run_time.usual_ns
    served.infer(request_of())
    assert run_time.usual_ns != before
    served.close()


def test_a_file_that_is_called_as_a_version_is_none(
    builder: ModelBuilder, memory_files: Any, add_constant: Any
) -> None:
    files = memory_files({"1/model.onnx": add_constant(1), "2": b""})
    assert builder.plan("m", ModelConfig(), files) == [1]


def test_an_instance_on_a_gpu_that_its_backend_does_not_have_is_refused_before_the_files_are_loaded(
    builder: ModelBuilder, memory_files: Any
) -> None:
    config = read_text("""
backend: "onnxruntime" input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [4] }
instance_group { kind: KIND_GPU gpus: [0] }
""")
    with pytest.raises(BuildError, match="has kind KIND_GPU but no GPUs are available"):
        build(builder, config, memory_files({"1/model.onnx": b"never read"}))
