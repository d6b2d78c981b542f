"""What a request says, in its three ways."""

from typing import Any

import numpy as np
import pytest
from repoagent_llm.backend.row_parameters import RowParameters, row_parameters_of

from llm.tests.backend.conftest import tensor
from repoagent.errors import InvalidArgumentError
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
