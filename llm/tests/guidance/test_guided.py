"""Guided decoding end to end: whatever the model prefers, the output follows the grammar."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import jsonschema
import numpy as np
import pytest
from repoagent_llm import (
    DraftTargetDecodingConfig,
    Executor,
    ExecutorConfig,
    FinishReason,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    OutputConfig,
    Request,
    Response,
    SamplingConfig,
)
from repoagent_llm.guidance import create_guides
from repoagent_llm.guidance.vocabulary import Vocabulary
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from llm.tests.fake_runner import FakeRunner, hashed_logits

Kind = GuidedDecodingParams.GuideType
Backend = GuidedDecodingConfig.GuidedDecodingBackend
LIMIT = timedelta(seconds=120)
pytestmark = pytest.mark.usefixtures("one_trial")
TEXT = ['{"name": "abc", "values": [1, 2.5, true, null]}', "the quick brown fox", "<tool>", "</tool>", "\n\t"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["a", "b"]},
    },
    "required": ["name", "size", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet)
    made.train_from_iterator(TEXT * 4, trainer)
    return made


def _config(tokenizer: Tokenizer, backend: Backend = Backend.LLGUIDANCE) -> GuidedDecodingConfig:
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return GuidedDecodingConfig(backend, [text for text, _ in vocabulary], tokenizer.to_str(), stop_token_ids=[0])


@pytest.fixture(scope="module", params=list(Backend), ids=lambda backend: backend.name)
def executor(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Iterator[Executor]:
    size = tokenizer.get_vocab_size()
    guidance = _config(tokenizer, request.param)
    # Ten more tokens than the tokenizer knows, as padded vocabularies have them.
    runner = FakeRunner(vocab_size=size + 10, max_seq_len=400, logits=_short(hashed_logits(size + 10)))
    with Executor.from_runner(runner, ExecutorConfig(guided_decoding_config=guidance, max_beam_width=2)) as made:
        yield made


def _short(logits: Callable[[list[int]], Any]) -> Callable[[list[int]], Any]:
    """The end token, and quotes and brackets that close, are preferred, so that texts come to an end."""

    def shortened(history: list[int]) -> Any:
        row = logits(history)
        row[0] += 20
        return row

    return shortened


def _ask(executor: Executor, kind: Kind, guide: str | None = None, **options: Any) -> list[Response]:
    request = Request(
        [5],
        options.pop("max_tokens", 300),
        guided_decoding_params=GuidedDecodingParams(kind, guide),
        output_config=OutputConfig(exclude_input_from_output=True),
        **options,
    )
    request_id, found = executor.enqueue_request(request), []
    while True:
        found += executor.await_responses(request_id, LIMIT)
        if found[-1].has_error() or found[-1].result.is_final:
            return found


def _texts(tokenizer: Tokenizer, responses: list[Response]) -> list[str]:
    return [tokenizer.decode(response.result.output_token_ids[0]) for response in responses]


@pytest.mark.parametrize("seed", range(6))
def test_output_under_a_schema_is_valid(executor: Executor, tokenizer: Tokenizer, seed: int) -> None:
    sampling = SamplingConfig(top_p=0.9, seed=seed, temperature=0.7)
    (text,) = _texts(tokenizer, _ask(executor, Kind.JSON_SCHEMA, json.dumps(SCHEMA), sampling_config=sampling))
    jsonschema.validate(json.loads(text), SCHEMA)


def test_several_sequences_are_each_guided(executor: Executor, tokenizer: Tokenizer) -> None:
    sampling = SamplingConfig(top_p=0.99, seed=3, num_return_sequences=3, temperature=3.0)
    texts = _texts(tokenizer, _ask(executor, Kind.JSON_SCHEMA, json.dumps(SCHEMA), sampling_config=sampling))
    assert len(set(texts)) == 3
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)


_ANY_SPACE = {"type": "object", "x-guidance": {"whitespace_flexible": True}}
_TAG = {"structures": [{"begin": "<t>", "schema": {"type": "object"}, "end": "</t>"}], "triggers": ["<t>"]}


@pytest.mark.parametrize(
    ("kind", "guide", "may", "may_not"),
    [
        (Kind.JSON, None, ['{"a":1}', '{"a": 1, "b": [2, {}]}'], ['{"a":  1}', '{ "a":1}', '{"a":\n1}', '{"a":1}\n']),
        (
            Kind.JSON_SCHEMA,
            '{"type": "object"}',
            ['{"a":1}', '{"a": 1, "b": 2}'],
            ['{"a":  1}', '{ "a":1}', '{"a":1 }'],
        ),
        # M5: a name that is written twice counts twice, as the page states.
        (Kind.JSON_SCHEMA, '{"type": "object", "minProperties": 2}', ['{"a":1,"a":2}', '{"a":1,"b":2}'], ['{"a":1}']),
        (Kind.JSON_SCHEMA, json.dumps(_ANY_SPACE), ['{"a":1}', '{ "a"  :\n1 }'], ['{"a":1']),
        (Kind.STRUCTURAL_TAG, json.dumps(_TAG), ['so <t>{"a": 1}</t>'], ['<t>{ "a":1}</t>', '<t>{"a":  1}</t>']),
        (Kind.REGEX, r"\d[\d,]\w\D", ["1,b!", "12_é"], ["\u0663,b!", "1\u0663b!", "1,é!", "1,b2"]),
        (Kind.REGEX, r"\\d\s", [r"\d "], ["1 ", "\\d\u2003"]),
        (Kind.EBNF_GRAMMAR, 'start: X "//d" // \\d \nX: /\\d/', ["1//d"], ["\u0663//d"]),
        (Kind.JSON_SCHEMA, r'{"type": "string", "pattern": "^\\d$"}', ['"1"'], ['"\u0663"']),
    ],
)
def test_what_a_guide_lets_a_model_write(
    tokenizer: Tokenizer, kind: Kind, guide: str | None, may: list[str], may_not: list[str]
) -> None:
    """M1, M9: compact JSON, and ASCII where a pattern has a class."""
    guides = create_guides(_config(tokenizer), tokenizer.get_vocab_size(), [0])
    assert guides is not None

    def follows(text: str) -> bool:
        state = guides.create(GuidedDecodingParams(kind, guide))
        for token in [*tokenizer.encode(text).ids, 0]:
            row = np.zeros(tokenizer.get_vocab_size(), np.float32)
            state.mask(row)
            if row[token]:
                return False
            if token:
                state.accept(token)
        return True

    assert {text: follows(text) for text in may} == dict.fromkeys(may, True)
    assert {text: follows(text) for text in may_not} == dict.fromkeys(may_not, False)


def test_json_of_any_kind(executor: Executor, tokenizer: Tokenizer) -> None:
    (text,) = _texts(tokenizer, _ask(executor, Kind.JSON))
    json.loads(text)


def test_a_regular_expression(executor: Executor, tokenizer: Tokenizer) -> None:
    pattern = r"[a-f]{3}-[0-9]{2,4}(x|yz)"
    (text,) = _texts(tokenizer, _ask(executor, Kind.REGEX, pattern))
    assert re.fullmatch(pattern, text)


@pytest.mark.parametrize("bound", ["", "maxLength"])
def test_a_text_that_the_model_does_not_end_is_ended_by_its_bound_alone(tokenizer: Tokenizer, bound: str) -> None:
    """M1: a greedy model repeats itself. JSON without bounds is then cut, and its finish reason says so."""
    size, letter = tokenizer.get_vocab_size(), tokenizer.token_to_id("a")

    def repeating(history: list[int]) -> Any:
        row = np.zeros(size, np.float32)
        row[letter], row[0] = 2.0, 1.0  # then the end, where it is allowed
        return row

    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "string"}}}
    schema |= {"required": ["x", "y"], "additionalProperties": False}
    for text in schema["properties"].values() if bound else ():
        text[bound] = 5
    runner = FakeRunner(vocab_size=size, max_seq_len=400, logits=repeating)
    with Executor.from_runner(runner, ExecutorConfig(guided_decoding_config=_config(tokenizer))) as executor:
        answers = _ask(executor, Kind.JSON_SCHEMA, json.dumps(schema), max_tokens=60)
    (text,), reason = _texts(tokenizer, answers), answers[-1].result.finish_reasons[0]
    if bound:
        assert reason is FinishReason.END_ID
        assert {name: len(value) for name, value in json.loads(text).items()} == {"x": 5, "y": 5}
    else:
        assert reason is FinishReason.LENGTH
        assert text.endswith("aaaaaaaa")


def test_min_tokens_holds_for_the_tokens_that_end_a_guided_text(executor: Executor) -> None:
    # The end token is the likeliest by far, and the request names none of its own.
    (early,) = _ask(executor, Kind.REGEX, "[a-f]+")
    assert len(early.result.output_token_ids[0]) == 1
    (late,) = _ask(executor, Kind.REGEX, "[a-f]+", sampling_config=SamplingConfig(min_tokens=7))
    assert (len(late.result.output_token_ids[0]), late.result.finish_reasons) == (7, [FinishReason.END_ID])
    (never,) = _ask(executor, Kind.REGEX, "[a-f]", sampling_config=SamplingConfig(min_tokens=7))
    assert "no token can follow" in never.error_msg


def test_a_grammar(executor: Executor, tokenizer: Tokenizer) -> None:
    grammar = 'root ::= "(" item ("," item)? ")"\nitem ::= [0-9] | "n" [a-c]+ "."'
    (text,) = _texts(tokenizer, _ask(executor, Kind.EBNF_GRAMMAR, grammar))
    assert re.fullmatch(r"\(([0-9]|n[a-c]+\.)(,([0-9]|n[a-c]+\.))?\)", text)


def test_structural_tags(executor: Executor, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    guide = {
        "type": "structural_tag",
        "structures": [{"begin": "<tool>", "schema": schema, "end": "</tool>"}],
        "triggers": ["<tool"],
    }
    bias = np.zeros(tokenizer.get_vocab_size() + 10, np.float32)
    for token in tokenizer.encode("<tool>").ids:
        bias[token] = 60  # the model writes the tag of its own accord
    (text,) = _texts(
        tokenizer, _ask(executor, Kind.STRUCTURAL_TAG, json.dumps(guide), embedding_bias=bias, max_tokens=60)
    )
    calls = re.findall(r"<tool(.*?)</tool>", text, re.S)
    assert calls
    for call in calls:
        jsonschema.validate(json.loads(call.removeprefix(">")), schema)


def test_guided_and_unguided_requests_share_a_batch(executor: Executor, tokenizer: Tokenizer) -> None:
    def plain() -> Request:
        return Request([7, 8], 20, end_id=-1)

    (alone,) = executor.await_responses(executor.enqueue_request(plain()), LIMIT)
    guide = GuidedDecodingParams(Kind.JSON_SCHEMA, json.dumps(SCHEMA))
    ids = executor.enqueue_requests([plain(), Request([5], 300, guided_decoding_params=guide), plain()])
    found = executor.await_responses(ids, LIMIT)
    assert found[0][0].result.output_token_ids == alone.result.output_token_ids
    assert found[2][0].result.output_token_ids == alone.result.output_token_ids


@pytest.mark.parametrize(
    ("kind", "guide", "text"),
    [
        (Kind.JSON_SCHEMA, "{", "cannot be read as JSON_SCHEMA"),
        (Kind.JSON_SCHEMA, '{"type": "nothing"}', "cannot be compiled as JSON_SCHEMA"),
        (Kind.REGEX, "(", "cannot be compiled as REGEX"),
        (Kind.EBNF_GRAMMAR, "root ::= other", "EBNF_GRAMMAR"),
        (
            Kind.STRUCTURAL_TAG,
            '{"structures": [{"begin": "a", "schema": {}, "end": ""}], "triggers": ["b"]}',
            "trigger",
        ),
    ],
)
def test_a_bad_guide_is_an_error_of_its_request(executor: Executor, kind: Kind, guide: str, text: str) -> None:
    (response,) = _ask(executor, kind, guide)
    assert text in response.error_msg


def test_guided_requests_need_a_guided_executor_and_no_beams(executor: Executor) -> None:
    with Executor.from_runner(FakeRunner(), ExecutorConfig()) as plain:
        (response,) = _ask(plain, Kind.JSON)
        assert "guided_decoding_config is not set" in response.error_msg
    request = Request([5], 3, guided_decoding_params=GuidedDecodingParams(Kind.JSON))
    request.sampling_config.beam_width = 2  # past the check of the constructor
    (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
    assert "beam search" in response.error_msg


@pytest.mark.parametrize(
    ("config", "error", "text"),
    [
        (GuidedDecodingConfig(Backend.XGRAMMAR), RuntimeError, "encoded_vocab is needed"),
        (GuidedDecodingConfig(Backend.LLGUIDANCE), RuntimeError, "encoded_vocab is needed"),
        (
            GuidedDecodingConfig(Backend.LLGUIDANCE, ["", ""], stop_token_ids=[1]),
            RuntimeError,
            "encoded_vocab is needed",
        ),
        (GuidedDecodingConfig(Backend.LLGUIDANCE, ["a"] * 33, None, [0]), RuntimeError, "33 tokens"),
        (GuidedDecodingConfig(Backend.LLGUIDANCE, ["a"]), RuntimeError, "stop_token_ids is needed"),
        (GuidedDecodingConfig(Backend.LLGUIDANCE, ["a"], None, [99]), RuntimeError, "99"),
        (GuidedDecodingConfig(Backend.LLGUIDANCE, ["a"], "{", [0]), RuntimeError, "not a tokenizer's JSON"),
    ],
)
def test_vocabularies_that_cannot_be_are_refused(
    config: GuidedDecodingConfig, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Executor.from_runner(FakeRunner(), ExecutorConfig(guided_decoding_config=config))


def test_tokens_become_bytes_as_their_tokenizer_says(tokenizer: Tokenizer) -> None:
    texts = ["\u0120a", "\u010a", "b"]
    level = Vocabulary.of(texts, tokenizer.to_str(), [0], 4)
    assert level.tokens == [b" a", b"\n", b"b", b""]
    fallback = json.dumps({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}})
    assert Vocabulary.of(["\u2581a", "<0x0A>"], fallback, [0], 2).tokens == [b" a", b"\n"]
    assert Vocabulary.of(["\u00e4"], None, [0], 1).tokens == ["\u00e4".encode()]
    assert tokenizer.token_to_id("<end>") in Vocabulary.of(["x"], tokenizer.to_str(), [1], 2).special_ids


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(top_p=0.9, seed=4)])
@pytest.mark.parametrize("broken", [False, True])
def test_what_a_guide_forces_takes_a_run_for_many_tokens(
    sampling: SamplingConfig, broken: bool, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is guessed only: what the text is does not depend on it."""

    def fail(_: object) -> list[int]:
        raise RuntimeError("no")

    if broken:
        monkeypatch.setattr("repoagent_llm.guidance.llguidance_backend._LlguidanceGuide.forced", fail)
    size, widths = tokenizer.get_vocab_size(), list[int]()
    runner = FakeRunner(
        vocab_size=size,
        max_seq_len=400,
        logits=lambda history: hashed_logits(size)(history) + _longest(tokenizer),
        before_step=lambda segments: widths.extend(len(segment.tokens) for segment in segments),
    )
    with Executor.from_runner(runner, ExecutorConfig(guided_decoding_config=_config(tokenizer))) as made:
        (response,) = _ask(made, Kind.REGEX, "the quick brown fox " * 10 + "(a|b)", sampling_config=sampling)
        (short,) = _ask(made, Kind.REGEX, "the quick brown fox " * 10, max_tokens=3, sampling_config=sampling)
    assert re.fullmatch("(the quick brown fox ){10}[ab]", _texts(tokenizer, [response])[0])
    assert short.result.output_token_ids[0] == response.result.output_token_ids[0][:3]
    assert (max(widths) == 1) if broken else (5 < max(widths) <= 17)  # a token and at most 16 guesses


