"""Adapters in a version's folder ``adapters``, as PEFT saves them: requests name them."""

import json
import logging
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.backend import dispatcher
from repoagent_llm.builder.safetensors import write_safetensors

from llm.tests.backend.conftest import Asker, WriteModel
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ServingCore
from repoagent.serving.measuring.custom_metrics import REGISTRY

HIDDEN = 64
_TAKES_UP = "takes up its new files and serves on"


def save_adapter(folder: Path, seed: int) -> np.ndarray[Any, Any]:
    """An adapter of the queries of layer 0, rank 2; the same in TensorRT-LLM's form."""
    source = np.random.default_rng(seed)
    a = source.standard_normal((2, HIDDEN)).astype(np.float16).astype(np.float32)
    b = source.standard_normal((HIDDEN, 2)).astype(np.float16).astype(np.float32)
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    write_safetensors(folder / "adapter_model.safetensors", {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b})
    return np.concatenate([a.ravel(), b.ravel()])[np.newaxis].astype(np.float16)


@pytest.fixture
def model(write_llm: WriteModel) -> Path:
    return write_llm()


def test_an_adapter_has_the_name_of_its_folder(core: ServingCore, model: Path) -> None:
    first = save_adapter(model / "1" / "adapters" / "french", 1)
    save_adapter(model / "1" / "adapters" / "german", 2)
    core.load("m")
    asker = Asker(core)
    plain = asker.ask("hello", max_tokens=10).texts()
    french, german = (asker.ask("hello", max_tokens=10, lora_name=name).texts() for name in ("french", "german"))
    assert len({*plain, *french, *german}) == 3
    own: dict[str, Any] = {"lora_task_id": 7, "lora_weights": first, "lora_config": np.array([[1, 0, 2]], np.int32)}
    assert asker.ask("hello", max_tokens=10, **own).texts() == french
    listed = core.model_config("m")["parameters"]["lora_adapters"]["string_value"]
    assert listed == "french,german"
    with pytest.raises(InvalidArgumentError, match="the model has no adapter 'greek'; there are french, german"):
        asker.ask("hello", lora_name="greek").one()
    with pytest.raises(InvalidArgumentError, match="send one of them"):
        asker.ask("hello", lora_name="french", lora_task_id=7).one()


def shown() -> tuple[str, str]:
    """The adapters of requests that run and that wait, as gateways read them."""
    REGISTRY.text()
    (one,) = (each for each in REGISTRY.series("vllm:lora_requests_info") if each.labels["model_name"] == "m")
    return one.labels["running_lora_adapters"], one.labels["waiting_lora_adapters"]


def test_gateways_see_which_run_and_which_wait(
    core: ServingCore, write_llm: WriteModel, tireless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_PERIOD", 0)
    model = write_llm(folder=tireless, max_seq_len=30_000, max_batch_size=1)
    for seed, name in enumerate(("french", "german")):
        save_adapter(model / "1" / "adapters" / name, seed)
    core.load("m")
    asker = Asker(core)
    assert shown() == ("", "")
    wanted: dict[str, Any] = {"max_tokens": 29_000, "end_id": -1, "stream": True}
    requests = [asker.request("hello", lora_name=name, **wanted) for name in ("french", "german")]
    first, second = map(asker.send, requests)
    assert first.first.wait(60)
    assert shown() == ("m:french", "m:german")
    requests[0].cancel()
    assert second.first.wait(60)
    assert shown() == ("m:german", "")
    requests[1].cancel()
    deadline = time.monotonic() + 60
    while shown() != ("", ""):  # It is answered before it is forgotten.
        assert time.monotonic() < deadline


def test_a_model_of_embeddings_lists_none(core: ServingCore, write_llm: WriteModel) -> None:
    """Its requests have no input for the name."""
    save_adapter(write_llm(pooling="mean") / "1" / "adapters" / "french", 1)
    core.load("m")
    assert "lora_adapters" not in core.model_config("m")["parameters"]


def test_the_configuration_may_list_some_of_them(core: ServingCore, write_llm: WriteModel) -> None:
    model = write_llm(lora_adapters="french")
    for seed, name in enumerate(("french", "german")):
        save_adapter(model / "1" / "adapters" / name, seed)
    core.load("m")
    assert Asker(core).ask("hello", max_tokens=3, lora_name="french").texts()
    with pytest.raises(InvalidArgumentError, match="the model has no adapter 'german'; there are french"):
        Asker(core).ask("hello", lora_name="german").one()


def test_one_that_is_listed_and_not_there_refuses_the_load(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(lora_adapters="french")
    with pytest.raises(RepoAgentError, match="'lora_adapters' names 'french'"):
        core.load("m")


def test_one_that_cannot_be_read_refuses_the_load(core: ServingCore, model: Path) -> None:
    save_adapter(model / "1" / "adapters" / "french", 1)
    (model / "1" / "adapters" / "french" / "adapter_model.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(RepoAgentError, match="adapter_model"):
        core.load("m")


def _replace_adapter(folder: Path, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    save_adapter(folder, seed)


def test_a_load_takes_up_new_adapters_while_the_model_serves_on(
    core: ServingCore, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    adapters = model / "1" / "adapters"
    first = save_adapter(adapters / "french", 1)
    save_adapter(adapters / "german", 2)
    core.load("m")
    asker = Asker(core)
    french = asker.ask("hello", max_tokens=10, lora_name="french").texts()
    running = asker.send(asker.request("hello", max_tokens=400, lora_name="french", stream=True))
    _replace_adapter(adapters / "french", 3)
    shutil.rmtree(adapters / "german")
    save_adapter(adapters / "greek", 2)
    core.load("m")
    assert _TAKES_UP in caplog.text
    new = asker.ask("hello", max_tokens=10, lora_name="french").texts()
    assert new != french
    assert asker.ask("hello", max_tokens=10, lora_name="greek").texts() not in (new, french)
    with pytest.raises(InvalidArgumentError, match="no adapter 'german'; there are french, greek"):
        asker.ask("hello", lora_name="german").one()
    assert core.model_config("m")["parameters"]["lora_adapters"]["string_value"] == "french,greek"
    own: dict[str, Any] = {"lora_task_id": 7, "lora_weights": first, "lora_config": np.array([[1, 0, 2]], np.int32)}
    whole = asker.ask("hello", max_tokens=400, **own).texts()
    assert ["hello" + "".join(running.texts())] == whole


def test_adapters_that_cannot_be_read_leave_the_ones_before(core: ServingCore, model: Path) -> None:
    adapters = model / "1" / "adapters"
    save_adapter(adapters / "french", 1)
    core.load("m")
    asker = Asker(core)
    french = asker.ask("hello", max_tokens=10, lora_name="french").texts()
    save_adapter(adapters / "german", 2)
    (adapters / "german" / "adapter_model.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(RepoAgentError, match="adapter_model"):
        core.load("m")
    assert asker.ask("hello", max_tokens=10, lora_name="french").texts() == french
    _replace_adapter(adapters / "german", 2)
    core.load("m")
    assert asker.ask("hello", max_tokens=10, lora_name="german").texts() != french


def test_other_files_that_change_make_another_model(
    core: ServingCore, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    save_adapter(model / "1" / "adapters" / "french", 1)
    core.load("m")
    _replace_adapter(model / "1" / "adapters" / "french", 2)
    (model / "1" / "generation_config.json").write_text('{"temperature": 0.5}')
    core.load("m")
    assert _TAKES_UP not in caplog.text
    assert Asker(core).ask("hello", max_tokens=3, lora_name="french").texts()
