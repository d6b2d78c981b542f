"""Triton's way of asking for TensorRT is understood."""

import pytest
from repoagent_convert.agent import parameters_of

from repoagent.api import InvalidArgumentError, ModelConfig, UnsupportedError


def _config(name: str = "tensorrt", **parameters: str) -> ModelConfig:
    config = ModelConfig()
    one = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name=name)
    one.parameters.update(parameters)
    return config


def test_nothing_is_taken_from_a_configuration_that_does_not_ask() -> None:
    assert parameters_of(None) == parameters_of(ModelConfig()) == parameters_of(_config("cuda")) == {}


def test_parameters_are_translated() -> None:
    given = {"max_workspace_size_bytes": "1000", "trt_profile_min_shapes": "x:1x8", "precision_mode": "FP32"}
    wanted = {"to": "tensorrt", "workspace": "1000", "min_shapes": "x:1x8"}
    assert parameters_of(_config(**given, trt_engine_cache_enable="1")) == wanted


def test_other_numbers_than_those_of_the_model_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="precision_mode 'FP16' is not possible: plans are strongly typed"):
        parameters_of(_config(precision_mode="FP16"))


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="tensorrt has no parameter 'sped'; there are max_cached_engines"):
        parameters_of(_config(sped="1"))
