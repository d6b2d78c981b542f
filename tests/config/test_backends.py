"""Which backend a configuration asks for."""

import pytest

from repoagent.config import backend_of, executed_by, model_filename, platform_of, read_text


@pytest.mark.parametrize(
    ("text", "backend", "filename"),
    [
        ('backend: "onnxruntime"', "onnxruntime", "model.onnx"),
        ('platform: "onnxruntime_onnx"', "onnxruntime", "model.onnx"),
        ('platform: "tensorrt_plan"', "tensorrt", "model.plan"),
        ('platform: "pytorch_libtorch"', "pytorch", "model.pt"),
        ('platform: "ensemble"', "ensemble", ""),
        ('backend: "python" default_model_filename: "m.py"', "python", "m.py"),
        ('default_model_filename: "model.onnx"', "onnxruntime", "model.onnx"),
        ('backend: "my_own"', "my_own", ""),
        ('platform: "nonsense" default_model_filename: "model.onnx"', "", "model.onnx"),
        ("", "", ""),
    ],
)
def test_backend_and_file_follow_from_what_the_config_says(text: str, backend: str, filename: str) -> None:
    config = read_text(text)
    assert (backend_of(config), model_filename(config)) == (backend, filename)


@pytest.mark.parametrize(
    ("text", "executor", "platform"),
    [
        ("", "", ""),
        ('platform: "onnxruntime_onnx"', "onnxruntime", "onnxruntime_onnx"),
        ('backend: "onnxruntime"', "onnxruntime", "onnxruntime_onnx"),
        ('default_model_filename: "model.onnx"', "onnxruntime", "onnxruntime_onnx"),
        ('backend: "python"', "python", "python"),
        ('backend: "python" platform: "onnxruntime_onnx"', "python", "python"),
        ('backend: "tensorflow" platform: "tensorflow_savedmodel"', "tensorflow", "tensorflow_savedmodel"),
        ('platform: "unheard of"', "", "unheard of"),
        ('platform: "ensemble"', "ensemble", "ensemble"),
        ('backend: "ensemble"', "ensemble", "ensemble"),
        ('backend: "onnxruntime" ensemble_scheduling { step { model_name: "a" } }', "ensemble", "ensemble"),
    ],
)
def test_the_platform_follows_from_the_backend(text: str, executor: str, platform: str) -> None:
    config = read_text(text)
    assert (executed_by(config), platform_of(config)) == (executor, platform)
