"""Options and configurations, read into the settings of a plan."""

import pytest

from repoagent.config import read_text
from repoagent.converters.onnx.plan_settings import plan_settings
from repoagent.converters.onnx.tensorrt import TensorRtConverter
from repoagent.engines.builder.profiles import BatchRange, PlanSettings
from repoagent.errors import InvalidArgumentError
from repoagent.loader.converting.registry import option_values


def settings(config: str = "", **options: str) -> PlanSettings:
    return plan_settings(read_text(config), option_values(TensorRtConverter(), options))


def test_nothing_given_is_what_the_library_does() -> None:
    without = plan_settings(None, option_values(TensorRtConverter(), {}))
    assert settings() == without == PlanSettings(profiles=[], capabilities=[])


def test_the_best_batch_is_the_largest_preferred_one() -> None:
    assert settings("max_batch_size: 8").batch == BatchRange(8, 8)
    assert settings("max_batch_size: 8 dynamic_batching { preferred_batch_size: [2, 4] }").batch == BatchRange(4, 8)
    assert settings("max_batch_size: 0").batch is None


def test_dims_are_those_that_the_model_sees() -> None:
    config = """
input [
  { name: "a" dims: [3, -1] }, { name: "b" dims: [4] reshape { shape: [2, 2] } }, { name: "c" dims: [1] reshape { } }
]
sequence_batching { state { input_name: "s" output_name: "t" data_type: TYPE_FP32 dims: [5] } }
"""
    assert settings(config).dims == {"a": [3, -1], "b": [2, 2], "c": [], "s": [5]}


def test_samples_are_those_of_the_warm_up() -> None:
    sample = 'model_warmup { name: "%s" inputs { key: "x" value { data_type: TYPE_FP32 dims: [%s] zero_data: true } } }'
    assert settings(sample % ("one", "9, 2") + sample % ("two", "3, 4")).samples == {"x": [[3, 4], [9, 2]]}


def test_shapes_are_written_as_for_nvidias_tools() -> None:
    found = settings(min_shapes="a:1x3,b::0:1", opt_shapes="a:2x3, b::0:1", max_shapes="a:4x3,b::0:8").profiles
    assert found == [{"a": ((1, 3), (2, 3), (4, 3)), "b::0": ((1,), (1,), (8,))}]


def test_numbers_and_gpus_are_read() -> None:
    found = settings(workspace="1000", optimization_level="5", tf32="false", compute_capabilities="12.0, 89,8.6,8.9")
    assert (found.workspace, found.level, found.tf32) == (1000, 5, False)
    assert found.capabilities == ["8.6", "8.9", "12.0"]
    assert settings(compute_capabilities="current").capabilities == ["current"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_shapes": "x:1"}, "parameter 'opt_shapes': '' is not a shape; expected NAME:1x3x224x224"),
        ({"min_shapes": "x:1;x:2", "opt_shapes": "x:1", "max_shapes": "x:1"}, "the numbers of profiles differ"),
        ({"min_shapes": "x:1", "opt_shapes": "y:1", "max_shapes": "x:1"}, "must have the same inputs"),
        ({"min_shapes": "x:-1", "opt_shapes": "x:1", "max_shapes": "x:1"}, "'x:-1' is not a shape"),
        ({"min_shapes": "x:" + "9" * 40, "opt_shapes": "x:1", "max_shapes": "x:1"}, "is not a shape"),
        ({"min_shapes": "x:1;" * 100, "opt_shapes": "x:1", "max_shapes": "x:1"}, "101 profiles are more than 64"),
        ({"min_shapes": "x:1," * 20_000, "opt_shapes": "x:1", "max_shapes": "x:1"}, "20000 shapes are more than 16384"),
        ({"optimization_level": "6"}, "parameter 'optimization_level': '6' is not a whole number from 0 to 5"),
        ({"workspace": "1G"}, "parameter 'workspace': '1G' is not a whole number"),
        ({"tf32": "maybe"}, "parameter 'tf32': 'maybe' is not a valid value; expected one of: true"),
        ({"compute_capabilities": "sm_89"}, "parameter 'compute_capabilities': 'sm_89' is not a compute capability"),
    ],
)
def test_options_without_a_sensible_value_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        settings(**options)
    assert text in str(caught.value)
