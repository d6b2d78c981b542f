"""Loads with a configuration or files in the request."""

from typing import Any

import pytest

from repoagent.errors import (
    InternalError,
    InvalidArgumentError,
)
from tests.serving.core_kit import CoreMaker, ModelWriter, RequestMaker, first


def test_a_configuration_given_with_the_load_replaces_the_file(
    new_core: CoreMaker, write_model: ModelWriter, loader: Any
) -> None:
    write_model("m", {1: "1"})
    core = new_core()
    core.load("m", config='{"backend": "scripted", "instance_group": [{"count": "3", "kind": "KIND_CPU"}]}')
    assert core.model_config("m")["instance_group"][0]["count"] == 3
    core.load("m", config=b'{"backend": "scripted", "instance_group": [{"count": 3, "kind": "KIND_CPU"}]}')
    assert loader.trace == ["m1 LOAD", "m1 LOAD_COMPLETE"]
    core.load("m")
    assert core.model_config("m")["instance_group"][0]["count"] == 1


def test_files_given_with_the_load_make_a_model_that_lies_nowhere(
    new_core: CoreMaker, request_of: RequestMaker
) -> None:
    core = new_core()
    core.load("m", config='{"backend": "scripted"}', files={"file:3/model.txt": b"7"})
    assert first(core.infer(request_of(model_version="3"))) == 8
    core.unload("m")
    assert core.index() == []


def test_files_without_a_configuration_are_refused(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match=r"failed to load 'm', .* requires providing config"):
        new_core().load("m", files={"1/model.txt": b"7"})


def test_files_that_would_lie_outside_the_model_are_refused(new_core: CoreMaker) -> None:
    with pytest.raises(InternalError, match="failed to load 'm', failed to poll from model repository"):
        new_core().load("m", config='{"backend": "scripted"}', files={"../1/model.txt": b"7"})


def test_a_broken_configuration_given_with_the_load_is_an_error_of_the_caller(new_core: CoreMaker) -> None:
    with pytest.raises(InvalidArgumentError, match="failed to load 'm'"):
        new_core().load("m", config="{nonsense")
