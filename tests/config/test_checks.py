"""What is refused, and in which words."""

from typing import Any

import pytest

from repoagent.config import ModelConfig, check, normalize, problems, read_text
from repoagent.errors import ConfigError

IO = """
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 4 }
"""
PYTHON = f'backend: "python" {IO}'
TENSORRT = f'platform: "tensorrt_plan" {IO}'

NO_BACKEND = (
    "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
    "Expected model name of the form 'model.<backend_name>'."
)

# These are only wrong once everything that may be left out has been filled in.
NEED_COMPLETE = {"input_no_type", "input_no_dims", "output_no_type", "group_gpu"}


def _completed(text: str) -> ModelConfig:
    return normalize(read_text(text), model_name="m", files=["model.py"])


def _found(text: str, **options: Any) -> list[str]:
    return list(problems(read_text(text), model_name="m", **options))


def test_a_config_that_triton_serves_has_no_problem(served: dict[str, str]) -> None:
    if served["case"] == "duplicate_inputs":  # a difference: it loads there, but no request ever fits it
        assert _found(served["config"]) == ["model input 'x' is specified 2 times for m"]
        return
    check(read_text(served["config"]), model_name="m")
    check(_completed(served["config"]), model_name="m", complete=True, gpus=())


def test_a_config_that_triton_refuses_is_refused_in_its_words(refused: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        check(_completed(refused["config"]), model_name="m", complete=True, gpus=())
    assert str(caught.value) == refused["error"].rstrip(";")


def test_a_file_as_written_is_refused_for_what_it_says(refused: dict[str, str]) -> None:
    if refused["case"] in NEED_COMPLETE:
        assert _found(refused["config"]) == []
    else:
        assert refused["error"] in _found(refused["config"])


def test_the_source_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^m/config\.pbtxt: 'max_batch_size' must be non-negative value for m$"):
        check(read_text("max_batch_size: -1"), model_name="m", source="m/config.pbtxt")


def test_an_empty_config_is_fine_until_it_should_be_complete() -> None:
    assert _found("") == []
    assert _found("", complete=True) == [
        "model configuration must specify 'name'",
        NO_BACKEND,
        "must specify 'version policy' for m",
        "must specify one or more 'instance group's for m",
    ]


def test_all_problems_are_listed_not_only_the_first() -> None:
    found = _found(
        PYTHON.replace("dims: 4", "dims: 0") + "max_batch_size: -1 dynamic_batching { preferred_batch_size: 0 }"
    )
    assert len(found) == 5


@pytest.mark.parametrize("kind", ["input", "output"])
def test_a_tensor_name_given_twice_is_refused(kind: str) -> None:
    again = f'{kind} {{ name: "{"x" if kind == "input" else "y"}" data_type: TYPE_FP32 dims: 1 }}'
    assert any(f"model {kind}" in problem and "2 times for m" in problem for problem in _found(PYTHON + again))


@pytest.mark.parametrize(
    ("dims", "reshape", "fits"),
    [
        ("4", "2, 2", True),
        ("4", "2, 3", False),
        ("1", "", True),
        ("2", "", False),
        ("-1", "-1, 1", True),
        ("-1", "4", False),
        ("2, 4, -1, 6", "8, -1, 1, 6", True),
        ("2, 4, -1, 6", "8, -1, 5", False),
        ("-1, 2, -1", "-1, 1, 2, -1", True),
    ],
)
def test_a_reshape_must_keep_the_number_of_elements(dims: str, reshape: str, fits: bool) -> None:
    tensor = f'input {{ name: "x" data_type: TYPE_FP32 dims: [ {dims} ] reshape {{ shape: [ {reshape} ] }} }}'
    found = _found(f'backend: "python" max_batch_size: 1 {tensor}')
    assert found == ([] if fits else ["model input 'x' has different size for dims and reshape for m"])


def test_tensorrt_may_have_shape_tensors_and_vectorised_formats_of_three_dims() -> None:
    assert (
        _found(TENSORRT.replace("dims: 4", "dims: [ 1, 2, 3 ] is_shape_tensor: true is_non_linear_format_io: true"))
        == []
    )
    assert _found(TENSORRT.replace("dims: 4", "dims: 4 is_non_linear_format_io: true")) == [
        "Non-linear IO format input requires 3 dims for m",
        "Non-linear IO format output requires 3 dims for m",
    ]


@pytest.mark.parametrize(
    ("group", "gpus", "message"),
    [
        ("kind: KIND_GPU gpus: 3", (0, 1), "specifies invalid or unsupported gpu id 3. Usable GPUs are: 0, 1"),
        ("kind: KIND_GPU", (0,), "has kind KIND_GPU but specifies no GPUs"),
        ("kind: KIND_GPU gpus: 0", (), "has kind KIND_GPU but no GPUs are available"),
        ("kind: KIND_AUTO", (), "has unexpected kind KIND_AUTO"),
    ],
)
def test_devices_must_be_there_once_the_config_is_complete(group: str, gpus: tuple[int, ...], message: str) -> None:
    config = _completed(PYTHON)
    config.instance_group.clear()
    config.instance_group.append(read_text(f"instance_group {{ {group} }}").instance_group[0])
    assert list(problems(config, complete=True, gpus=gpus)) == [f"instance group m_0 of model m {message}"]


def test_devices_are_not_judged_where_it_is_not_known_which_there_are() -> None:
    assert _found(PYTHON + "instance_group { kind: KIND_GPU gpus: 99 }") == []


@pytest.mark.parametrize(
    ("profile", "fits"), [("0", True), ("12", True), ("-1", False), ("a", False), ("", False), ("²", False)]
)
def test_an_optimisation_profile_is_the_text_of_an_index(profile: str, fits: bool) -> None:
    found = _found(TENSORRT + f'instance_group {{ profile: "{profile}" }}')
    assert found == [] if fits else "specifies invalid profile" in found[0]


def test_a_backend_in_the_place_of_a_platform_gets_a_suggestion() -> None:
    (found,) = _found('platform: "onnxruntime"')
    assert found.endswith("unexpected platform type 'onnxruntime' for m; did you mean 'onnxruntime_onnx'?")


def test_the_platform_is_named_where_only_tensorrt_has_profiles() -> None:
    found = _found(f'platform: "onnxruntime_onnx" {IO} instance_group {{ profile: "0" }}')
    assert len(found) == 1
    assert "and platform onnxruntime_onnx specifies profile field which is only supported for TensorRT" in found[0]


def test_a_metric_tag_must_be_the_name_of_a_label() -> None:
    tags = 'metric_tags { key: "team" value: "any text" } metric_tags { key: "my team" value: "x" }'
    message = "metric tag 'my team' must be of letters, digits and '_', to be a label of metrics"
    assert _found(PYTHON + tags) == [message]


@pytest.mark.parametrize(
    ("control", "message"),
    [
        ("histogram_options { buckets: 1 }", "metric control must specify 'metric_identifier'"),
        ("metric_identifier { } histogram_options { buckets: 1 }", "metric identifier must specify non-empty 'family'"),
        ('metric_identifier { family: "f" }', "metric control must specify 'histogram_options'"),
        (
            'metric_identifier { family: "f" } histogram_options { }',
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            'metric_identifier { family: "f" } histogram_options { buckets: [ 1, 1 ] }',
            "histogram options must specify 'buckets' in ascending order",
        ),
    ],
)
def test_a_metric_control_must_be_whole(control: str, message: str) -> None:
    assert _found(PYTHON + f"model_metrics {{ metric_control {{ {control} }} }}") == [message]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", "..", "a\\000b"])
@pytest.mark.parametrize(
    "text",
    [
        'default_model_filename: "{}"',
        'cc_model_filenames {{ key: "8.0" value: "{}" }}',
        'output {{ name: "z" data_type: TYPE_FP32 dims: 1 label_filename: "{}" }}',
        'model_warmup {{ name: "w" inputs {{ key: "x" value: {{ input_data_file: "{}" }} }} }}',
        (
            'sequence_batching {{ state {{ input_name: "i" output_name: "o" data_type: TYPE_FP32 dims: 1 '
            'initial_state {{ name: "s" data_type: TYPE_FP32 dims: 1 data_file: "{}" }} }} }}'
        ),
    ],
)
def test_no_file_name_may_lead_out_of_the_model_directory(text: str, path: str) -> None:
    (found,) = _found(f'backend: "python" {text.format(path)}')
    assert "must name a file inside the model directory" in found


def test_an_agent_needs_a_name_and_its_parameters_keys() -> None:
    found = _found('model_repository_agents { agents { } agents { name: "a" parameters { value: "v" } } }')
    assert found == [
        "must specify 'name' in repository agent 0 of model 'm'",
        "must specify 'key' in every parameter of repository agent 1 of model 'm'",
    ]


def test_a_batch_tensor_of_an_unknown_kind_is_refused() -> None:
    config = read_text(PYTHON)
    config.batch_input.add(kind=99, data_type="TYPE_FP32", source_input=["x"])
    assert list(problems(config)) == ["unknown batch input kind '' for "]
