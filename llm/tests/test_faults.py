"""What goes wrong with one request, or in a runner, stays there: neighbours go on, and everybody is answered."""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import (
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    KvCacheConfig,
    LogitsPostProcessorConfig,
    OutputConfig,
    Request,
    SamplingConfig,
)
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import Logits, Segment, Seq, StepResult
from repoagent_llm.types.executor_errors import EngineError, ExecutorStoppedError

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner

LIMIT = timedelta(seconds=120)
NOTHING = np.full(32, -np.inf, np.float32)
BEAMS = SamplingConfig(2)
PROMPT = [7, 8, 9]


class Breakable:
    """A runner of which any method can be broken, as long as ``broken`` is set; waits for ``gate`` before each step."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.broken, self.gate, self.reached = threading.Event(), threading.Event(), threading.Event()

    def break_in(self, name: str) -> None:
        method = getattr(self, name)

        def call(*arguments: Any) -> Any:
            if self.broken.is_set():
                raise RuntimeError("out of luck")
            return method(*arguments)

        setattr(self, name, call)

    def step(self, segments: Sequence[Segment]) -> StepResult:
        self.reached.set()
        assert self.gate.wait(120)
        found: StepResult = super().step(segments)  # type: ignore[misc]
        return found


class BrokenRunner(Breakable, FakeRunner):
    """A slab."""


class BrokenPages(Breakable, PagedRunner):
    """Pages."""

    @property
    def open_sequences(self) -> int:
        return len(self._sequences)


def make_runner(
    pages: bool, slab: type[BrokenRunner] = BrokenRunner, paged: type[BrokenPages] = BrokenPages, tokens: int = 1024
) -> BrokenRunner | BrokenPages:
    """A runner of six sequences, over pages with a cache of so many tokens."""
    if not pages:
        return slab(max_sequences=6)
    return paged(FakePacked(tokens // 32 + 1, vocab_size=32, max_seq_len=256, max_sequences=6))


Start = Callable[..., tuple[Executor, BrokenRunner | BrokenPages]]


@pytest.fixture(params=["slab", "pages"])
def pages(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "pages")


@pytest.fixture
def start(pages: bool) -> Iterator[Start]:
    """``start(breaks, tokens, **config)``: an executor, over a runner whose method ``breaks`` can be broken; in the end
    no sequence holds a block."""
    started = []

    def make(breaks: str = "", tokens: int = 1024, **config: Any) -> tuple[Executor, BrokenRunner | BrokenPages]:
        runner = make_runner(pages, tokens=tokens)
        if breaks:
            runner.break_in(breaks)
        cache = KvCacheConfig(max_tokens=tokens)
        whole = {"kv_cache_config": cache, **config}
        started.append((Executor.from_runner(runner, ExecutorConfig(max_beam_width=3, **whole)), runner))
        return started[-1]

    yield make
    for executor, runner in started:
        runner.gate.set()
        ran = executor.can_enqueue_requests()
        executor.shutdown()
        if isinstance(runner, PagedRunner) and ran:
            assert runner.pool.busy == 0


@pytest.mark.parametrize(
    "sampling", [SamplingConfig(), BEAMS, SamplingConfig(top_p=0.9), SamplingConfig(top_k=5), SamplingConfig(min_p=0.1)]
)
@pytest.mark.parametrize("number", [-np.inf, np.nan])
@pytest.mark.filterwarnings("error")
def test_a_request_whose_logits_leave_no_choice_is_an_error_and_its_neighbour_goes_on(
    start: Start, sampling: SamplingConfig, number: float
) -> None:
    executor, runner = start()
    good = executor.enqueue_request(Request([1, 2], 20, sampling_config=SamplingConfig(sampling.beam_width)))
    assert runner.reached.wait(120)

    def spoil(_: int, logits: npt.NDArray[np.float32], *others: object) -> None:
        logits[:] = number

    bad = executor.enqueue_request(Request([3], 20, sampling_config=sampling, logits_post_processor=spoil))
    runner.gate.set()
    answers = executor.await_responses([good, bad], LIMIT)
    assert "no token can follow" in answers[1][0].error_msg
    assert len(answers[0][0].result.output_token_ids[0]) == 22
    assert executor._assembly.budget.used == 0


@pytest.mark.parametrize(
    ("breaks", "request_"),
    [
        ("open", Request(PROMPT, 2)),
        ("import_kv", Request(PROMPT, 2)),
        ("fork", Request(PROMPT, 2, num_return_sequences=2)),
        ("reorder", Request(PROMPT, 4, sampling_config=BEAMS)),
        ("truncate", Request(PROMPT, 5, external_draft_tokens_config=ExternalDraftTokensConfig([1, 1]))),
    ],
)
def test_a_method_of_a_runner_that_raises_fails_its_request_only(start: Start, breaks: str, request_: Request) -> None:
    executor, runner = start(breaks)
    runner.gate.set()
    executor.await_responses(executor.enqueue_request(Request(PROMPT, 3)), LIMIT)  # leaves a prefix to import
    runner.gate.clear()
    runner.reached.clear()
    running = executor.enqueue_request(
        Request([1, 2], 20, sampling_config=SamplingConfig(request_.sampling_config.beam_width))
    )
    assert runner.reached.wait(120)
    if breaks == "reorder":  # which the neighbour would call, too
        executor.cancel_request(running)
    runner.broken.set()
    bad = executor.enqueue_request(request_)
    runner.gate.set()
    (failed,) = executor.await_responses(bad, LIMIT)
    runner.broken.clear()
    assert "out of luck" in failed.error_msg
    assert not executor.await_responses(running, LIMIT)[0].has_error()
    assert not executor.await_responses(executor.enqueue_request(Request(PROMPT, 3)), LIMIT)[0].has_error()
    assert executor._assembly.budget.used == 0
    assert runner.open_sequences == 0


def test_beams_that_cannot_all_be_forked_leave_none_behind(start: Start) -> None:
    executor, runner = start()
    forks, fork = [], runner.fork

    def once(seq: Seq) -> Seq | None:
        forks.append(seq)
        if len(forks) > 1:
            raise RuntimeError("out of luck")
        return fork(seq)

    runner.fork = once  # type: ignore[method-assign]
    runner.gate.set()
    beams = SamplingConfig(3)
    (failed,) = executor.await_responses(executor.enqueue_request(Request(PROMPT, 4, sampling_config=beams)), LIMIT)
    assert "out of luck" in failed.error_msg
    assert runner.open_sequences == 0


@pytest.mark.parametrize("breaks", ["export_kv", "free"])
def test_a_runner_that_cannot_keep_or_free_answers_all_the_same(start: Start, breaks: str, pages: bool) -> None:
    executor, runner = start(breaks)
    runner.gate.set()
    runner.broken.set()
    for _ in range(2):
        (response,) = executor.await_responses(executor.enqueue_request(Request(PROMPT, 3)), LIMIT)
        assert len(response.result.output_token_ids[0]) == 6
    # What a runner does not free stays taken.
    assert executor._assembly.budget.used == (2 if pages and breaks == "free" else 0)
    runner.broken.clear()
    if isinstance(runner, PagedRunner):
        for seq in tuple(runner._sequences):
            runner.free(seq)


def test_a_fault_of_the_engine_ends_what_runs_and_what_waits_goes_on(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, runner = start(tokens=64)
    running = executor.enqueue_request(Request([1, 2], 60))
    waiting = executor.enqueue_request(Request([3, 4], 60))
    assert runner.reached.wait(120)
    _raise_once(monkeypatch, executor._assembly.stats, "record")
    runner.gate.set()
    answers = executor.await_responses([running, waiting], LIMIT)
    assert answers[0][0].error_msg == "the engine failed: a bug"
    assert len(answers[1][0].result.output_token_ids[0]) == 62


def _raise_once(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, error: BaseException | None = None) -> None:
    method = getattr(target, name)

    def once(*arguments: Any) -> Any:
        monkeypatch.setattr(target, name, method)
        raise error or ValueError("a bug")

    monkeypatch.setattr(target, name, once)


def test_a_request_that_cannot_be_answered_ends_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, runner = start()
    ids = executor.enqueue_requests([Request([1, 2], 5), Request([3, 4], 5)])
    _raise_once(monkeypatch, executor._assembly.engine._results, "collect")
    runner.gate.set()
    bad, good = executor.await_responses(ids, LIMIT)
    assert bad[0].error_msg == "the engine failed: a bug"
    assert len(good[0].result.output_token_ids[0]) == 7


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_in_vain_when_the_thread_ends(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, runner = start()
    request_id = executor.enqueue_request(Request(PROMPT, 3))
    assert runner.reached.wait(120)
    _raise_once(monkeypatch, executor._assembly.stats, "record", SystemExit())
    runner.gate.set()
    executor._assembly.engine._thread.join()
    with pytest.raises(ExecutorStoppedError):
        executor.await_responses(request_id)
    assert not executor.can_enqueue_requests()
    with pytest.raises(ExecutorStoppedError):
        executor.enqueue_request(Request(PROMPT, 3))


@pytest.mark.parametrize("pages", ["pages"], indirect=True)
def test_a_pool_that_is_empty_in_the_middle_of_a_step_fails_that_step_alone(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, runner = start(tokens=192)
    assert isinstance(runner, BrokenPages)
    ids = executor.enqueue_requests([Request([first, 2], 60) for first in range(2)])
    assert runner.reached.wait(120)
    taken, take = [], runner.pool.take

    def once(count: int) -> list[int]:
        taken.append(count)
        if len(taken) == 2:  # The first of the step has its block.
            raise EngineError("the KV cache has 0 blocks left")
        return take(count)

    monkeypatch.setattr(runner.pool, "take", once)
    waiting = executor.enqueue_request(Request([3, 4], 60))
    runner.gate.set()
    for request_id in ids:
        (failed,) = executor.await_responses(request_id, LIMIT)
        assert failed.error_msg == "the runner failed: the KV cache has 0 blocks left"
    (good,) = executor.await_responses(waiting, LIMIT)
    assert len(good.result.output_token_ids[0]) == 62
    assert executor._assembly.budget.used == 0


class Mute(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (Mute(), "Mute"),
    ],
)
def test_whatever_a_post_processor_raises_fails_its_request_only(start: Start, error: BaseException, text: str) -> None:
    def leave(*arguments: Any) -> None:
        raise error

    executor, runner = start(logits_post_processor_config=LogitsPostProcessorConfig(processor_batched=leave))
    runner.gate.set()
    batched = Request.BATCHED_POST_PROCESSOR_NAME
    good, own, shared = executor.enqueue_requests(
        [
            Request(PROMPT, 3),
            Request(PROMPT, 3, logits_post_processor=leave),
            Request(PROMPT, 3, logits_post_processor_name=batched),
        ]
    )
    answers = executor.await_responses([good, own, shared], LIMIT)
    assert not answers[0][0].has_error()
    for answer in answers[1:]:
        assert answer[0].error_msg == f"the logits post-processor failed: {text}"


def test_a_runner_that_leaves_fails_its_iteration_only(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, runner = start()
    runner.gate.set()
    _raise_once(monkeypatch, runner, "step", SystemExit())
    (failed,) = executor.await_responses(executor.enqueue_request(Request(PROMPT, 3)), LIMIT)
    assert failed.error_msg == "the runner failed: SystemExit"
    assert not executor.await_responses(executor.enqueue_request(Request(PROMPT, 3)), LIMIT)[0].has_error()


def test_a_request_that_fails_at_its_start_leaves_its_blocks_to_the_next(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, runner = start(tokens=64)
    running = executor.enqueue_request(Request([1, 2], 60))
    assert runner.reached.wait(120)
    _raise_once(monkeypatch, runner, "open")
    ids = executor.enqueue_requests([Request([3, 4], 60), Request([5, 6], 60)])
    runner.gate.set()
    answers = executor.await_responses([running, *ids], LIMIT)
    assert answers[1][0].error_msg == "the runner failed: a bug"
    for answer in (answers[0], answers[2]):
        assert len(answer[0].result.output_token_ids[0]) == 62


def test_an_error_without_a_text_is_an_answer_too(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, runner = start()
    runner.gate.set()
    _raise_once(monkeypatch, executor._assembly.intake, "task", MemoryError())
    ids = executor.enqueue_requests([Request(PROMPT, 3), Request(PROMPT, 3)])
    bad, good = executor.await_responses(ids, LIMIT)
    assert bad[0].error_msg == "MemoryError"
    assert not good[0].has_error()


def test_a_request_may_be_changed_and_sent_again(start: Start) -> None:
    executor, runner = start()
    request = Request(PROMPT, 5, output_config=OutputConfig(exclude_input_from_output=True), client_id=1)
    first = executor.enqueue_request(request)
    assert runner.reached.wait(120)
    request.stop_words, request.streaming, request.client_id = [[token] for token in range(32)], True, 2
    request.output_config.return_log_probs = True
    second = executor.enqueue_request(request)
    runner.gate.set()
    (one,), two = executor.await_responses([first, second], LIMIT)
    assert (len(one.result.output_token_ids[0]), one.result.log_probs, one.client_id) == (5, None, 1)
    assert (len(two[0].result.output_token_ids[0]), two[0].client_id) == (1, 2)


def test_lists_of_a_request_that_were_changed_in_place_harm_nobody(start: Start) -> None:
    executor, runner = start()
    request = Request(PROMPT, 5, stop_words=[[31] * 9], output_config=OutputConfig(exclude_input_from_output=True))
    first = executor.enqueue_request(request)
    assert runner.reached.wait(120)
    assert request.stop_words is not None
    request.stop_words[0][:] = range(3)
    request.stop_words.extend([token] for token in range(32))
    request.input_token_ids.extend([1] * 500)
    waiting = executor.enqueue_request(Request(PROMPT, 5))
    request.stop_words.append("no tokens")  # type: ignore[arg-type]
    bad = executor.enqueue_request(request)
    runner.gate.set()
    answers = executor.await_responses([first, waiting, bad], LIMIT)
    assert len(answers[0][0].result.output_token_ids[0]) == 5
    assert not answers[1][0].has_error()
    assert "Request.stop_words" in answers[2][0].error_msg


def test_a_configuration_may_be_changed_for_another_executor(start: Start) -> None:
    named = LogitsPostProcessorConfig({"first": lambda *_: None})
    executor, runner = start(logits_post_processor_config=named, kv_cache_config=(cache := KvCacheConfig()))
    runner.gate.set()
    cache.enable_block_reuse = False
    assert named.processor_map is not None
    named.processor_map["second"] = lambda *_: None
    ids = executor.enqueue_requests(
        [Request(PROMPT, 2, logits_post_processor_name=name) for name in ("first", "second")]
    )
    known, unknown = executor.await_responses(ids, LIMIT)
    assert not known[0].has_error()
    assert "'second' is not in LogitsPostProcessorConfig (known: first)" in unknown[0].error_msg
    assert executor._assembly.intake._config.kv_cache_config.enable_block_reuse


def test_what_is_no_request_takes_no_id_from_the_others(start: Start) -> None:
    executor, runner = start()
    runner.gate.set()
    with pytest.raises(TypeError, match="takes Requests, not a str"):
        executor.enqueue_requests([Request(PROMPT, 2), "a prompt"])  # type: ignore[list-item]
    assert executor.enqueue_request(Request(PROMPT, 2)) == 1


class Endable(Breakable):
    """Its steps wait for ``gate``, or raise once they are ended."""

    open_sequences: int

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.ends = 0
        self.open_in_steps: list[int] = []

    def end(self) -> None:
        self.ends += 1
        self.gate.set()

    def renew(self) -> None:
        self.ends = 0
        self.gate.clear()

    def step(self, segments: Sequence[Segment]) -> StepResult:
        self.reached.set()
        assert self.gate.wait(120)
        if self.ends:
            raise RuntimeError("ended")
        self.open_in_steps.append(self.open_sequences)
        return super().step(segments)


class EndableRunner(Endable, BrokenRunner):
    """A slab."""


class EndablePages(Endable, BrokenPages):
    """Pages."""


@pytest.fixture
def endable(pages: bool) -> Iterator[tuple[Executor, EndableRunner | EndablePages]]:
    runner = make_runner(pages, EndableRunner, EndablePages)
    assert isinstance(runner, EndableRunner | EndablePages)
    executor = Executor.from_runner(runner, ExecutorConfig(max_beam_width=3, kv_cache_config=KvCacheConfig()))
    yield executor, runner
    runner.gate.set()
    executor.shutdown()


@pytest.mark.parametrize("sampling", [SamplingConfig(), BEAMS])
def test_a_step_that_nobody_wants_is_ended(
    endable: tuple[Executor, EndableRunner | EndablePages], sampling: SamplingConfig
) -> None:
    executor, runner = endable
    ids = [executor.enqueue_request(Request([number, 2], 5, sampling_config=sampling)) for number in range(1, 3)]
    assert runner.reached.wait(120)
    for request_id in ids:
        executor.cancel_request(request_id)
    answers = executor.await_responses(ids, LIMIT)
    for (answer,) in answers:
        assert set(answer.result.finish_reasons) == {FinishReason.CANCELLED}
    assert executor._assembly.budget.used == 0
    runner.gate.set()
    later = executor.await_responses(executor.enqueue_request(Request([1, 2], 5)), LIMIT)
    expected = FakeRunner()
    seq, tokens = expected.open(), [1, 2]
    assert seq is not None
    for _ in range(5):
        result = expected.step([Segment(seq, np.array(tokens[expected.length(seq) :], np.int32), Logits.LAST)])
        tokens.append(int(result.logits[-1].argmax()))
    assert later[0].result.output_token_ids[0] == tokens


def test_a_step_that_another_wants_goes_on_and_what_is_cancelled_leaves_at_its_end(
    endable: tuple[Executor, EndableRunner | EndablePages],
) -> None:
    executor, runner = endable
    kept, gone = executor.enqueue_requests([Request([1, 2], 5), Request([3, 4], 5)])
    assert runner.reached.wait(120)
    executor.cancel_request(gone)
    assert runner.ends == 0
    runner.gate.set()
    answers = executor.await_responses([kept, gone], LIMIT)
    assert [answer.result.finish_reasons for (answer,) in answers] == [[FinishReason.LENGTH], [FinishReason.CANCELLED]]
    assert len(answers[1][0].result.output_token_ids[0]) == 3, "the step gave it a token"
    assert runner.open_in_steps == [2, 1, 1, 1, 1]
    assert executor._assembly.budget.used == 0
