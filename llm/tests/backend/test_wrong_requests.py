"""Requests that make no sense are errors of whoever sent them, never of the server."""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from repoagent_llm.backend.row_parameters import SAMPLING

from llm.tests.backend.conftest import Asker, WriteModel, tensor
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import DataType, Tensor

#: JSON values that no field expects, or only some do.
_STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    -(2**70),
    10**400,
    1.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e39,
    "",
    "a",
    "\ud800",
    "\0",
    [],
    [None],
    [1],
    [-1],
    [2**40],
    ["a", 1],
    [""],
    ["\udfff"],
    [[]],
    [[1]],
    {},
    {"a": [1]},
]


def _strange_wishes() -> list[dict[str, Any]]:
    names = [*SAMPLING, "bad_words", "end_id", "ignore_eos", "max_tokens", "stop_token_ids", "stop_words"]
    alone = [{name: value} for name in names for value in _STRANGE]
    source = random.Random(3)
    together = [{name: source.choice(_STRANGE) for name in source.sample(names, 3)} for _ in range(100)]
    return alone + together


@pytest.mark.parametrize("config", ["", "max_batch_size: 4"])
def test_a_request_without_a_prompt_names_the_input(core: ServingCore, write_llm: WriteModel, config: str) -> None:
    write_llm(config=config)
    core.load("m")
    request = InferRequest(Asked("m", {"max_tokens": tensor("max_tokens", 3, batching=bool(config))}))
    (response,) = Asker(core).send(request).wait()
    assert type(response.error) is InvalidArgumentError
    assert "needs one of the inputs text_input, messages, input_ids; this one has none of" in str(response.error)


@pytest.mark.parametrize("texts", [[], [b"a", b"b"]], ids=["none", "two"])
def test_a_prompt_that_is_not_one_text_is_refused(core: ServingCore, write_llm: WriteModel, texts: list[bytes]) -> None:
    write_llm(config='input { name: "text_input" data_type: TYPE_STRING dims: [-1] }')
    core.load("m")
    (response,) = (
        Asker(core)
        .send(InferRequest(Asked("m", {"text_input": Tensor(DataType.BYTES, np.array(texts, object))})))
        .wait()
    )
    assert type(response.error) is InvalidArgumentError
    assert f"input 'text_input' must have one element for each text, not {len(texts)}" in str(response.error)


@pytest.mark.slow
def test_values_of_every_kind_are_answered_or_refused_as_the_clients_fault(asker: Asker) -> None:
    for wanted in _strange_wishes():
        asked = {"max_tokens": 2, **wanted}
        responses = asker.ask("hello", sampling_parameters=json.dumps(asked)).wait()
        for error in (response.error for response in responses):
            assert error is None or isinstance(error, (InvalidArgumentError, UnsupportedError)), (asked, error)


@pytest.mark.slow
def test_request_parameters_of_every_kind_are_answered_or_refused_as_the_clients_fault(asker: Asker) -> None:
    for wanted in _strange_wishes():
        request = asker.request("hello", max_tokens=2)
        request.asked = replace(request.asked, parameters=wanted)
        for error in (response.error for response in asker.send(request).wait()):
            assert error is None or isinstance(error, (InvalidArgumentError, UnsupportedError)), (wanted, error)


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, '{"a":' * 100_000, "nan", "[1]", '{"max_tokens": ' + "9" * 5000 + "}", "{", "\0"],
    ids=lambda text: text[:8],
)
def test_sampling_parameters_that_cannot_be_read_are_refused(asker: Asker, text: str) -> None:
    (response,) = asker.ask("hello", sampling_parameters=text).wait()
    assert isinstance(response.error, InvalidArgumentError)
    assert "sampling_parameters" in str(response.error)
    assert len(str(response.error)) < 300


def test_none_of_them_leaves_the_model_unable_to_answer(asker: Asker) -> None:
    errors: list[RepoAgentError | None] = []
    for number in range(20):
        (response,) = asker.ask(b"\xff" if number % 2 else "hello", max_tokens=2).wait()
        errors.append(response.error)
    assert [type(error) for error in errors] == [type(None), InvalidArgumentError] * 10
