"""Request: its properties, its checks, its pickle."""

import pickle
from datetime import timedelta

import pytest
from repoagent_llm.types.enums import RequestType
from repoagent_llm.types.guidance import GuidedDecodingParams
from repoagent_llm.types.request import Request, SamplingConfig, extras_of


def test_defaults() -> None:
    request = Request([1, 2], 5)
    assert (request.input_token_ids, request.max_tokens, request.streaming) == ([1, 2], 5, False)
    assert request.request_type is RequestType.REQUEST_TYPE_CONTEXT_AND_GENERATION
    assert request.sampling_config.beam_width == 1
    assert (request.end_id, request.stop_words, request.embedding_bias) == (None, None, None)
    assert (extras_of(request).priority, extras_of(request).num_return_sequences) == (0.5, 1)
    assert Request.BATCHED_POST_PROCESSOR_NAME == "batched"


def test_prompt_and_length_are_read_only_and_the_rest_is_settable() -> None:
    request = Request([1], 5)
    for name in ("input_token_ids", "max_tokens"):
        with pytest.raises(AttributeError, match="read-only"):
            setattr(request, name, [2])
    request.stop_words = [[4, 2]]
    request.my_note = "kept"
    assert request.stop_words == [[4, 2]]


@pytest.mark.parametrize("name", ["type", "priority", "encoder_output_length", "language_adapter_uid"])
def test_some_arguments_have_no_property(name: str) -> None:
    assert not hasattr(Request([1], 1), name)


def test_bad_requests_are_refused() -> None:
    with pytest.raises(RuntimeError, match="must not be empty"):
        Request([], 5)
    with pytest.raises(RuntimeError, match="max_tokens"):
        Request([1], 0)
    with pytest.raises(RuntimeError, match="1 dimension"):
        Request([1], 1, embedding_bias=[[1.0]])
    with pytest.raises(RuntimeError, match="not both"):
        Request([1], 1, logits_post_processor_name="a", logits_post_processor=print)
    with pytest.raises(RuntimeError, match=r"Request\.priority must be a number, not nan"):
        Request([1], 1, priority=float("nan"))
    guide = GuidedDecodingParams(GuidedDecodingParams.GuideType.JSON)
    with pytest.raises(RuntimeError, match="beam search"):
        Request([1], 1, guided_decoding_params=guide, sampling_config=SamplingConfig(2))


def test_a_pickle_has_34_parts_and_loses_three_arguments() -> None:
    request = Request(
        [1, 2],
        5,
        sampling_config=SamplingConfig(top_k=3),
        priority=0.75,
        num_return_sequences=4,
        language_adapter_uid=2,
        allotted_time_ms=timedelta(seconds=1),
        client_id=2**63,
    )
    assert len(request.__getstate__()) == 34
    copy = pickle.loads(pickle.dumps(request))
    assert (copy.input_token_ids, copy.sampling_config.top_k, copy.client_id) == ([1, 2], 3, 2**63)
    assert extras_of(copy).priority == 0.75
    assert (copy.allotted_time_ms, extras_of(copy).num_return_sequences) == (None, 1)
    assert extras_of(copy).language_adapter_uid is None
    with pytest.raises(RuntimeError, match="Invalid Request state!"):
        copy.__setstate__((1,))