_BESIDE: dict[str, dict[str, Any]] = {
    "a stop word within": {"stop_words": [[ord("q")], [ord("b"), ord("r")]]},
    "a banned word": {"bad_words": [[ord("q")]]},
    "several texts": {"sampling_config": SamplingConfig(num_return_sequences=3, top_p=0.9, seed=5, temperature=2.0)},
    "n-grams": {"sampling_config": SamplingConfig(no_repeat_ngram_size=3)},
    "penalties": {"sampling_config": SamplingConfig(frequency_penalty=1.5, repetition_penalty=1.3, seed=3, top_k=9)},
    "no early end": {"sampling_config": SamplingConfig(min_tokens=20)},
    "a limit within": {"max_tokens": 9},
    "streaming": {"streaming": True},
}


@pytest.fixture(scope="module")
def preferring(tokenizer: Tokenizer) -> Iterator[Executor]:
    """One for all guides, as the process that compiles them takes longer to start than they do. See ``_longest``."""
    size, longest = tokenizer.get_vocab_size(), _longest(tokenizer)
    runner = FakeRunner(vocab_size=size, max_seq_len=400, logits=lambda history: hashed_logits(size)(history) + longest)
    with Executor.from_runner(runner, ExecutorConfig(guided_decoding_config=_config(tokenizer))) as made:
        yield made


