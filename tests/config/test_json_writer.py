"""The JSON that the model-configuration endpoint shows."""

import json
from collections.abc import Callable
from typing import Any

from repoagent.config import ModelConfig, normalize, read_json, read_text, write_json
from repoagent.config.model_config_pb2 import ModelMetrics, ModelOptimizationPolicy, ModelSequenceBatching

Shown = Callable[[dict[str, Any]], dict[str, Any]]


def test_a_config_is_shown_as_triton_shows_it(served: dict[str, Any], as_shown_by_triton: Shown) -> None:
    config = normalize(read_text(served["config"]), model_name="m", files=["model.py"])
    assert as_shown_by_triton(write_json(config)) == served["served"]


def test_what_is_shown_reads_back_the_same(served: dict[str, Any]) -> None:
    config = normalize(read_text(served["config"]), model_name="m", files=["model.py"])
    assert read_json(json.dumps(write_json(config))) == config


def test_fields_come_in_the_order_of_the_schema_with_defaults() -> None:
    shown = write_json(ModelConfig(name="m"))
    assert list(shown)[:5] == ["name", "platform", "backend", "runtime", "max_batch_size"]
    assert shown["max_batch_size"] == 0
    assert shown["parameters"] == {}
    assert "dynamic_batching" not in shown


def test_agent_parameters_are_a_map_in_which_the_last_value_wins() -> None:
    config = read_text(
        'model_repository_agents { agents { name: "a" parameters { key: "k" value: "1" }'
        ' parameters { key: "j" value: "2" } parameters { key: "k" value: "3" } } }'
    )
    agents = write_json(config)["model_repository_agents"]["agents"]
    assert agents == [{"name": "a", "parameters": {"k": "3", "j": "2"}}]


def test_every_64_bit_integer_is_a_number() -> None:
    cuda = ModelOptimizationPolicy.Cuda()
    cuda.graph_spec.add().input["x"].dim.append(2**40)
    config = ModelConfig(optimization=ModelOptimizationPolicy(cuda=cuda))
    config.instance_group.add().secondary_devices.add(device_id=2**40)
    shown = write_json(config)
    assert shown["optimization"]["cuda"]["graph_spec"][0]["input"] == {"x": {"dim": [2**40]}}
    assert shown["instance_group"][0]["secondary_devices"][0]["device_id"] == 2**40


def test_32_bit_floats_are_shown_with_the_digits_that_they_have() -> None:
    direct = ModelSequenceBatching.StrategyDirect(minimum_slot_utilization=0.1)
    config = ModelConfig(sequence_batching=ModelSequenceBatching(direct=direct))
    assert write_json(config)["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1


def test_numbers_that_json_does_not_have_are_strings() -> None:
    options = ModelMetrics.MetricControl.HistogramOptions(buckets=[float("-inf"), 0.1, float("inf"), float("nan")])
    config = ModelConfig(model_metrics=ModelMetrics(metric_control=[{"histogram_options": options}]))
    shown = write_json(config)["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"]
    assert shown == ["-Infinity", 0.1, "Infinity", "NaN"]
    assert read_json(write_json(config)).model_metrics.metric_control[0].histogram_options.buckets[0] == float("-inf")


def test_an_enum_number_without_a_name_is_shown_as_the_number() -> None:
    config = ModelConfig()
    config.input.add(data_type=99)
    assert write_json(config)["input"][0]["data_type"] == 99
