"""What a row's wishes become in the executor's words."""

from repoagent.serving.backends.llm.conversion import Converter
from repoagent.serving.backends.llm.tokenizing import Tokenizer
from repoagent.serving.requests.request import InferRequest


def test_words_of_tokens_that_the_model_has_not_are_no_stop_words(tokenizer: Tokenizer) -> None:
    """Tokenizers may know more tokens than a model; as stop words the executor refuses them."""
    ((known,),) = tokenizer.words(["a"])
    ((unknown,),) = tokenizer.words(["ll"])
    assert known < unknown
    converter = Converter(tokenizer, unknown, (2, 999, known), guided=False)
    wishes = {"text_input": "hello", "stop_words": ["a", "ll", "all"], "stop_token_ids": [5]}
    request = converter.request(InferRequest("m", {}), wishes, streaming=False)
    assert (request.end_id, request.stop_words) == (2, [[known], [known], [5]])
