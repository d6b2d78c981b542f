"""What becomes of requests when the executor ends."""

import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from repoagent_llm import Executor, ExecutorConfig, IterationStats, ModelType, Request, RunnerOptions
from repoagent_llm.backend import dispatcher as module
from repoagent_llm.backend.backend import LlmBackend
from repoagent_llm.backend.dispatcher import Dispatcher
from repoagent_llm.backend.generation import Form, Generation, Reply
from repoagent_llm.backend.llm_metrics import Course, LlmMetrics
from repoagent_llm.backend.model import LlmModel
from repoagent_llm.backend.tokenizing import Tokenizer
from repoagent_llm.types.request import EngineRequest

from llm.tests.backend.conftest import Answers
from repoagent.config import ModelConfig
from repoagent.errors import UnavailableError
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.storage.files.files import DirectoryFiles

ENDLESS = 29_000


@pytest.fixture
def executor(tireless: Path) -> Iterator[Executor]:
    config = ExecutorConfig()
    vars(config)["runner_options"] = RunnerOptions(max_seq_len=30_000)
    with Executor(tireless, ModelType.DECODER_ONLY, config) as executor:
        yield executor


@pytest.fixture
def dispatcher(executor: Executor) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(executor, "m", LlmMetrics("m", "1"))
    yield dispatcher
    dispatcher.close()


def start(dispatcher: Dispatcher, tokenizer: Tokenizer, max_tokens: int) -> Answers:
    answers = Answers()
    reply = Reply(InferRequest(Asked("m", {}), answers), "1", 1, ["text_output"], batching=False)
    request = EngineRequest.of(Request([5, 6], max_tokens, streaming=True))
    dispatcher.submit(reply, [Generation(request, reply, 0, tokenizer, Form(stream=True))])
    return answers


def test_what_is_unanswered_when_the_executor_breaks_down_gets_an_error(
    executor: Executor, dispatcher: Dispatcher, tokenizer: Tokenizer
) -> None:
    running = start(dispatcher, tokenizer, ENDLESS)
    assert running.first.wait(60)
    before = dispatcher.alive
    executor.shutdown()
    assert isinstance(running.wait()[-1].error, UnavailableError)
    assert (before, dispatcher.alive) == (True, False)
    assert isinstance(start(dispatcher, tokenizer, 1).wait()[-1].error, UnavailableError)


def test_a_close_answers_what_runs(dispatcher: Dispatcher, tokenizer: Tokenizer) -> None:
    running = start(dispatcher, tokenizer, ENDLESS)
    assert running.first.wait(60)
    dispatcher.close()
    assert isinstance(running.wait()[-1].error, UnavailableError)


def test_a_reply_that_cannot_be_made_ends_its_request_only(
    dispatcher: Dispatcher, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(dispatcher, tokenizer, ENDLESS)
    assert running.first.wait(60)
    with monkeypatch.context() as patched:
        patched.setattr(Reply, "send", lambda *args, **named: 1 // 0)
        assert "division" in str(running.wait()[-1].error)
    assert start(dispatcher, tokenizer, 3).texts()


def test_a_model_whose_executor_broke_down_is_not_ready(decoder: Path) -> None:
    config = ModelConfig(name="m", backend="llm")
    LlmBackend().auto_complete(config, DirectoryFiles(decoder.parent), 1)
    model = LlmModel(config, decoder, "1")
    before = (model.ready, model.broken)
    model._dispatcher._executor.shutdown()
    assert (before, model.ready, model.broken) == ((True, False), False, True)
    model.close()


class Counting(LlmMetrics):
    """Tells what is counted."""

    def __init__(self) -> None:
        super().__init__("m", "1")
        self.counted: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def count(self, prompt: int, generated: int, course: Course, *, streamed: bool) -> None:
        super().count(prompt, generated, course, streamed=streamed)
        self.counted.put((prompt, generated))


def test_requests_are_counted_by_their_tokens(executor: Executor, tokenizer: Tokenizer) -> None:
    metrics = Counting()
    dispatcher = Dispatcher(executor, "m", metrics)
    start(dispatcher, tokenizer, 12).wait()
    assert metrics.counted.get(timeout=60) == (2, 12)
    lines = REGISTRY.text().splitlines()
    dispatcher.close()
    labels = 'model="m",version="1",response_metric_type="total_output_tokens"'
    assert 'vllm:request_success_total{model_name="m",version="1",finished_reason="length"} 1' in lines
    assert 'vllm:generation_tokens_total{model_name="m",version="1"} 12' in lines
    assert f"nv_llm_output_token_len_sum{{{labels}}} 12" in lines
    assert f'nv_llm_output_token_len_bucket{{{labels},le="10"}} 0' in lines


def test_statistics_are_looked_up_when_metrics_are_read_and_never_for_tokens(
    executor: Executor, dispatcher: Dispatcher, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    look = executor.get_latest_iteration_stats

    def counted() -> list[IterationStats]:
        found = look()
        looks.append(len(found))
        return found

    monkeypatch.setattr(executor, "get_latest_iteration_stats", counted)
    now = 1000.0  # It goes on when the test says so.
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    running = start(dispatcher, tokenizer, ENDLESS)
    assert running.first.wait(60)
    start(dispatcher, tokenizer, 200).wait()
    assert not looks
    active = 'nv_trt_llm_request_metrics{model="m",version="1",request_type="active"} 1'
    assert active in REGISTRY.text().splitlines()
    REGISTRY.text()  # at once: what was shown is recent enough
    assert len(looks) == 1
    now += 1
    REGISTRY.text()
    assert len(looks) == 2


def test_a_dispatcher_that_is_closed_shows_nothing_more(executor: Executor) -> None:
    dispatcher = Dispatcher(executor, "shown_until_closed", LlmMetrics("shown_until_closed", "1"))
    before = "shown_until_closed" in REGISTRY.text()
    dispatcher.close()
    assert (before, "shown_until_closed" in REGISTRY.text()) == (True, False)
