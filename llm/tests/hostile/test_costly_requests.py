"""A request for a text costs no more than its share: too much is refused soon, and what takes long delays nobody."""

import json
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import Executor
from repoagent_llm.backend.model import _THREADS
from repoagent_llm.engine.guide import Guide
from repoagent_llm.guidance import llguidance_backend, trial
from repoagent_llm.guidance.llguidance_backend import LlguidanceFactory
from repoagent_llm.types.guidance import GuidedDecodingParams

from llm.tests.backend.conftest import Answers, Asker
from llm.tests.backend.tiny import byte_level, write_decoder
from repoagent.errors import CancelledError, InvalidArgumentError
from repoagent.limits import Limits
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import DataType, Tensor

#: More than any machine needs to say no, less than it would take to do what is asked.
_SOON = 5.0
_MANY = 10**6
_DECOUPLED = 'backend: "llm" model_transaction_policy { decoupled: true }'
NewAsker = Callable[..., Asker]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for texts of some length."""
    tokenizer = byte_level()
    return write_decoder(tmp_path_factory.mktemp("costly") / "decoder", tokenizer, max_position_embeddings=20_000)


@pytest.fixture
def new_asker(tmp_path: Path, folder: Path) -> Iterator[NewAsker]:
    """``new_asker(limits, config, **parameters)``: the model, and who asks it; ``config``: more settings."""
    place = tmp_path / "models" / "m"
    place.mkdir(parents=True)
    shutil.copytree(folder, place / "1")
    cores: list[ServingCore] = []

    def make(limits: Limits | None = None, config: str = "", **parameters: Any) -> Asker:
        values = {
            "guided_decoding_backend": "llguidance",
            "intra_op_thread_count": 1,
            "max_seq_len": 20_000,
            **parameters,
        }
        lines = [f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}' for key, text in values.items()]
        (place / "config.pbtxt").write_text("\n".join([_DECOUPLED, config, *lines]))
        options = CoreOptions(
            repositories=(str(tmp_path / "models"),), control_mode=ControlMode.EXPLICIT, limits=limits or Limits()
        )
        cores.append(ServingCore(options))
        cores[-1].start()
        cores[-1].load("m")
        return Asker(cores[-1])

    yield make
    for core in cores:
        core.stop()


def refused(answers: Answers, text: str) -> None:
    (response,) = answers.wait()
    assert isinstance(response.error, InvalidArgumentError), response.error
    assert text in str(response.error)
    assert len(str(response.error)) < 800


def guide(kind: str, text: str) -> dict[str, Any]:
    return {"guided_decoding_guide_type": kind, "guided_decoding_guide": text, "max_tokens": 3}


def test_a_prompt_of_eight_megabytes_is_refused_before_it_is_read(new_asker: NewAsker) -> None:
    asker = new_asker(max_seq_len=96)
    before = time.process_time()
    refused(asker.ask("hello wor" * _MANY), "the prompt has 9000000 bytes, and the model takes at most 65536")
    assert time.process_time() - before < _SOON


def test_a_prompt_may_be_as_long_as_its_tokens_can_be(new_asker: NewAsker) -> None:
    asker = new_asker(limits=Limits(prompt_bytes=90_000))
    refused(asker.ask("hell" * 17_000 + "x"), "and the model takes at most 19999 (max_seq_len - 1)")
    refused(asker.ask("hell" * 24_000), "--limit-prompt-bytes of the server")


@pytest.mark.parametrize("name", ["bad_words", "stop_words", "embedding_bias_words", "embedding_bias_weights"])
def test_a_hundred_thousand_words_are_refused_before_they_are_read(new_asker: NewAsker, name: str) -> None:
    asker = new_asker()
    request = asker.request("hello")
    weights = name.endswith("weights")
    words = [f"w{number}".encode() for number in range(100_000)]
    array = np.ones(100_000, np.float32) if weights else np.array(words, object)
    request.inputs = {**request.inputs, name: Tensor(DataType.FP32 if weights else DataType.BYTES, array)}
    refused(asker.send(request), f"{name} has 100000 elements, more than 1024; --limit-words of the server")


@pytest.mark.parametrize("name", ["bad_words", "stop_words", "stop_token_ids"])
def test_so_they_are_in_sampling_parameters(new_asker: NewAsker, name: str) -> None:
    many = [1] * 2000 if name == "stop_token_ids" else ["w"] * 2000
    asker = new_asker()
    refused(asker.ask("hello", sampling_parameters=json.dumps({name: many})), "--limit-words of the server")
    said = json.dumps({"stop_words": ["w" * _MANY]})
    refused(asker.ask("hello", sampling_parameters=said), "--limit-word-bytes of the server")


def test_words_of_a_megabyte_are_refused(new_asker: NewAsker) -> None:
    refused(new_asker().ask("hello", bad_words=["w" * _MANY]), "bad_words has 1000000 bytes, more than 65536")


def test_half_a_character_is_refused_by_name(new_asker: NewAsker) -> None:
    refused(new_asker().ask("hello", sampling_parameters='{"stop": ["\\ud800"]}'), "stop_words has a character that is")


@pytest.mark.parametrize(("texts", "stream"), [(1, False), (1, True), (128, True)])
def test_log_probs_of_a_long_prompt_are_refused_before_any_is_made(
    new_asker: NewAsker, monkeypatch: pytest.MonkeyPatch, texts: int, stream: bool
) -> None:
    """Each of 13,000 tokens, and 20 others in its place, once for each text."""
    asker = new_asker(max_tokens_in_paged_kv_cache=60_000)
    monkeypatch.setattr(Executor, "enqueue_requests", lambda *_: pytest.fail("it was computed"))
    prompt = "x" * (13_000 if texts == 1 else 200)
    wishes: dict[str, Any] = {"prompt_log_probs": 20, "stream": stream, "num_return_sequences": texts, "top_p": 0.9}
    count = len(prompt) * 21 * texts
    refused(
        asker.ask(prompt, max_tokens=1, **wishes),
        f"the answer has {count} log-probabilities of prompts, more than 262144; --limit-log-probs of the server",
    )
    refused(asker.ask(prompt, max_tokens=0, **wishes), "--limit-log-probs of the server")


def test_as_many_log_probs_as_the_limit_are_made(new_asker: NewAsker) -> None:
    asker = new_asker(limits=Limits(log_probs=12))
    assert len(asker.ask("xxxxxx", max_tokens=0, prompt_log_probs=1).one().outputs["prompt_token_log_probs"].array) == 6
    refused(asker.ask("xxxxxxx", max_tokens=0, prompt_log_probs=1), "the answer has 14 log-probabilities of prompts")


def test_log_probs_of_texts_that_come_whole_have_the_same_limit(new_asker: NewAsker) -> None:
    """Each takes 150 bytes until its text has ended; those of a stream go with its pieces."""
    asker = new_asker(limits=Limits(log_probs=400))
    wishes: dict[str, Any] = {"top_log_probs": 9, "end_id": -1, "num_return_sequences": 4, "top_p": 0.9}
    assert len(asker.ask("hello", max_tokens=10, **wishes).wait()) == 4
    stops: tuple[dict[str, Any], ...] = ({}, {"stop_words": ["no such word"]})
    for stop in stops:
        refused(asker.ask("hello", max_tokens=15_000, **stop, **wishes), "more than 400 log-probabilities")
    streamed = asker.ask("hello", max_tokens=50, stream=True, **wishes).wait()
    assert all(response.error is None for response in streamed)
    assert sum(response.outputs["token_log_probs"].array.size for response in streamed if response.outputs) == 200


def test_the_rows_of_a_request_share_that_limit(new_asker: NewAsker) -> None:
    asker = new_asker(limits=Limits(log_probs=100), config="max_batch_size: 8")
    for rows, fits in ((2, True), (8, False)):
        request = asker.request("hello", batching=True)
        arrays: dict[str, list[Any]] = {
            "text_input": [[b"hello"]],
            "max_tokens": [[5]],
            "top_log_probs": [[9]],
            "end_id": [[-1]],
        }
        for name, value in arrays.items():
            kind = DataType.BYTES if name == "text_input" else DataType.INT32
            tensor = Tensor(kind, np.array(rows * value, object if kind is DataType.BYTES else np.int32))
            request.inputs = {**request.inputs, name: tensor}
        answers = asker.send(request)
        if fits:
            assert [response.error for response in answers.wait()] == [None] * rows
        else:
            refused(answers, "more than 100 log-probabilities")


@pytest.mark.parametrize(
    ("name", "prompt", "tokens"), [("return_context_logits", 19_000, 1), ("return_generation_logits", 5, 19_000)]
)
def test_logits_of_a_gigabyte_are_refused(new_asker: NewAsker, name: str, prompt: int, tokens: int) -> None:
    asker = new_asker(limits=Limits(tensor_bytes=16 << 20))
    wanted: dict[str, Any] = {name: True}
    refused(asker.ask("x" * prompt, max_tokens=tokens, **wanted), "bytes of logits, more than 16777216")
    asker.ask("hello", max_tokens=2, **wanted).one()


HUGE = {
    "regex-of-200-kB": ("regex", "|".join(f"a{number}" for number in range(30_000)), "--limit-guide-bytes"),
    "grammar-of-200-kB": ("ebnf_grammar", "root ::= " + ' "a" ' * 40_000, "--limit-guide-bytes"),
    "a-character-a-billion-times": ("regex", "a{1000000000}", "--limit-guide-repetitions"),
    "at-least-a-billion": ("regex", "(ab){1000000000,}", "--limit-guide-repetitions"),
    "up-to-a-billion": ("regex", "a{ 1 , 1000000000 }", "--limit-guide-repetitions"),
    "digits-without-end": ("regex", "a{" + "9" * 5000 + "}", "--limit-guide-repetitions"),
    "in-a-grammar": ("ebnf_grammar", 'root ::= "a"{1000000000}', "--limit-guide-repetitions"),
    "in-a-pattern": ("json_schema", '{"type": "string", "pattern": "a{1000000000}"}', "--limit-guide-repetitions"),
    "items": ("json_schema", '{"type": "array", "minItems": 1000000000}', "--limit-guide-repetitions"),
    "items-as-a-power": ("json_schema", '{"type": "array", "minItems": 1e9}', "--limit-guide-repetitions"),
    "lengths": ("json_schema", '{"type": "string", "minLength": 1000000000}', "--limit-guide-repetitions"),
}
DEEP = {
    "parentheses": ("ebnf_grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "groups": ("regex", "(" * 20_000 + "a" + ")" * 20_000),
    "schemas": ("json_schema", '{"items":' * 6000 + "{}" + "}" * 6000),
    "lists": ("json_schema", "[" * 60_000),
    "schemas-in-a-tag": (
        "structural_tag",
        '{"structures": [{"begin": "<a", "end": "", "schema": '
        + '{"not":' * 500
        + "1"
        + "}" * 500
        + '}], "triggers": "<"}',
    ),
    "groups-in-a-pattern": ("json_schema", '{"type": "string", "pattern": "' + "\\u0028" * 500 + '"}'),
    "classes": ("regex", "[" * 500),
    "groups-behind-a-class": ("regex", "[ab]" + "(" * 500),
    "groups-with-closing-characters": ("regex", r"(\)" * 500),
}
#: What llguidance would compile for minutes, whatever its own limits are, and what Python would read for as long.
ENDLESS = {
    "several-patterns": (
        "json_schema",
        json.dumps(
            {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{size}}}"} for size in range(8, 25)]},
        ),
    ),
    "multiples": ("json_schema", '{"type": "integer", "multipleOf": 99999989}'),
    "several-expressions": (
        "ebnf_grammar",
        "start: X\nX: " + " & ".join(f"/(a|b)*a(a|b){{{size}}}(a|b)*/" for size in range(5, 60)),
    ),
}


def test_a_guide_without_end_is_ended_and_costs_this_process_nothing(
    new_asker: NewAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_SECONDS", 0.5)
    asker = new_asker()
    good = guide("regex", "hello")
    asker.ask("hello", **good).one()
    before, threads = resource.getrusage(resource.RUSAGE_SELF), threading.active_count()
    for kind, text in ENDLESS.values():
        refused(asker.ask("hello", **guide(kind, text)), "takes more than 0.5 seconds or too much memory")
        asker.ask("hello", **good).one()
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_utime - before.ru_utime < _SOON
    assert after.ru_maxrss - before.ru_maxrss < 100 << 10
    assert threading.active_count() <= threads + 1  # one that knows the guides, another that reads the next


def test_a_grammar_of_empty_lines_is_refused_soon(new_asker: NewAsker) -> None:
    before = time.process_time()
    refused(new_asker().ask("hello", **guide("ebnf_grammar", "\n" * 60_000)), "No 'root' rule")
    assert time.process_time() - before < _SOON


def test_a_guide_that_would_take_for_ever_is_refused_before_it_is_compiled(new_asker: NewAsker) -> None:
    asker = new_asker()
    for kind, text, limit in HUGE.values():
        refused(asker.ask("hello", **guide(kind, text)), f"{limit} of the server sets the limit")
    for kind, text in DEEP.values():
        refused(asker.ask("hello", **guide(kind, text)), "nested too deeply: more than 100 levels of brackets")
    for kind, text in (("json_schema", "5"), ("structural_tag", "[]")):
        refused(asker.ask("hello", **guide(kind, text)), "the guide cannot be")
    asker.ask("hello", **guide("regex", "[ab]" * 150)).one()  # one after the other


@pytest.mark.slow
def test_a_chain_of_thousands_of_rules_does_not_end_the_process(new_asker: NewAsker) -> None:
    """Compilers call themselves once for each rule: on a stack of the usual size that is the end of the server."""
    rules = [f"r{number}::=r{number + 1}" for number in range(4200)]
    text = "\n".join(["root::=r0", *rules, 'r4200::="x"'])
    assert 50_000 < len(text) < 1 << 16
    asker = new_asker()
    (response,) = asker.ask("hello", **guide("ebnf_grammar", text)).wait()
    assert response.error is None or isinstance(response.error, InvalidArgumentError)
    asker.ask("hello", max_tokens=2).one()


AMBIGUOUS = 'start: s\ns: s s | "a" | ""'
"""Each token of a text of it takes longer than the one before."""


def test_a_grammar_that_takes_ever_longer_ends_its_request(
    new_asker: NewAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llguidance_backend, "_HEAD_START", 0.05)  # else the test would take some seconds
    monkeypatch.setattr(llguidance_backend, "_EACH", 0.0005)
    asker = new_asker()
    wanted = guide("ebnf_grammar", AMBIGUOUS) | {"max_tokens": 5000, "min_tokens": 5000}
    refused(
        asker.ask("hello", **wanted, num_return_sequences=2),
        "the grammar takes too long: more than 0.0005 seconds for each token",
    )
    asker.ask("hello", **guide("regex", "[a-z]{100}") | {"max_tokens": 100}).one()


def _slow_guide() -> dict[str, Any]:
    rules = [f'r{number}::="a"r{number + 1}|"b{number}"' for number in range(600)]
    return guide("ebnf_grammar", "\n".join(["root::=r0", *rules, 'r600::="x"']))


_GUIDE = guide("ebnf_grammar", 'root::="x"')


class _Compiling:
    """Holds each grammar back where its compilation begins, until :meth:`go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = threading.Semaphore(0)
        self._gate = threading.Event()
        self.count = 0
        create = LlguidanceFactory.create

        def held(factory: LlguidanceFactory, params: GuidedDecodingParams) -> Guide:
            self.count += 1
            self._begun.release()
            assert self._gate.wait(60)
            return create(factory, params)

        monkeypatch.setattr(LlguidanceFactory, "create", held)

    def until_begun(self, count: int) -> None:
        """Return once so many have begun."""
        for _ in range(count):
            assert self._begun.acquire(timeout=60)

    def go_on(self) -> None:
        """Let all be compiled."""
        self._gate.set()


def test_while_grammars_are_compiled_others_are_answered(new_asker: NewAsker, monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than there are threads for them: texts without a guide come all the same."""
    compiling = _Compiling(monkeypatch)
    asker = new_asker()
    slow = [asker.ask("hello", **_GUIDE) for _ in range(_THREADS + 1)]
    compiling.until_begun(_THREADS)
    asker.ask("hello", max_tokens=2).one()
    asker.ask("x" * 5000, max_tokens=2, stream=True).wait()
    assert not any(answers.complete.is_set() for answers in slow)
    compiling.go_on()
    for answers in slow:
        answers.wait()


def test_a_request_that_is_given_up_while_it_waits_is_never_compiled(
    new_asker: NewAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiling = _Compiling(monkeypatch)
    asker = new_asker()
    slow = [asker.ask("hello", **_GUIDE) for _ in range(_THREADS)]
    compiling.until_begun(_THREADS)
    requests = [asker.request("hello", **_GUIDE) for _ in range(50)]
    waiting = [asker.send(request) for request in requests]
    for request in requests:
        request.cancel()
    for answers in waiting:
        (response,) = answers.wait()
        assert isinstance(response.error, CancelledError)
    compiling.go_on()
    for answers in slow:
        answers.wait()
    asker.ask("hello", **_GUIDE).one()  # its turn comes after theirs
    assert compiling.count == _THREADS + 1


@pytest.mark.slow
def test_an_unload_answers_what_still_waits(new_asker: NewAsker) -> None:
    asker = new_asker()
    waiting = [asker.ask("hello", **_slow_guide()) for _ in range(6)]
    done = threading.Thread(target=asker.core.unload, args=("m",))
    done.start()
    for answers in waiting:
        answers.wait()
    done.join(60)
    assert not done.is_alive()


def test_a_request_for_a_thousand_texts_fills_no_queue(new_asker: NewAsker) -> None:
    """Others are taken and answered while it is far from its end; it goes on then, until nobody waits for it."""
    asker = new_asker(max_tokens_in_paged_kv_cache=12_000, max_queue_size=8)
    request = asker.request("x" * 5000, max_tokens=500, num_return_sequences=1000, top_p=0.9, temperature=1.0)
    many = asker.send(request)
    assert many.first.wait(60)
    for _ in range(3):
        asker.ask("hello", max_tokens=2).one()
    assert len(many.responses) < 100
    request.cancel()
    assert isinstance(many.wait()[-1].error, CancelledError)
    asker.ask("hello", max_tokens=2).one()


def test_all_texts_of_a_request_come_and_none_outlives_its_time(new_asker: NewAsker) -> None:
    asker = new_asker(max_tokens_in_paged_kv_cache=6000)
    wishes: dict[str, Any] = {"num_return_sequences": 12, "top_p": 0.9, "temperature": 1.5}
    numbers = [
        int(response.outputs["sequence_index"].array.ravel()[0])
        for response in asker.ask("x" * 5000, max_tokens=3, **wishes).wait()
    ]
    assert sorted(numbers) == list(range(12))
    patient = InferRequest(Asked("m", asker.request("x" * 5000, max_tokens=3, **wishes).inputs, timeout_us=60_000_000))
    assert all(response.error is None for response in asker.send(patient).wait())
    request = asker.request("x" * 5000, max_tokens=500, **{**wishes, "num_return_sequences": 1000})
    hurried = InferRequest(Asked("m", request.inputs, timeout_us=500_000))
    assert "timeout" in str(asker.send(hurried).wait()[-1].error)
