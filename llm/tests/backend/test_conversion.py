"""What a row's wanted become in the executor's words."""

import pytest
from repoagent_llm.backend.conversion import Converter
from repoagent_llm.backend.row_parameters import RowParameters
from repoagent_llm.backend.tokenizing import Tokenizer

from repoagent.serving.requests.request import Asked, InferRequest


def test_words_of_tokens_that_the_model_has_not_are_no_stop_words(tokenizer: Tokenizer) -> None:
    """Tokenizers may know more tokens than a model; as stop words the executor refuses them."""
    ((known,),) = tokenizer.words(["a"])
    ((unknown,),) = tokenizer.words(["ll"])
    assert known < unknown
    converter = Converter(tokenizer, unknown, (2, 999, known), guided=False)
    wanted = {"text_input": "hello", "stop_words": ["a", "ll", "all"]}
    request = converter.request(InferRequest(Asked("m", {})), wanted, streaming=False)
    assert (request.end_id, request.stop_words) == (2, [[known]])


@pytest.mark.parametrize(
    ("wanted", "end_id", "end_ids", "stop_ids"),
    [
        ({}, 2, [7, 9], []),
        ({"stop_token_ids": [5]}, 2, [7, 9], [5]),
        ({"end_id": 3}, 3, [], []),
        ({"end_id": 3, "stop_token_ids": 4}, 3, [], [4]),
        ({"ignore_eos": True, "stop_token_ids": [4]}, None, [], [4]),
    ],
)
def test_the_tokens_that_end_a_text_are_the_models_own_or_those_of_the_request(
    tokenizer: Tokenizer, wanted: RowParameters, end_id: int | None, end_ids: list[int], stop_ids: list[int]
) -> None:
    converter = Converter(tokenizer, 200, (2, 7, 9), guided=False)
    request = converter.request(InferRequest(Asked("m", {})), {"text_input": "hello", **wanted}, streaming=False)
    endings = request.endings
    assert (request.end_id, endings.end_ids, endings.stop_ids) == (end_id, end_ids, stop_ids)
