"""Which backend a configuration asks for."""

import importlib.metadata
from collections.abc import Iterator

import pytest

from repoagent.config import (
    ModelConfig,
    backend_of,
    backends,
    executed_by,
    model_filename,
    normalize,
    platform_of,
    read_text,
)
from repoagent.errors import AlreadyExistsError
from repoagent.installing import missing_owner


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


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The entry points of packages that offer backends: file -> backend, with the format of converters."""
    entries: dict[str, str] = {}

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        return [importlib.metadata.EntryPoint(name, value, group) for name, value in entries.items()]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    caches = (backends._installed_filenames, backends.model_filenames)
    for one in caches:
        one.cache_clear()
    yield entries
    for one in caches:
        one.cache_clear()


def test_a_package_brings_the_model_file_of_its_backend_and_comes_before_the_core(installed: dict[str, str]) -> None:
    installed["net.forest"] = "trees:forest"
    assert backend_of(ModelConfig(default_model_filename="net.forest")) == "trees"
    assert normalize(ModelConfig(name="m"), files=["model.onnx", "net.forest"]).backend == "trees"
    assert backends.converter_format(["model.onnx", "net.forest"]) == ("net.forest", "forest")
    assert backends.converter_format(["model.onnx"]) is None


@pytest.mark.parametrize("entry", [("model.onnx", "mine"), ("mine.bin", "onnxruntime")])
def test_a_package_takes_no_model_file_and_no_backend_of_the_core(
    installed: dict[str, str], entry: tuple[str, str]
) -> None:
    installed[entry[0]] = entry[1]
    with pytest.raises(AlreadyExistsError, match=f"'{entry[0]}'.*has an owner"):
        backends.model_filenames()


def test_a_file_of_a_backend_that_is_not_installed_is_named_with_its_pip_line() -> None:
    assert missing_owner(["genai_config.json"], ["model.onnx", "genai_config.json"]) == ""
    assert missing_owner(["model.onnx"], ["model.onnx"]) == ""
    text = missing_owner(["genai_config.json", "model.onnx"], ["model.onnx"])
    assert "the backend 'llm' runs" in text
    assert "pip install" in text
