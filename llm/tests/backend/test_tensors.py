"""The inputs and outputs of a configuration."""

import pytest
from repoagent_llm.backend.tensors import INPUTS, OUTPUTS, check_tensors, complete_tensors

from repoagent.config import ModelConfig, check, read_text
from repoagent.errors import InvalidArgumentError


def test_a_configuration_gets_every_tensor_and_all_inputs_are_optional() -> None:
    config = ModelConfig(name="m", backend="llm")
    complete_tensors(config)
    assert {item.name for item in config.input} == set(INPUTS)
    assert {item.name for item in config.output} == set(OUTPUTS)
    assert all(item.optional for item in config.input)
    check_tensors(config)
    check(config, model_name="m")


def test_what_a_configuration_says_stays() -> None:
    config = read_text('name: "m" input { name: "max_tokens" data_type: TYPE_UINT32 dims: [1] }')
    complete_tensors(config)
    (item,) = (item for item in config.input if item.name == "max_tokens")
    assert not item.optional
    assert item.data_type == 4
    check_tensors(config)


@pytest.mark.parametrize(
    ("kind", "name", "data_type", "error"),
    [
        ("input", "prompt", "STRING", "input 'prompt' is not one .*; there are text_input"),
        ("input", "tex_input", "STRING", "did you mean 'text_input'"),
        ("input", "top_k", "FP32", "input 'top_k' of a language model is INT32, not FP32"),
        ("output", "text_output", "INT32", "output 'text_output' of a language model is BYTES, not INT32"),
        ("input", "top_k", "INT32", "has no input 'text_input'"),
    ],
)
def test_other_tensors_are_refused(kind: str, name: str, data_type: str, error: str) -> None:
    config = read_text(f'name: "m" {kind} {{ name: "{name}" data_type: TYPE_{data_type} dims: [1] }}')
    with pytest.raises(InvalidArgumentError, match=error):
        check_tensors(config)


def test_older_names_may_be_used() -> None:
    config = read_text(
        'input [ { name: "text_input" data_type: TYPE_STRING dims: [1] },'
        ' { name: "random_seed" data_type: TYPE_UINT64 dims: [1] },'
        ' { name: "min_length" data_type: TYPE_UINT32 dims: [1] } ]'
    )
    check_tensors(config)


def test_a_model_of_embeddings_takes_a_text_or_its_tokens() -> None:
    config = read_text('name: "m" backend: "llm" parameters { key: "pooling" value { string_value: "mean" } }')
    complete_tensors(config)
    assert [(item.name, item.optional) for item in config.input] == [("text_input", True), ("input_ids", True)]
    assert [item.name for item in config.output] == ["embedding", "num_input_tokens"]
    check_tensors(config)
    for value in ("", "${pooling}"):
        config.parameters["pooling"].string_value = value
        with pytest.raises(InvalidArgumentError, match="output 'embedding' is not one of a language model"):
            check_tensors(config)
