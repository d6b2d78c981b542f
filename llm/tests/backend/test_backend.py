"""Loading: what is missing or broken is named, and nothing is imported before it is needed."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm.backend.backend import LlmBackend

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.audit import Actor
from repoagent.errors import InvalidArgumentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore


def failure(core: ServingCore) -> str:
    with pytest.raises(Exception, match="load failed for model 'm'") as caught:
        core.load("m")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("genai_config.json", "unable to find '1/genai_config.json' for model 'm': a version directory holds"),
        ("tokenizer.json", "unable to find '1/tokenizer.json': put the model's tokenizer beside its decoder"),
        ("model.onnx", "model.onnx"),
    ],
)
def test_a_missing_file_is_named(core: ServingCore, write_llm: WriteModel, name: str, error: str) -> None:
    (write_llm() / "1" / name).unlink()
    assert error in failure(core)


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "1.5", "9" * 5000])
def test_a_share_of_the_cores_is_a_number(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="models-at-once must be a whole number above 0"):
        LlmBackend({"models-at-once": text})
    with pytest.raises(InvalidArgumentError, match="kv-cache-directory-bytes must be a whole number above 0"):
        LlmBackend({"kv-cache-directory-bytes": text})
    LlmBackend({"models-at-once": "3"})
    with pytest.raises(InvalidArgumentError, match="salt-by-client must be 'true' or 'false', not"):
        LlmBackend({"salt-by-client": text})


@pytest.mark.parametrize("setting", ["true", "false"])
def test_clients_reuse_no_prompts_of_each_other(tmp_path: Path, write_llm: WriteModel, setting: str) -> None:
    """How fast an answer comes would show that another client sent the same prompt."""
    write_llm()
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        backend_config={"llm": {"salt-by-client": setting}},
    )
    with ServingCore(options) as core:
        core.load("m")

        def cached(client: str) -> int:
            request = Asker(core).request("hello world " * 12, max_tokens=1, return_num_cached_tokens=True)
            request.asker = Actor("on-demand", client) if client else None
            return int(Asker(core).send(request).one().outputs["num_cached_tokens"].array.item())

        found = [cached(client) > 0 for client in ("one", "one", "two", "two", "", "")]
        assert found == [False, True, setting == "false", True, setting == "false", True]


def test_a_broken_configuration_of_the_decoder_is_named(core: ServingCore, write_llm: WriteModel) -> None:
    path = write_llm() / "1" / "genai_config.json"
    path.write_text(json.dumps({"model": {}}))
    assert "genai_config.json: the key 'model.decoder' is missing" in failure(core)


@pytest.mark.parametrize("package", ["tokenizers", "onnx"])
def test_a_missing_package_is_named_with_the_extra(
    core: ServingCore, write_llm: WriteModel, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    find = importlib.util.find_spec

    def without(name: str, *args: Any) -> Any:
        return None if name == package else find(name, *args)

    monkeypatch.setattr("repoagent_llm.backend.backend.find_spec", without)
    write_llm()
    assert f"backend 'llm' needs {package}; from a checkout: pip install '.[llm]'" in failure(core)


def test_a_configuration_of_other_tensors_is_refused(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(config='input { name: "INPUT0" data_type: TYPE_STRING dims: [1] }')
    assert "input 'INPUT0' is not one of a language model" in failure(core)


def test_an_instance_on_a_gpu_is_refused(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(config="instance_group { kind: KIND_GPU gpus: [0] }")
    assert "has kind KIND_GPU but no GPUs are available" in failure(core)


def test_several_instances_share_the_executor(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(config="instance_group { count: 3 kind: KIND_CPU }")
    core.load("m")
    asker = Asker(core)
    answers = [asker.ask("hello", max_tokens=4) for _ in range(9)]
    assert len({text for item in answers for text in item.texts()}) == 1


def test_an_unloaded_model_takes_its_gauges_along(asker: Asker) -> None:
    from repoagent.serving.measuring.custom_metrics import REGISTRY

    assert [text for text in REGISTRY.text().splitlines() if 'model="m"' in text and "nv_trt_llm" in text]
    asker.core.unload("m", wait=True)
    assert "nv_trt_llm" not in REGISTRY.text()


@pytest.mark.slow
def test_the_executor_is_imported_when_a_model_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from repoagent.serving.backends.registry import BackendRegistry; from repoagent_llm import plugin;"
        "BackendRegistry(plugin.register_backends()).get('llm').gpus();"
        "print(sorted(name for name in sys.modules if name == 'repoagent_llm.engine'"
        " or name.split('.')[0] in ('onnx', 'tokenizers', 'llguidance')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "[]"
