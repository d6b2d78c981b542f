"""What a request says, in its three ways."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.backend.row_parameters import (
    GenerationDefaults,
    RowParameters,
    read_generation_defaults,
    row_parameters_of,
)

from llm.tests.backend.conftest import Asker, WriteModel, tensor
from repoagent.errors import ConfigError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest


def read(parameters: dict[str, Any] | None = None, **values: Any) -> RowParameters:
    inputs = {name: tensor(name, value) for name, value in {"text_input": "x", **values}.items()}
    request = InferRequest(Asked("m", inputs, parameters=parameters or {}))
    (wanted,) = row_parameters_of(request, batching=False)
    return wanted


def test_tensors_become_plain_values() -> None:
    assert read(max_tokens=3, stream=True, top_p=0.5, stop_words=["a", "b"]) == {
        "text_input": "x",
        "max_tokens": 3,
        "stream": True,
        "top_p": 0.5,
        "stop_words": ["a", "b"],
    }


def test_matrices_stay_arrays() -> None:
    weights = np.ones((2, 4), np.float16)
    assert read(lora_weights=weights)["lora_weights"] is weights


def test_a_tensor_counts_most_and_a_request_parameter_least() -> None:
    said = '{"max_tokens": 2, "top_k": 2}'
    wanted = read({"max_tokens": 1, "top_k": 1, "min_p": 0.1}, sampling_parameters=said, max_tokens=3)
    assert {name: wanted[name] for name in ("max_tokens", "top_k", "min_p")} == {
        "max_tokens": 3,
        "top_k": 2,
        "min_p": 0.1,
    }


def test_names_of_others_are_known() -> None:
    said = '{"n": 2, "stop": ["x"], "seed": null}'
    wanted = read({"random_seed": 5}, sampling_parameters=said)
    assert wanted == {"text_input": "x", "top_p": 1.0, "num_return_sequences": 2, "stop_words": ["x"], "seed": 5}
    assert read(random_seed=7)["seed"] == 7
    assert read(min_length=4)["min_tokens"] == 4


def test_other_request_parameters_are_not_for_the_model() -> None:
    assert read({"binary_data_output": True, "tempratur": 1}) == {"text_input": "x"}


def test_each_row_of_a_batch_has_its_own() -> None:
    request = InferRequest(Asked("m", {"text_input": tensor("text_input", "x"), "max_tokens": tensor("max_tokens", 1)}))
    request.inputs["text_input"].array = np.array([[b"a"], [b"b"]], np.object_)
    request.inputs["max_tokens"].array = np.array([[1], [2]], np.int32)
    assert list(row_parameters_of(request, batching=True)) == [
        {"text_input": "a", "max_tokens": 1},
        {"text_input": "b", "max_tokens": 2},
    ]


def test_what_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(
        InvalidArgumentError, match="best_of, lora_name is not known; there are allowed_token_ids, bad_words, beam_"
    ):
        read(sampling_parameters='{"lora_name": "x", "best_of": 2}')


# generation_config.json: defaults of sampling and of end tokens, which requests override.


def defaults_of(tmp_path: Path, text: str) -> GenerationDefaults:
    (tmp_path / "generation_config.json").write_text(text)
    return read_generation_defaults(tmp_path, DEFAULT_LIMITS)


def wanted(defaults: GenerationDefaults, **inputs: Any) -> dict[str, Any]:
    tensors = {name: tensor(name, value) for name, value in {"text_input": "x", **inputs}.items()}
    request = InferRequest(Asked("m", tensors))
    (row,) = row_parameters_of(request, batching=False, defaults=defaults)
    return {name: value for name, value in row.items() if name != "text_input"}


PUBLISHED = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "pad_token_id": 151643,
    "repetition_penalty": 1.05,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.8,
    "transformers_version": "4.37.0",
}


def test_a_published_file_is_the_default_of_every_request(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, json.dumps(PUBLISHED))
    recommended = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    assert defaults.end_ids == (151645, 151643)
    assert wanted(defaults) == recommended
    assert wanted(defaults, temperature=0.1) == {
        **recommended,
        "temperature": wanted(defaults, temperature=0.1)["temperature"],
    }
    assert wanted(defaults, sampling_parameters='{"top_p": 1, "top_k": -1}') == {**recommended, "top_p": 1, "top_k": -1}
    assert wanted(defaults, beam_width=2) == {"beam_width": 2}


def test_without_do_sample_only_requests_that_sample_are_concerned(tmp_path: Path) -> None:
    defaults = defaults_of(tmp_path, '{"temperature": 0.5, "top_p": null, "max_new_tokens": 7}')
    assert wanted(defaults) == {"max_tokens": 7}
    assert wanted(defaults, sampling_parameters="{}") == {"top_p": 1.0, "temperature": 0.5, "max_tokens": 7}


def test_where_there_is_no_file_nothing_changes(tmp_path: Path) -> None:
    assert read_generation_defaults(tmp_path, DEFAULT_LIMITS) == GenerationDefaults()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "must be a JSON object"),
        ('{"temperature": "hot"}', "temperature must be a number from 0 to inf, not hot"),
        ('{"temperature": NaN}', "temperature must be a number"),
        ('{"top_p": 2}', "top_p must be a number from 0 to 1, not 2"),
        ('{"top_k": 1.5}', "top_k must be a whole number, not 1.5"),
        ('{"eos_token_id": "x"}', "eos_token_id must be a token, or a list"),
        ('{"eos_token_id": []}', "eos_token_id must be a token, or a list"),
    ],
)
def test_a_value_that_makes_no_sense_is_named(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=complaint):
        defaults_of(tmp_path, text)


def test_a_model_samples_and_ends_as_its_author_recommends(core: ServingCore, write_llm: WriteModel) -> None:
    folder = write_llm() / "1"
    core.load("m")
    greedy = Asker(core).ask("hello", max_tokens=8, return_generation_logits=True, exclude_input_in_output=True).one()
    tokens = greedy.outputs["generation_logits"].array[0].argmax(-1)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [int(tokens[3])], "do_sample": True, "top_k": 1})
    )
    core.load("m")
    asker = Asker(core)
    first = next(index for index, token in enumerate(tokens) if token == tokens[3])

    def length(**values: Any) -> int:
        outputs = asker.ask("hello", max_tokens=8, return_num_output_tokens=True, **values).one().outputs
        return int(outputs["num_output_tokens"].array[0])

    assert length() == first
    assert length(end_id=-1) == 8


def test_a_file_that_makes_no_sense_fails_the_load(core: ServingCore, write_llm: WriteModel) -> None:
    (write_llm() / "1" / "generation_config.json").write_text('{"top_p": "all"}')
    with pytest.raises(RepoAgentError, match=r"'1/generation_config.json': top_p must be a number"):
        core.load("m")
