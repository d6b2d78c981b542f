"""A language model in the core: its texts are those of the executor, whole and in pieces, alone and in a crowd."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import OutputConfig, Request, Result, SamplingConfig
from repoagent_llm.backend.tokenizing import Tokenizer

from llm.tests.backend.conftest import Asker, WriteModel, generated
from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.serving.core import ServingCore
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.requests.tensor import DataType, Tensor

Direct = Callable[[Request], Result]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"top_k": 5, "seed": 7},
    {"top_p": 0.9, "temperature": 1.5, "seed": 3},
    {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
]


def expected(direct: Direct, tokenizer: Tokenizer, text: str, max_tokens: int, **sampling: Any) -> str:
    """The text that the executor generates behind ``text``."""
    prompt = tokenizer.encode(text)
    config = SamplingConfig(**{name: value for name, value in sampling.items() if value is not None})
    result = direct(Request(prompt, max_tokens, sampling_config=config, end_id=2))
    return tokenizer.decode([*prompt, *generated(result, prompt)])[len(text) :]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda values: "-".join(values) or "greedy")
def test_a_text_is_that_of_the_executor(
    asker: Asker, direct: Direct, tokenizer: Tokenizer, sampling: dict[str, Any]
) -> None:
    wanted = expected(direct, tokenizer, "hello world", 40, **sampling)
    assert asker.ask("hello world", max_tokens=40, **sampling).texts() == [f"hello world{wanted}"]
    alone = asker.ask("hello world", max_tokens=40, exclude_input_in_output=True, **sampling)
    assert alone.texts() == [wanted]
    streamed = asker.ask("hello world", max_tokens=40, stream=True, **sampling).texts()
    assert len(streamed) > 10
    assert all(streamed[:-1])
    assert "".join(streamed) == wanted


def test_without_a_length_there_are_sixteen_tokens(asker: Asker) -> None:
    response = asker.ask("hello", return_num_output_tokens=True, return_num_input_tokens=True).one()
    assert response.outputs["num_output_tokens"].array.tolist() == [16]
    assert response.outputs["num_input_tokens"].array.tolist() == [3]  # he ll o


def test_without_tokens_to_make_the_prompt_is_answered(asker: Asker, tokenizer: Tokenizer) -> None:
    response = asker.ask("hello", max_tokens=0, return_prompt_token_ids=True, return_finish_reason=True).one()
    assert response.outputs["prompt_token_ids"].array.tolist() == tokenizer.encode("hello")
    assert response.outputs["text_output"].array.tolist() == [b"hello"]
    assert response.outputs["finish_reason"].array.tolist() == [b"length"]
    assert asker.ask("hello", max_tokens=0, exclude_input_in_output=True).texts() == [""]
    with pytest.raises(InvalidArgumentError, match="max_seq_len"):
        asker.ask("hello" * 10_000, max_tokens=0).one()


@pytest.mark.slow
def test_many_at_once_get_the_texts_that_each_gets_alone(asker: Asker, direct: Direct, tokenizer: Tokenizer) -> None:
    source = random.Random(5)
    prompts = ["".join(source.choices("abc dé本", k=source.randint(1, 60))) for _ in range(40)]
    lengths = [source.randint(1, 30) for _ in prompts]
    asked = [
        asker.ask(prompt, max_tokens=length, stream=bool(number % 2), exclude_input_in_output=True)
        for number, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    texts = ["".join(answers.texts()) for answers in asked]
    assert texts == [expected(direct, tokenizer, *item) for item in zip(prompts, lengths, strict=True)]


def test_a_stream_tells_why_it_ended_and_how_much_it_was(asker: Asker) -> None:
    answers = asker.ask("abc", max_tokens=9, stream=True, return_finish_reason=True, return_num_output_tokens=True)
    assert answers.texts("finish_reason")[-1] == "length"
    assert set(answers.texts("finish_reason")[:-1]) == {""}
    assert sum(response.outputs["num_output_tokens"].array.item() for response in answers.wait()) == 9


def test_a_token_that_ends_the_text_is_no_part_of_it(asker: Asker, direct: Direct, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("hello")
    tokens = generated(direct(Request(prompt, 20)), prompt)
    end = tokens[6]
    before = tokens[: tokens.index(end)]
    answers = asker.ask("hello", max_tokens=20, end_id=end, return_finish_reason=True)
    assert answers.texts() == [tokenizer.decode([*prompt, *before])]
    assert answers.texts("finish_reason") == ["stop"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_word_ends_a_text_and_is_a_part_of_it(asker: Asker, stream: bool) -> None:
    (whole,) = asker.ask("hello", max_tokens=40, exclude_input_in_output=True).texts()
    word = whole[9:12]
    answers = asker.ask(
        "hello",
        max_tokens=40,
        exclude_input_in_output=True,
        stop_words=["never so", word],
        stream=stream,
        return_finish_reason=True,
        return_log_probs=True,
    )
    assert "".join(answers.texts()) == whole[: whole.index(word) + len(word)]
    assert answers.texts("finish_reason")[-1] == "stop"
    probabilities = sum(response.outputs["output_log_probs"].array.shape[1] for response in answers.wait())
    assert 0 < probabilities < 40


def test_words_that_are_empty_or_unknown_say_nothing(asker: Asker) -> None:
    plain = asker.ask("hello", max_tokens=8).texts()
    assert asker.ask("hello", max_tokens=8, stop_words=[""], bad_words=["", ""]).texts() == plain


def test_a_bad_word_does_not_appear(asker: Asker) -> None:
    (whole,) = asker.ask("hello", max_tokens=20, exclude_input_in_output=True).texts()
    letter = next(letter for letter in whole if letter.isascii())
    (other,) = asker.ask("hello", max_tokens=20, exclude_input_in_output=True, bad_words=[letter]).texts()
    assert letter not in other


def test_a_bias_favours_words(asker: Asker, tokenizer: Tokenizer) -> None:
    answers = asker.ask(
        "x",
        max_tokens=5,
        exclude_input_in_output=True,
        embedding_bias_words=["a", "b"],
        embedding_bias_weights=[1000.0, 2000.0],
    )
    assert answers.texts() == ["bbbbb"]


def test_logits_and_log_probabilities_come_when_asked_for(asker: Asker, direct: Direct, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("hello")
    wanted = OutputConfig(return_log_probs=True, return_context_logits=True, return_generation_logits=True)
    result = direct(Request(prompt, 6, output_config=wanted))
    names = ("return_log_probs", "return_context_logits", "return_generation_logits")
    flags: dict[str, Any] = dict.fromkeys(names, True)
    outputs = asker.ask("hello", max_tokens=6, **flags).one().outputs
    assert result.log_probs is not None
    np.testing.assert_array_equal(outputs["output_log_probs"].array, np.array(result.log_probs, np.float32))
    np.testing.assert_array_equal(outputs["cum_log_probs"].array, np.array(result.cum_log_probs, np.float32))
    np.testing.assert_array_equal(outputs["context_logits"].array, result.context_logits)
    np.testing.assert_array_equal(outputs["generation_logits"].array, result.generation_logits)

    pieces = [response.outputs for response in asker.ask("hello", max_tokens=6, stream=True, **flags).wait()]
    assert ["context_logits" in piece for piece in pieces] == [True, *[False] * 5]
    streamed = np.concatenate([piece["generation_logits"].array for piece in pieces])
    np.testing.assert_array_equal(streamed.swapaxes(0, 1), result.generation_logits)
    looked = asker.ask("hello", max_tokens=6, stop_words=["never so"], **flags).one().outputs
    np.testing.assert_array_equal(looked["generation_logits"].array, result.generation_logits)
    np.testing.assert_array_equal(looked["output_log_probs"].array, outputs["output_log_probs"].array)


def test_performance_is_told_when_asked_for(asker: Asker) -> None:
    outputs = asker.ask("hello", max_tokens=4, return_perf_metrics=True).one().outputs
    times = [outputs[f"{name}_time_ns"].array.item() for name in ("arrival", "first_scheduled", "first_token")]
    assert times == sorted(times)
    assert times[0] > 0
    assert outputs["kv_cache_alloc_total_blocks"].array.item() >= 1
    assert outputs["total_draft_tokens"].array.item() == 0


def test_several_sequences_come_each_by_itself(asker: Asker) -> None:
    answers = asker.ask("hello", max_tokens=6, num_return_sequences=3, top_k=20).wait()
    assert sorted(answer.outputs["sequence_index"].array.item() for answer in answers) == [0, 1, 2]
    pieces = asker.ask("hello", max_tokens=6, num_return_sequences=3, top_k=20, stream=True).wait()
    for answer in answers:
        index = answer.outputs["sequence_index"].array.item()
        own = [piece for piece in pieces if piece.outputs["sequence_index"].array.item() == index]
        text = b"".join(piece.outputs["text_output"].array.item() for piece in own)
        assert answer.outputs["text_output"].array.item() == b"hello" + text


def test_a_stop_word_ends_only_the_sequence_that_has_it(asker: Asker) -> None:
    wishes: dict[str, Any] = {"max_tokens": 30, "num_return_sequences": 4, "top_k": 50, "exclude_input_in_output": True}
    plain = {
        answer.outputs["sequence_index"].array.item(): answer.outputs["text_output"].array.item().decode()
        for answer in asker.ask("hello", **wishes).wait()
    }
    word = plain[0][8:10]
    for answer in asker.ask("hello", stop_words=[word], **wishes).wait():
        whole = plain[answer.outputs["sequence_index"].array.item()]
        end = whole.find(word)
        text = answer.outputs["text_output"].array.item().decode()
        assert text == (whole[: end + len(word)] if end >= 0 else whole)


def test_beams_come_together(core: ServingCore, write_llm: WriteModel, direct: Direct, tokenizer: Tokenizer) -> None:
    write_llm(max_beam_width=3, max_batch_size=2)
    core.load("m")
    prompt = tokenizer.encode("hello")
    config, wanted = SamplingConfig(3, length_penalty=0.5), OutputConfig(return_log_probs=True)
    result = direct(Request(prompt, 8, sampling_config=config, output_config=wanted, end_id=2))
    texts = [tokenizer.decode(tokens) for tokens in result.output_token_ids]
    asked: dict[str, Any] = {"max_tokens": 8, "beam_width": 3, "length_penalty": 0.5}
    outputs = Asker(core).ask("hello", return_log_probs=True, **asked).one().outputs
    assert [text.decode() for text in outputs["text_output"].array] == texts
    assert outputs["output_log_probs"].array.shape == (3, max(map(len, result.log_probs or ())))
    np.testing.assert_array_equal(outputs["cum_log_probs"].array, np.array(result.cum_log_probs, np.float32))
    last = Asker(core).ask("hello", stream=True, **asked).wait()[-1]
    assert [f"hello{text.decode()}" for text in last.outputs["text_output"].array] == texts


def test_sampling_parameters_are_those_of_vllm(asker: Asker) -> None:
    plain = asker.ask("hello", max_tokens=12).texts()
    assert asker.ask("hello", sampling_parameters='{"max_tokens": 12, "temperature": 0}').texts() == plain
    drawn = asker.ask("hello", max_tokens=12, top_p=1.0, temperature=0.7, seed=4).texts()
    said = '{"max_tokens": 99, "temperature": 0.7, "seed": 4, "n": 1, "stop": null}'
    assert asker.ask("hello", max_tokens=12, sampling_parameters=said).texts() == drawn


def test_a_request_parameter_is_heard(asker: Asker) -> None:
    request = asker.request("hello")
    request.asked = replace(request.asked, parameters={"max_tokens": 3, "colour": "red"})
    assert asker.send(request).texts() == asker.ask("hello", max_tokens=3).texts()


@pytest.mark.parametrize(("prompt", "opens"), [("a <think>\n", True), ("a <think> b", False)])
def test_the_first_response_shows_whether_a_prompt_ends_where_a_model_thinks(
    asker: Asker, prompt: str, opens: bool
) -> None:
    pieces = asker.ask(prompt, max_tokens=6, end_id=-1, stream=True, return_reasoning_open=True).wait()
    found = [piece.outputs["reasoning_open"].array.tolist() for piece in pieces if "reasoning_open" in piece.outputs]
    assert found == [[opens]]
    assert len(pieces) > 1


def test_rows_of_a_batch_are_answered_each_by_itself(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(config="max_batch_size: 4")
    core.load("m")
    asker = Asker(core)
    single = asker.ask("hello", batching=True, max_tokens=5).one()
    assert single.outputs["text_output"].array.shape == (1, 1)
    assert "batch_index" not in single.outputs
    request = asker.request("hello", batching=True, max_tokens=5)
    for name, values in (("text_input", [[b"hello"], [b"abc"]]), ("stop_words", [[b"never"], [b""]])):
        tensor = Tensor(DataType.BYTES, np.array(values, np.object_))
        request.inputs = {**request.inputs, name: tensor}
    request.inputs["max_tokens"].array = np.array([[5], [7]], np.int32)
    answers = asker.send(request).wait()
    assert sorted(answer.outputs["batch_index"].array.tolist() for answer in answers) == [[[0]], [[1]]]
    by_row = {
        answer.outputs["batch_index"].array.item(): answer.outputs["text_output"].array.item() for answer in answers
    }
    assert by_row[0] == single.outputs["text_output"].array.item()
    assert by_row[1] == asker.ask("abc", batching=True, max_tokens=7).one().outputs["text_output"].array.item()


def test_only_wanted_outputs_are_sent(asker: Asker) -> None:
    request = asker.request("hello", max_tokens=3, return_log_probs=True)
    request.requested_outputs = ("cum_log_probs",)
    assert list(asker.send(request).one().outputs) == ["cum_log_probs"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"max_tokens": -1}, "Request.max_tokens must be >= 1, not -1"),
        ({"temperature": -1.0}, "SamplingConfig.temperature must be >= 0, not -1"),
        ({"beam_width": 2}, "beam_width 2 is more than ExecutorConfig.max_beam_width"),
        ({"text_input": b"\xff"}, "input 'text_input' is not UTF-8"),
        ({"text_input": ""}, "Request.input_token_ids must not be empty"),
        ({"text_input": "x" * 300}, "the prompt has 300 tokens, and the model takes at most 255"),
        ({"sampling_parameters": "{"}, "input 'sampling_parameters' is not valid JSON"),
        ({"sampling_parameters": "[]"}, "must be a JSON object"),
        ({"sampling_parameters": '{"best_of": 2}'}, "best_of is not known; there are allowed_token_ids, bad_words"),
        ({"sampling_parameters": '{"temperature": "hot"}'}, "SamplingConfig.temperature must be"),
        ({"sampling_parameters": '{"stop": [7]}'}, "stop_words must be texts"),
        ({"guided_decoding_guide_type": "poem"}, "guided_decoding_guide_type must be one of json"),
        ({"guided_decoding_guide_type": "json"}, "the model's parameter 'guided_decoding_backend' is not set"),
        ({"embedding_bias_words": ["a"]}, "must be as many, not 1 and 0"),
        ({"lora_config": np.zeros((1, 3), np.int32)}, "need lora_task_id"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong_and_harms_no_other(asker: Asker, values: Any, text: str) -> None:
    running = asker.ask("hello", max_tokens=100, stream=True)
    with pytest.raises(InvalidArgumentError, match=text):
        asker.ask(values.pop("text_input", "hello"), **values).one()
    assert running.texts()


def test_what_a_model_cannot_do_is_refused_by_name(asker: Asker) -> None:
    with pytest.raises(UnsupportedError, match="the model takes no adapters"):
        asker.ask("hello", lora_task_id=1).one()


def test_a_row_that_fails_ends_its_whole_request(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(config="max_batch_size: 4")
    core.load("m")
    asker = Asker(core)
    request = asker.request("hello", batching=True, max_tokens=200)
    request.inputs["text_input"].array = np.array([[b"hello"], [b"y" * 300]], np.object_)
    request.inputs["max_tokens"].array = np.array([[200], [5]], np.int32)
    with pytest.raises(InvalidArgumentError, match="the model takes at most 255"):
        asker.send(request).one()
    assert asker.ask("hello", batching=True, max_tokens=5).one()


def _until_it_runs() -> None:
    """A request that does not stream answers nothing meanwhile: the metrics show that its model has it."""
    active = 'nv_trt_llm_request_metrics{model="m",version="1",request_type="active"} 1'
    while active not in REGISTRY.text().splitlines():
        threading.Event().wait(0.01)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_is_given_up_ends_soon(patient: Asker, stream: bool) -> None:
    request = patient.request("hello", max_tokens=30_000, stream=stream, end_id=-1)
    answers = patient.send(request)
    if stream:
        assert answers.first.wait(60)
    else:
        _until_it_runs()
    request.cancel()
    assert isinstance(answers.wait()[-1].error, CancelledError)
    statistics = patient.core.statistics("m")["model_stats"][0]
    assert statistics["response_stats"]["0"]["fail"]["count"] == (0 if stream else 1)


def test_a_request_whose_time_is_over_gets_an_error(patient: Asker) -> None:
    request = patient.request("hello", max_tokens=30_000, end_id=-1)
    request.asked = replace(request.asked, timeout_us=50_000)
    with pytest.raises(UnavailableError, match="timeout expired"):
        patient.send(request).one()


def test_an_unload_waits_for_what_runs(asker: Asker) -> None:
    answers = [asker.ask("hello", max_tokens=150, stream=True, end_id=-1) for _ in range(5)]
    for item in answers:
        assert item.first.wait(60)
    asker.core.unload("m", wait=True)
    assert {"".join(item.texts()) for item in answers} == {"".join(answers[0].texts())}
    assert not [thread.name for thread in threading.enumerate() if thread.name == "repoagent-m-llm"]


@pytest.mark.slow
def test_a_crowd_that_comes_and_goes_leaves_nothing_behind(asker: Asker) -> None:
    source = random.Random(11)
    requests = []
    for number in range(120):
        words: dict[str, Any] = {} if number % 3 else {"stop_words": ["a", "zz"]}
        request = asker.request(
            "".join(source.choices("abcdef ", k=source.randint(1, 40))),
            max_tokens=source.randint(1, 120),
            stream=source.random() < 0.5,
            **words,
        )
        requests.append((request, asker.send(request)))
        if source.random() < 0.3:
            source.choice(requests)[0].cancel()
    for _, answers in requests:
        responses = answers.wait()
        assert all(response.error is None or isinstance(response.error, CancelledError) for response in responses)
        assert not any(response.error for response in responses[:-1])
    assert asker.ask("hello", max_tokens=3).texts() == asker.ask("hello", max_tokens=3).texts()


def test_a_full_queue_is_told(patient: Asker) -> None:
    running = patient.request("hello", max_tokens=30_000, stream=True, end_id=-1)
    answers = patient.send(running)
    assert answers.first.wait(60)
    waiting = patient.ask("hello", max_tokens=1)
    with pytest.raises(UnavailableError, match="Maximum queue size of 1 has been reached, please try again later"):
        patient.ask("hello", max_tokens=1).one()
    running.cancel()
    assert waiting.texts()
    answers.wait()


def test_a_model_without_streams_answers_plain_requests(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(config="model_transaction_policy { decoupled: false }")
    core.load("m")
    asker = Asker(core)
    response = core.infer(asker.request("hello", max_tokens=6))
    assert response.outputs["text_output"].array.tolist() == [asker.ask("hello", max_tokens=6).texts()[0].encode()]
    for wishes in ({"stream": True}, {"num_return_sequences": 2, "top_k": 4}):
        with pytest.raises(InvalidArgumentError, match="only supported in decoupled mode"):
            core.infer(asker.request("hello", **wishes))


def test_plain_requests_of_several_threads_run_together(
    core: ServingCore, write_llm: WriteModel, tireless: Path
) -> None:
    write_llm(config="model_transaction_policy { decoupled: false }", folder=tireless, max_seq_len=30_000)
    core.load("m")
    asker = Asker(core)
    long = asker.request("hello", max_tokens=29_000, end_id=-1)
    errors: list[Exception] = []

    def infer() -> None:
        try:
            core.infer(long)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=infer)
    thread.start()
    assert core.infer(asker.request("hello", max_tokens=3)).outputs
    assert thread.is_alive()
    long.cancel()
    thread.join(60)
    assert errors


def test_a_folder_without_a_configuration_is_known_for_what_it_is(
    core: ServingCore, write_llm: WriteModel, decoder: Path
) -> None:
    (write_llm() / "config.pbtxt").unlink()
    core.load("m")
    assert core.model_config("m")["backend"] == "llm"
    assert Asker(core).ask("hello", max_tokens=3).texts()


def test_beams_with_stop_words_and_logits_have_the_form_of_beams(core: ServingCore, write_llm: WriteModel) -> None:
    write_llm(max_beam_width=2)
    core.load("m")
    asked: dict[str, Any] = {"max_tokens": 5, "beam_width": 2, "return_generation_logits": True}
    plain = Asker(core).ask("hello", **asked).one().outputs
    with_words = Asker(core).ask("hello", stop_words=["never so"], **asked).one().outputs
    assert with_words["text_output"].array.tolist() == plain["text_output"].array.tolist()
    # Not to the last bit: the second one found its prompt in the cache.
    np.testing.assert_allclose(with_words["generation_logits"].array, plain["generation_logits"].array, atol=1e-4)
    assert plain["generation_logits"].array.shape[0] == 2
