"""Soak test of the executor: many short requests with random cancels, holds, deadlines, faults and bad parameters.

Every id must get exactly one final answer, nothing may stay held, and memory must not grow.
"""

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    DraftTargetDecodingConfig,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    GuidedDecodingConfig,
    GuidedDecodingParams,
    KvCacheConfig,
    LoraConfig,
    OutputConfig,
    PeftCacheConfig,
    Request,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.runner.paged import PagedRunner
from repoagent_llm.runner.protocol import LoraShape

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner
from tests.extent import in_full

VOCABULARY = 64
WINDOW = 64
BEAM_WIDTH = 3
LIMIT = timedelta(seconds=60)
ADAPTED = LoraShape(1, 2, {"layers.0.attention_out": (4, 4)})
REGEX = GuidedDecodingParams.GuideType.REGEX
LLGUIDANCE = GuidedDecodingConfig.GuidedDecodingBackend.LLGUIDANCE
TEXTS = [chr(64 + token) for token in range(VOCABULARY)]
ROOM_FOR_TWO = 2 * 4 * 8  # bytes of two adapters of rank 1


@dataclass(slots=True)
class Report:
    """What a run showed."""

    requests: int = 0
    errors: int = 0
    memory_growth: int = 0
    more_objects: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Faults:
    """Raises in one call of five hundred of each method that may (of ``free`` sequences would stay open)."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def spoil(self, runner: Any) -> None:
        """Let its methods fail."""
        for name in ("open", "fork", "truncate", "reorder", "export_kv", "import_kv", "adapt"):
            setattr(runner, name, self._stumbling(getattr(runner, name)))

    def stumble(self, *_: Any) -> None:
        """Fail now, or not."""
        if self._chance.random() < 0.002:
            raise RuntimeError("a fault made on purpose")

    def _stumbling(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.stumble()
            return method(*arguments)

        return call


class FaultyRunner(FakeRunner):
    """A slab that fails now and then."""

    def __init__(self, seed: int) -> None:
        faults = Faults(seed)
        super().__init__(
            vocab_size=VOCABULARY,
            max_seq_len=128,
            max_sequences=12,
            before_step=faults.stumble,
            lora=ADAPTED,
            end_ids=(3,),
        )
        faults.spoil(self)


class FaultyPages(PagedRunner):
    """Pages that fail now and then, also in a step that has written already."""

    def __init__(self, seed: int) -> None:
        faults = Faults(seed)
        model = FakePacked(
            21,
            vocab_size=VOCABULARY,
            max_seq_len=128,
            max_sequences=12,
            before_run=faults.stumble,
            lora=ADAPTED,
            end_ids=(3,),
        )
        super().__init__(model)
        faults.spoil(self)

    @property
    def open_sequences(self) -> int:
        """How many sequences are open."""
        return len(self._sequences)


def random_request(chance: random.Random) -> Request:
    """A request of any kind, some of them bad."""
    prompt = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 50))]
    if chance.random() < 0.3:
        prompt = [7] * 40 + prompt[:10]
    if chance.random() < 0.02:
        prompt = [VOCABULARY] * chance.choice([1, 200])
    options: dict[str, Any] = {"streaming": chance.random() < 0.3, "end_id": chance.choice([None, 3, 3, 3, -1])}
    options["priority"] = chance.random()
    options.update(chance.choice(KINDS)(chance))
    return Request(prompt, chance.randint(1, 24), **options)


def _processor(chance: random.Random) -> dict[str, Any]:
    broken = chance.random() < 0.3

    def processor(_request_id: int, logits: Any, *_rest: Any) -> None:
        if broken:
            raise ValueError("made on purpose")
        logits[..., 9] += 1

    return {"logits_post_processor": processor}


def _several(chance: random.Random) -> dict[str, Any]:
    return {"sampling_config": SamplingConfig(num_return_sequences=2, top_p=0.9, seed=chance.randrange(100))}


def _beams(chance: random.Random) -> dict[str, Any]:
    return {"sampling_config": SamplingConfig(chance.randint(2, BEAM_WIDTH), early_stopping=chance.randint(0, 2))}


def _adapter(chance: random.Random) -> dict[str, Any]:
    """One of five tasks, of which two fit; often without the weights."""
    task_id, module = chance.randrange(5), chance.choice([4, 4, 4, 77])
    if chance.random() < 0.3:
        return {"lora_config": LoraConfig(task_id)}
    weights = np.full((1, 8), task_id + 1, np.float32)
    return {"lora_config": LoraConfig(task_id, weights, np.array([[module, 0, 1]], np.int32))}


def _guided(chance: random.Random) -> dict[str, Any]:
    """Under a grammar that may be none, or of which nothing is left."""
    guide = chance.choice(["A+[B-F]{2,9}", "(AB|CD)*E", "(", "[A-C]{3}"])
    options: dict[str, Any] = {"guided_decoding_params": GuidedDecodingParams(REGEX, guide)}
    if chance.random() < 0.2:
        options["bad_words"] = [[token] for token in range(VOCABULARY // 2)]
    return options


KINDS: list[Callable[[random.Random], dict[str, Any]]] = [
    _beams,
    _several,
    _processor,
    _adapter,
    _guided,
    lambda _: {},
    lambda _: {},
    lambda _: {"sampling_config": SamplingConfig(top_k=5, repetition_penalty=1.2, no_repeat_ngram_size=2)},
    lambda chance: {"embedding_bias": np.zeros(chance.choice([VOCABULARY, 5]), np.float32)},
    lambda chance: {"allotted_time_ms": timedelta(milliseconds=chance.choice([0, 1, 5]))},
    lambda chance: {"external_draft_tokens_config": ExternalDraftTokensConfig([chance.randrange(VOCABULARY), 5])},
    lambda _: {"output_config": OutputConfig(return_log_probs=True, return_context_logits=True)},
    # Half of them have so many words that one soon comes, however many requests are cancelled or late before that.
    lambda chance: {
        "stop_words": [[word] for word in chance.sample(range(VOCABULARY), chance.choice([1, VOCABULARY // 2]))]
    },
    lambda chance: {"cache_salt_id": chance.randrange(3)},
]


def soak(requests: int, seed: int = 0, kind: type[FaultyRunner | FaultyPages] = FaultyRunner) -> Report:
    """Run, check, report."""
    chance, report = random.Random(seed), Report()
    policy = chance.choice([CapacitySchedulerPolicy.MAX_UTILIZATION, CapacitySchedulerPolicy.GUARANTEED_NO_EVICT])
    config = ExecutorConfig(
        max_beam_width=BEAM_WIDTH,
        enable_chunked_context=True,
        max_num_tokens=40,
        scheduler_config=SchedulerConfig(policy),
        peft_cache_config=PeftCacheConfig(host_cache_size=ROOM_FOR_TWO),
        guided_decoding_config=GuidedDecodingConfig(LLGUIDANCE, TEXTS),
        kv_cache_config=KvCacheConfig(max_tokens=640, host_cache_size=40 * 32 * 4, event_buffer_max_size=100),
    )
    config.speculative_config = DraftTargetDecodingConfig(3, max_concurrency=6)
    runner, drafter = kind(seed), FaultyRunner(seed + 2)
    with Executor.from_runner(runner, config, drafter) as executor:
        _drive(executor, requests // 10, chance, report)
        gc.collect()
        before, objects = _resident(), len(gc.get_objects())
        _drive(executor, requests - requests // 10, chance, report)
        gc.collect()
        report.memory_growth, report.more_objects = _resident() - before, len(gc.get_objects()) - objects
        _check_idle(executor, runner, drafter, report)
    _shut_down_in_the_middle(kind(seed + 1), chance, report)
    return report


def _drive(executor: Executor, requests: int, chance: random.Random, report: Report) -> None:
    """Keep a window of requests under way; note each final answer."""
    outstanding: set[int] = set()
    ended: set[int] = set()
    sent = 0
    while sent < requests or outstanding:
        batch = min(WINDOW - len(outstanding), requests - sent, chance.randint(1, 16))
        if batch > 0:
            outstanding.update(executor.enqueue_requests([random_request(chance) for _ in range(batch)]))
            sent += batch
        if outstanding:
            _disturb(executor, tuple(outstanding), chance)
        responses = executor.await_responses(LIMIT)
        if not responses:
            report.faults.append(f"stuck: no answer for {len(outstanding)} requests")
            return
        for response in responses:
            if response.request_id in ended:
                report.faults.append(f"request {response.request_id} answered again after its end")
            if response.has_error() or response.result.is_final:
                ended.add(response.request_id)
                outstanding.discard(response.request_id)
                _count(response, report)
            if response.has_error() and "the engine failed" in response.error_msg:
                report.faults.append(f"request {response.request_id}: {response.error_msg}")
    report.requests += sent
    if len(ended) != sent:
        report.faults.append(f"{sent} requests, {len(ended)} final answers")


def _disturb(executor: Executor, outstanding: Sequence[int], chance: random.Random) -> None:
    """Cancel one now and then, and hold one at most: those that stand aside are to go on in the end."""
    if chance.random() < 0.2:
        executor.cancel_request(chance.choice(outstanding))
    for request_id in outstanding:
        executor.hold_request(request_id, held=False)
    if chance.random() < 0.3:
        executor.hold_request(chance.choice(outstanding), held=True)


def _count(response: Any, report: Report) -> None:
    name = "ERROR" if response.has_error() else response.result.finish_reasons[0].name
    report.errors += response.has_error()
    report.reasons[name] = report.reasons.get(name, 0) + 1


def _check_idle(executor: Executor, runner: FaultyRunner | FaultyPages, drafter: FaultyRunner, report: Report) -> None:
    parts = executor._assembly
    deadline = time.monotonic() + 60
    while (runner.open_sequences or drafter.open_sequences) and time.monotonic() < deadline:
        time.sleep(0.01)
    held = {
        "sequences": runner.open_sequences,
        "sequences of the draft model": drafter.open_sequences,
        "KV blocks": parts.budget.used,
        "waiting requests": len(parts.scheduler.waiting),
        "running requests": len(parts.scheduler.running),
        "requests that stand aside": len(parts.scheduler.aside),
        "adapters": parts.adapters.in_use if parts.adapters else 0,
        "responses": executor.get_num_responses_ready(),
    }
    report.faults += [f"{count} {name} are held when idle" for name, count in held.items() if count]


def _shut_down_in_the_middle(runner: FaultyRunner | FaultyPages, chance: random.Random, report: Report) -> None:
    executor = Executor.from_runner(runner, ExecutorConfig(max_beam_width=BEAM_WIDTH))
    executor.enqueue_requests([random_request(chance) for _ in range(50)])
    executor.shutdown()
    if runner.open_sequences:
        report.faults.append(f"{runner.open_sequences} sequences are open after shutdown")


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultyRunner, FaultyPages])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_request_is_answered_once_and_nothing_stays_held(
    seed: int, kind: type[FaultyRunner | FaultyPages]
) -> None:
    requests = in_full(100_000, otherwise=500)
    report = soak(requests, seed, kind)
    print(report)
    assert report.faults == []
    assert report.requests == requests
    assert report.memory_growth < 32 << 20
    assert report.more_objects < max(6000, requests // 10)  # Statistics and retained blocks fill up first.
    assert {"ERROR", "CANCELLED", "LENGTH", "TIMED_OUT", "END_ID", "STOP_WORDS"} <= set(report.reasons)
