"""Models that guess for each other, and the way to ask them."""

import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from repoagent_llm import DraftTargetDecodingConfig, Executor, ExecutorConfig, Request, Result
from repoagent_llm.runner.protocol import Segment

from llm.tests.fake_runner import FakeRunner, hashed_logits

LIMIT = timedelta(seconds=120)
LogitsFunction = Callable[[list[int]], Any]
LENGTH = 3


def drafting(length: int = LENGTH, crowd: int | None = 2, **options: Any) -> ExecutorConfig:
    """An executor's configuration with a draft model."""
    config = ExecutorConfig(**options)
    config.speculative_config = DraftTargetDecodingConfig(length, max_concurrency=crowd)
    return config


def mostly(logits: LogitsFunction, one_in: int = 3) -> LogitsFunction:
    """A drafter for ``logits``: wrong behind some histories, all of which it must have seen rightly to be right."""

    def guess(history: list[int]) -> Any:
        row = logits(history)
        if zlib.crc32(np.asarray(history, np.int64).tobytes()) % one_in == 0:
            row = -row
        return row

    return guess


class Steps:
    """What a runner was given: the lengths of the pieces of each step."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, segments: Sequence[Segment]) -> None:
        self.seen.append([len(segment.tokens) for segment in segments])


class Closing(FakeRunner):
    """A runner that notes its end, and how many sequences it still had."""

    left: int | None = None

    def close(self) -> None:
        """See ModelRunner."""
        self.left = self.open_sequences
        super().close()


class Pair:
    """A model with 64 tokens and its drafter, in one executor."""

    def __init__(self, config: ExecutorConfig, guess: LogitsFunction, logits: LogitsFunction | None = None) -> None:
        self.steps, self.guesses = Steps(), Steps()
        logits = logits or hashed_logits(64)
        size = len(logits([0]))
        self.model = Closing(vocab_size=size, max_seq_len=1200, logits=logits, before_step=self.steps)
        self.drafter = Closing(
            vocab_size=size, max_seq_len=1200, max_sequences=2, logits=guess, before_step=self.guesses
        )
        self.executor = Executor.from_runner(self.model, config, self.drafter)

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *error: object) -> None:
        self.executor.shutdown()

    def ask(self, *requests: Request) -> list[Result]:
        """The final result of each request."""
        ids = self.executor.enqueue_requests(list(requests))
        return [finish(self.executor, request_id) for request_id in ids]


def finish(executor: Executor, request_id: int) -> Result:
    """The final result of a request; what was streamed is put together."""
    tokens: list[int] = []
    while True:
        for response in executor.await_responses(request_id, LIMIT):
            assert not response.has_error(), response.error_msg
            tokens += response.result.output_token_ids[0]
            if response.result.is_final:
                response.result.output_token_ids[0] = tokens
                return response.result


def plain(*requests: Request, logits: LogitsFunction | None = None) -> list[Result]:
    """What the model says without a drafter, asked one by one."""
    logits = logits or hashed_logits(64)
    runner = FakeRunner(vocab_size=len(logits([0])), max_seq_len=1200, logits=logits)
    with Executor.from_runner(runner, ExecutorConfig()) as executor:
        found = []
        for request in requests:
            streaming, request.streaming = request.streaming, False
            (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
            request.streaming = streaming
            found.append(response.result)
        return found