@pytest.mark.parametrize("beside", _BESIDE)
@pytest.mark.parametrize("guide", ["the quick brown fox( the quick brown fox)* (a|b)?", "日the", "the日", "(the )+日"])
def test_what_is_forced_changes_nothing_of_an_answer(
    guide: str, beside: str, preferring: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for forced in (True, False):
        if not forced:
            monkeypatch.setattr("repoagent_llm.guidance.llguidance_backend._LlguidanceGuide.forced", lambda _: [])
        request = Request(
            [5],
            **{"max_tokens": 60, "end_id": 0, **_BESIDE[beside]},
            guided_decoding_params=GuidedDecodingParams(Kind.REGEX, guide),
            output_config=OutputConfig(exclude_input_from_output=True, return_log_probs=True),
        )
        found.append(_whole(preferring.await_responses(preferring.enqueue_request(request), timeout=LIMIT), preferring))
    assert found[0] == found[1]


def _whole(responses: list[Response], executor: Executor) -> dict[int, list[Any]]:
    """Tokens, log-probs, reason and error of each sequence, whatever pieces they came in."""
    whole: dict[int, list[Any]] = {}
    while True:
        for response in responses:
            if response.has_error():
                return {**whole, -1: [response.error_msg]}
            result = response.result
            part = whole.setdefault(result.sequence_index, [[], None, None])
            part[0] += result.output_token_ids[0]
            part[1:] = [result.log_probs, result.finish_reasons]
            if result.is_final:
                return whole
        responses = executor.await_responses(responses[-1].request_id, timeout=LIMIT)


def _longest(tokenizer: Tokenizer) -> Any:
    """A model that, as real ones do, prefers what its tokenizer would make of a text."""
    texts = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return np.array([30.0 * len(text) for text, _ in texts], np.float32)


def test_a_draft_model_follows_the_grammar_too(tokenizer: Tokenizer) -> None:
    size = tokenizer.get_vocab_size()
    config = ExecutorConfig(guided_decoding_config=_config(tokenizer))
    config.speculative_config = DraftTargetDecodingConfig(3)
    logits = _short(hashed_logits(size))
    drafter = FakeRunner(vocab_size=size, max_seq_len=400, logits=logits)
    with Executor.from_runner(FakeRunner(vocab_size=size, max_seq_len=400, logits=logits), config, drafter) as made:
        for sampling in (SamplingConfig(), SamplingConfig(top_p=0.9, seed=4)):
            (response,) = _ask(made, Kind.JSON_SCHEMA, json.dumps(SCHEMA), sampling_config=sampling)
            jsonschema.validate(json.loads(_texts(tokenizer, [response])[0]), SCHEMA)
        stats = [item.specdec_stats for item in made.get_latest_iteration_stats() if item.specdec_stats]
    assert sum(item.num_accepted_tokens for item in stats) == sum(item.num_draft_tokens for item in stats) > 10
