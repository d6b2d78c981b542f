"""Python's share of an iteration of the executor: what its thread does outside the sessions' runs.

    python benchmarks/executor_share.py [--size 125m 5m] [--requests 1 16]

Both are CPU time of that thread, which computes along with the session's own, so that other processes are left out.
An iteration lasts from the end of the one before, so that waking whoever waits for its tokens is part of it. "drawing":
the run of the session that draws tokens, which is no Python. "tok/s": of all requests, prompts included. Random models,
whose distributions are flat: the worst case for top-p. Streaming requests of 64 new tokens; medians over the iterations
in which all of them are past their prompts. "others": what other processes took of the machine.
The aim is less than 3 % at 125 M parameters and less than 10 % at 5 M; the exit status is 1 where it is missed.
"""

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, cast

from executor_runs import all_at_once, open_ours
from executor_speed import SCALE, SIZES
from measures import options_of, quiet_samples
from repoagent_llm import Executor, Request, SamplingConfig
from repoagent_llm.engine import batch_sampler

from examples.executor.synthetic import synthetic_checkpoint

AIMS = {"125m": 0.03, "5m": 0.10}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "top-p 0.9": {"top_p": 0.9},
    "top-p 0.9, temperature 0.7": {"top_p": 0.9, "temperature": 0.7},
}


class Meter:
    """Notes the thread's CPU seconds of every iteration, and those of them that the model and the drawing took."""

    def __init__(self, executor: Executor, requests: int) -> None:
        self._engine: Any = executor._assembly.engine
        self._scheduler = executor._assembly.scheduler
        self._runner = cast("Any", executor._assembly.engine._runner)
        self._session = self._runner._session
        self._iterate = self._engine._iterate
        self._requests = requests
        self._runs: dict[str, Any] = {name: getattr(batch_sampler._Lot, name) for name in ("_run", "_run_again")}
        self._ended = self._model = self._drawing = 0.0
        self.found: list[tuple[float, float, float]] = []

    def __enter__(self) -> "Meter":
        self._engine._iterate, self._runner._session = self._timed, self
        for name, run in self._runs.items():
            setattr(batch_sampler._Lot, name, self._timed_drawing(run))
        return self

    def __exit__(self, *error: object) -> None:
        self._engine._iterate, self._runner._session = self._iterate, self._session
        for name, run in self._runs.items():
            setattr(batch_sampler._Lot, name, run)

    def _timed_drawing(self, run: Any) -> Any:
        def draw(*args: Any) -> Any:
            began = time.thread_time()
            try:
                return run(*args)
            finally:
                self._drawing += time.thread_time() - began

        return draw

    def run_with_iobinding(self, binding: Any, options: Any = None) -> None:
        """In the session's place."""
        began = time.thread_time()
        self._session.run_with_iobinding(binding, options)
        self._model += time.thread_time() - began

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def _timed(self, mail: Any) -> None:
        running = self._scheduler.running
        decoding = len(running) == self._requests and all(task.started for task in running)
        self._iterate(mail)
        ended = time.thread_time()
        if decoding:
            self.found.append((ended - self._ended, self._model, self._drawing))
        self._ended, self._model, self._drawing = ended, 0.0, 0.0


def measure(executor: Executor, vocab_size: int, requests: int, sampling: dict[str, Any]) -> tuple[float, ...]:
    """Medians of the CPU seconds of an iteration, of its drawing, and outside all sessions; tokens per second."""
    wanted = [
        Request(
            arrival.prompt, arrival.new_tokens, streaming=True, sampling_config=SamplingConfig(seed=number, **sampling)
        )
        for number, arrival in enumerate(all_at_once(requests, vocab_size))
    ]
    began = time.perf_counter()
    with Meter(executor, requests) as meter:
        left = set(executor.enqueue_requests(wanted))
        while left:
            for response in executor.await_responses():
                if response.result.is_final:
                    left.discard(response.request_id)
    speed = sum(request.max_tokens for request in wanted) / (time.perf_counter() - began)
    parts = [(whole, drawing, whole - model - drawing) for whole, model, drawing in meter.found]
    return (*map(median, zip(*parts, strict=True)), speed)


def main() -> None:
    """Measure all cases."""
    patience = (20.0, "seconds to wait for a quiet machine, per line")
    args = options_of(__doc__, size=list(SIZES), requests=[1, 16], patience=patience)
    missed = False
    print(f"{'':36}iteration ms  drawing us   Python us   share   tok/s  others")
    for size in args.size:
        with tempfile.TemporaryDirectory() as place:
            checkpoint = synthetic_checkpoint(Path(place) / "checkpoint", scale=SCALE, **SIZES[size])
            with open_ours(checkpoint) as executor:
                for count in args.requests:
                    for name, sampling in WAYS.items():
                        vocab_size = SIZES[size]["vocab_size"]
                        samples, others = quiet_samples(
                            lambda: measure(executor, vocab_size, count, sampling),  # noqa: B023 - called at once
                            3,
                            args.patience,
                        )
                        whole, drawing, outside, speed = (median(column) for column in zip(*samples, strict=True))
                        share = outside / whole
                        missed |= share >= AIMS[size]
                        times = f"{1e3 * whole:12.2f}{1e6 * drawing:12.0f}{1e6 * outside:12.0f}"
                        numbers = f"{times}{share:8.1%}{speed:8.0f}{others:8.0%}"
                        print(f"{size:5}{count:3} x {name:27}{numbers}", flush=True)
    sys.exit(missed)


if __name__ == "__main__":
    main()
