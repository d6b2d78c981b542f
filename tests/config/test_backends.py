"""Which backend a configuration asks for."""

import pytest

from repoagent.config import backend_of, model_filename, read_text


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
