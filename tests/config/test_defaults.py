"""What is filled in where a configuration says nothing. What a stock Triton shows is compared in test_json_writer."""

import pytest

from repoagent.config import default_config, normalize, read_text
from repoagent.config.model_config_pb2 import ModelInstanceGroup


@pytest.mark.parametrize(
    ("files", "backend", "platform", "filename"),
    [
        (["model.onnx", "labels.txt"], "onnxruntime", "onnxruntime_onnx", "model.onnx"),
        (["model.plan", "model.onnx"], "tensorrt", "tensorrt_plan", "model.plan"),
        (["model.py"], "python", "", "model.py"),
        (["model.pt"], "pytorch", "pytorch_libtorch", "model.pt"),
        ([], "", "", ""),
    ],
)
def test_the_files_tell_the_backend_when_the_config_does_not(
    files: list[str], backend: str, platform: str, filename: str
) -> None:
    config = normalize(default_config("m"), files=files)
    assert (config.backend, config.platform, config.default_model_filename) == (backend, platform, filename)


def test_the_end_of_the_name_tells_the_backend_when_nothing_else_does() -> None:
    """P26: the file's name was missing where there was no file."""
    config = normalize(default_config("m.identity"), files=["model.identity"])
    assert (config.backend, config.default_model_filename) == ("identity", "model.identity")
    config = normalize(default_config("m.identity"))
    assert config.default_model_filename == "model.identity", "as Triton shows it, whether the file is there or not"


def test_what_the_config_says_wins_over_the_files() -> None:
    config = normalize(read_text('backend: "python" default_model_filename: "other.py"'), files=["model.onnx"])
    assert (config.backend, config.default_model_filename) == ("python", "other.py")


def test_the_argument_is_left_alone_and_a_second_time_changes_nothing() -> None:
    config = read_text('backend: "onnxruntime" max_batch_size: 4 dynamic_batching { } instance_group [ {}, {} ]')
    before = config.SerializeToString(deterministic=True)
    once = normalize(config, model_name="m", gpus=[0])
    assert config.SerializeToString(deterministic=True) == before
    assert normalize(once, model_name="other") == once


def test_gpus_are_used_when_there_are_any() -> None:
    config = normalize(read_text("instance_group [ {}, { gpus: 1 }, { gpus: 5 } ]"), model_name="m", gpus=[0, 1])
    assert [(group.kind, list(group.gpus)) for group in config.instance_group] == [
        (ModelInstanceGroup.KIND_GPU, [0, 1]),
        (ModelInstanceGroup.KIND_GPU, [1]),
        (ModelInstanceGroup.KIND_CPU, [5]),
    ]


def test_a_group_without_a_count_has_one_instance() -> None:
    config = normalize(read_text("instance_group [ { count: 3 }, {} ]"), model_name="m")
    assert [group.count for group in config.instance_group] == [3, 1]


def test_an_ensemble_gets_no_instances_no_backend_and_no_optimization() -> None:
    config = normalize(read_text('platform: "ensemble"'), model_name="m", files=["model.py"])
    assert not config.instance_group
    assert not config.backend
    assert not config.HasField("optimization")
