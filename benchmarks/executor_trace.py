"""Requests with the moments at which they come, and the ways in which an engine may take them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

PROMPT, NEW_TOKENS = 128, 64


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes ``at`` seconds after the start."""

    at: float
    prompt: list[int]
    new_tokens: int


Trace = Sequence[Arrival]


def all_at_once(requests: int, vocab_size: int) -> list[Arrival]:
    """Requests of one size that all come at the start."""
    prompts = np.random.default_rng(0).integers(3, vocab_size, (requests, PROMPT)).tolist()
    return [Arrival(0.0, prompt, NEW_TOKENS) for prompt in prompts]


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


class Machine(Protocol):
    """An engine that takes requests while it runs."""

    def add(self, request: int, prompt: list[int], new_tokens: int) -> None:
        """Take a request."""

    def step(self) -> list[tuple[int, int]]:
        """Go one step on; returns (request, token) for each new token."""


def in_flight(machine: Machine) -> Serve:
    """Hand requests over when they come, between two steps."""

    def serve(trace: Trace) -> Run:
        run, coming, owed = Run(len(trace)), 0, 0
        while coming < len(trace) or owed:
            while coming < len(trace) and trace[coming].at <= run.now():
                machine.add(coming, trace[coming].prompt, trace[coming].new_tokens)
                owed += trace[coming].new_tokens
                coming += 1
            if not owed:
                run.wait_until(trace[coming].at)
                continue
            for request, token in machine.step():
                run.note(request, token)
                owed -= 1
        return run

    return serve
