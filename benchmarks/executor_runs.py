"""Requests with the moments at which they come, what engines make of them, and our executor as benchmarks open it."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
from repoagent_llm import (
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    ModelType,
    Request,
    RunnerOptions,
    SamplingConfig,
)
from repoagent_llm.builder import Form, Precision, build

THREADS = 2
LENGTH = 256
#: Tokens of an iteration in which requests wait for their next token.
BUDGET = 40
PROMPT, NEW_TOKENS = 128, 64


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes ``at`` seconds after the start. ``sampling``: settings that our executor alone gets."""

    at: float
    prompt: list[int]
    new_tokens: int
    sampling: Mapping[str, Any] = field(default_factory=dict)


Trace = Sequence[Arrival]


def all_at_once(
    requests: int, vocab_size: int, prompt: int = PROMPT, new_tokens: int = NEW_TOKENS, shared: int = 0, **sampling: Any
) -> list[Arrival]:
    """Requests of one size that all come at the start; before each prompt come the same ``shared`` tokens."""
    prefix = np.random.default_rng(2).integers(3, vocab_size, shared).tolist()
    prompts = np.random.default_rng(0).integers(3, vocab_size, (requests, prompt)).tolist()
    return [Arrival(0.0, prefix + own, new_tokens, sampling) for own in prompts]


def at_random(requests: int, rate: float, vocab_size: int) -> list[Arrival]:
    """Requests of different sizes that come at random, ``rate`` a second on average (a Poisson process)."""
    source = np.random.default_rng(1)
    moments = source.exponential(1 / rate, requests).cumsum()
    return [
        Arrival(
            float(moment),
            source.integers(3, vocab_size, int(source.integers(16, PROMPT + 1))).tolist(),
            int(source.integers(16, 97)),
        )
        for moment in moments
    ]


def beside_a_long_prompt(streams: int, prompt: int, new_tokens: int, vocab_size: int) -> list[Arrival]:
    """Streams that begin at once, and a request behind them whose prompt is read while they go on."""
    (long,) = all_at_once(1, vocab_size, prompt, 1)
    return [*all_at_once(streams, vocab_size, new_tokens=new_tokens), replace(long, at=2.0)]


class Run:
    """What an engine made of a trace: every request's tokens, and when they came, in seconds after the start."""

    def __init__(self, requests: int) -> None:
        self._began = time.perf_counter()
        self.moments: list[list[float]] = [[] for _ in range(requests)]
        self.tokens: list[list[int]] = [[] for _ in range(requests)]

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._began

    def wait_until(self, moment: float) -> None:
        """Sleep until ``moment`` seconds after the start."""
        time.sleep(max(0.0, moment - self.now()))

    def note(self, request: int, token: int) -> None:
        """A token has come."""
        self.moments[request].append(self.now())
        self.tokens[request].append(int(token))


Serve = Callable[[Trace], Run]
#: Continues prompts of one length as one batch: (run, numbers of the requests, prompts, new tokens).
Batch = Callable[[Run, list[int], list[list[int]], int], None]


def by_batches(generate: Batch) -> Serve:
    """For an engine that takes nothing while it runs: one batch if all come at once, else one after the other."""

    def serve(trace: Trace) -> Run:
        run = Run(len(trace))
        if not any(arrival.at for arrival in trace):
            prompts = [arrival.prompt for arrival in trace]
            generate(run, list(range(len(trace))), prompts, trace[0].new_tokens)
            return run
        for number, arrival in enumerate(trace):
            run.wait_until(arrival.at)
            generate(run, [number], [arrival.prompt], arrival.new_tokens)
        return run

    return serve


def decoder_folder(
    checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32, form: Form = Form.GQA
) -> Path:
    """The checkpoint's decoder folder beside it, made when it is not there yet."""
    target = checkpoint.parent / f"decoder-{form.value}-{precision.value}-{block}"
    return target if target.exists() else build(checkpoint, target, form=form, precision=precision, block=block)


def opened(folder: Path, options: RunnerOptions, *, reuse: bool = False, **settings: Any) -> Executor:
    """An executor of a decoder folder; without ``reuse`` of prefixes repeated prompts are computed."""
    config = ExecutorConfig(kv_cache_config=KvCacheConfig(enable_block_reuse=reuse))
    for name, value in {"runner_options": options, **settings}.items():
        setattr(config, name, value)
    return Executor(folder, ModelType.DECODER_ONLY, config)


#: While requests generate, prompts are read in small pieces.
_SETTINGS = {"max_batch_size": 16, "enable_chunked_context": True, "max_num_tokens_generating": BUDGET}


def open_ours(
    checkpoint: Path,
    precision: Precision = Precision.FP32,
    block: int = 32,
    *,
    mixed: bool = False,
    length: int = LENGTH,
    **settings: Any,
) -> Executor:
    """Our executor on ONNX Runtime."""
    options = RunnerOptions(threads=THREADS, max_seq_len=length, mixed=mixed)
    return opened(decoder_folder(checkpoint, precision, block), options, **{**_SETTINGS, **settings})


def ours(checkpoint: Path, precision: Precision = Precision.FP32, block: int = 32, **settings: Any) -> Serve:
    """repoagent_llm, streaming."""
    # Runs with float32 weights wait for memory, so that it pays to share them.
    return served_by(open_ours(checkpoint, precision, block, mixed=precision is Precision.FP32, **settings))


def ours_paged(
    checkpoint: Path,
    precision: Precision = Precision.FP32,
    block: int = 32,
    *,
    exact: bool = True,
    length: int = LENGTH,
    **settings: Any,
) -> Serve:
    """The same over pages, on OpenVINO."""
    options = RunnerOptions(threads=THREADS, max_seq_len=length, exact=exact)
    folder = decoder_folder(checkpoint, precision, block, Form.PAGED)
    return served_by(opened(folder, options, **{**_SETTINGS, **settings}))


def _request(arrival: Arrival) -> Request:
    sampling = SamplingConfig(**arrival.sampling)
    return Request(arrival.prompt, arrival.new_tokens, streaming=True, sampling_config=sampling)


def served_by(executor: Executor) -> Serve:
    """Requests of a trace to ``executor``, streaming."""

    def serve(trace: Trace) -> Run:
        run, numbers, left = Run(len(trace)), dict[int, int](), len(trace)
        coming = 0
        while left:
            due = [arrival for arrival in trace[coming:] if arrival.at <= run.now()]
            ids = executor.enqueue_requests(list(map(_request, due)))
            numbers.update(zip(ids, range(coming, coming + len(due)), strict=True))
            coming += len(due)
            wait = trace[coming].at - run.now() if coming < len(trace) else 10.0
            for response in executor.await_responses(timedelta(seconds=max(0.0, wait))):
                for token in response.result.output_token_ids[0]:
                    run.note(numbers[response.request_id], token)
                left -= response.result.is_final
        return run

    return serve
