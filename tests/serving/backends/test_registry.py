from typing import Any

import pytest

from repoagent.errors import AlreadyExistsError, InternalError, InvalidArgumentError
from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from repoagent.serving.backends.registry import BackendRegistry


def test_the_built_in_backend_is_there_and_made_once() -> None:
    registry = BackendRegistry(settings={"onnxruntime": {"default-max-batch-size": "16"}})
    backend = registry.get("onnxruntime")
    assert isinstance(backend, OnnxRuntimeBackend)
    assert registry.get("onnxruntime") is backend


def test_an_unknown_backend_is_told_with_those_that_there_are() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match="unable to find backend 'tensorflow'; available are onnxruntime, python, tensorrt",
    ):
        BackendRegistry().get("tensorflow")


def test_a_backend_of_a_package_that_is_not_installed_names_the_command_that_installs_it() -> None:
    with pytest.raises(InvalidArgumentError, match=r"in the package repoagent-llm.*: pip install \./llm$"):
        BackendRegistry().get("llm")


def test_a_typo_in_a_backend_is_told_what_it_may_mean() -> None:
    with pytest.raises(InvalidArgumentError, match=r"; did you mean 'onnxruntime'\?$"):
        BackendRegistry().get("onnxruntme")


def test_settings_that_mean_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    registry = BackendRegistry(settings={"pyton": {}, "onnxruntime": {"default-batch-size": "16"}})
    registry.get("onnxruntime")
    assert [record.getMessage() for record in caplog.records] == [
        "--backend-config has settings of 'pyton', and no such backend is here; did you mean 'python'?",
        (
            "--backend-config=onnxruntime,default-batch-size has no effect: there is no such setting; "
            "did you mean 'default-max-batch-size'?"
        ),
    ]


def test_settings_for_all_backends_reach_each_one_that_does_not_set_them(caplog: pytest.LogCaptureFixture) -> None:
    everywhere = {"default-max-batch-size": "many", "no-such-setting": "1"}
    with pytest.raises(InvalidArgumentError, match="default-max-batch-size must be a whole number, not 'many'"):
        BackendRegistry(settings={"": everywhere}).get("onnxruntime")
    registry = BackendRegistry(settings={"": everywhere, "onnxruntime": {"default-max-batch-size": "8"}})
    registry.get("onnxruntime")
    registry.get("python")
    assert caplog.records == []


def test_a_plugin_offers_a_backend_by_its_target() -> None:
    target = "repoagent.serving.backends.onnxruntime.backend:OnnxRuntimeBackend"
    registry = BackendRegistry({"mine": target})
    assert {"mine", "onnxruntime", "python"} <= set(registry.names())
    assert isinstance(registry.get("mine"), OnnxRuntimeBackend)


def test_a_plugin_that_cannot_be_imported_fails_the_models_that_need_it() -> None:
    with pytest.raises(InternalError, match=r"backend 'mine' \(no_such_module:Backend\) cannot be imported"):
        BackendRegistry({"mine": "no_such_module:Backend"}).get("mine")


def test_two_backends_of_one_name_are_refused(scripted: Any) -> None:
    with pytest.raises(AlreadyExistsError, match=r"built in .* and also offered by a plug-in"):
        BackendRegistry({"onnxruntime": "mine:Backend"})
    with pytest.raises(AlreadyExistsError):
        BackendRegistry().add("onnxruntime", scripted)


def test_a_backend_whose_models_call_others_is_told_of_the_core(scripted: Any) -> None:
    told: list[object] = []
    scripted.bind = told.append
    registry, core = BackendRegistry(), object()
    registry.add("scripted", scripted)
    registry.bind(core)
    assert told == [core]
    later = BackendRegistry()
    later.bind(core)
    later.add("scripted", scripted)
    assert told == [core, core]
