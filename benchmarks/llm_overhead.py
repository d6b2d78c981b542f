"""What HTTP and the backend ``llm`` cost over the executor alone, in one run.

    python benchmarks/llm_overhead.py [--size 125m] [--streams 1 8 16] [--rounds 5] [--rate 3]

Streams of 64 greedy tokens behind prompts of 128, all at once, in turn by the executor in this process and by
``repoagent serve``: ``generate_stream`` and OpenAI's completions. The client is a process of its own that parses
nothing, and shares the cores with the server. Medians of the rounds of tokens per second; "overhead" is the median of
the rounds' own ratios. Then the CPU microseconds of each token by thread: "executor" and "session" compute, and wait
for each other busily; "backend" makes texts of tokens, "front end" is HTTP, "client" what it says. Then requests that
come at random, and the time to the first token of each.

The aims: less than 10 % of the tokens per second, and at most 1.2 times the executor's time to the first token; the
exit status is 1 where one is missed. "others": the largest share of the machine that other processes had.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from executor_runs import LENGTH, NEW_TOKENS, PROMPT, Arrival, Trace, at_random, opened, served_by
from executor_speed import SIZES
from llm_client import Client
from llm_folder import make_checkpoint, make_repository, prompts
from llm_server import Served, serving
from measures import in_turns, medians, options_of, ratio, wait_for_quiet
from repoagent_llm import Executor, RunnerOptions

MOST_OVERHEAD, MOST_LATER = 0.10, 1.2
ARRIVALS = 24
PARAMETERS = {"max_seq_len": str(LENGTH), "enable_kv_cache_reuse": "false"}
#: Path, and the body of a request by its text and its new tokens.
ROUTES: Mapping[str, tuple[str, Callable[[str, int], dict[str, Any]]]] = {
    "generate_stream": (
        "/v2/models/m/generate_stream",
        lambda text, tokens: {"text_input": text, "max_tokens": tokens, "stream": True, "end_id": -1},
    ),
    "completions": (
        "/v1/completions",
        lambda text, tokens: {
            "model": "m",
            "prompt": text,
            "max_tokens": tokens,
            "stream": True,
            "ignore_eos": True,
            "temperature": 0,
        },
    ),
}
Texts = Sequence[str]
Rates = Mapping[str, float]


def open_executor(folder: Path) -> Executor:
    """The executor as the backend opens it, and as it is fastest by itself."""
    options = RunnerOptions(threads=len(os.sched_getaffinity(0)), max_seq_len=LENGTH)
    return opened(folder, options, enable_chunked_context=True)


class Ways:
    """The ways to ask, over the same texts."""

    def __init__(self, executor: Executor, client: Client) -> None:
        self._serve = served_by(executor)
        self._client = client

    def executor(self, trace: Trace) -> tuple[float, list[float]]:
        """Seconds until the last token, and to the first token of each request."""
        run = self._serve(trace)
        first = [moments[0] - arrival.at for moments, arrival in zip(run.moments, trace, strict=True)]
        return max(moments[-1] for moments in run.moments), first

    def route(self, name: str, trace: Trace, texts: Texts) -> tuple[float, list[float]]:
        """The same over HTTP."""
        path, body = ROUTES[name]
        bodies = [body(text, arrival.new_tokens) for text, arrival in zip(texts, trace, strict=True)]
        found = self._client.ask(path, bodies, [arrival.at for arrival in trace])
        ends = (last + arrival.at for last, arrival in zip(found["last"], trace, strict=True))
        return max(ends), found["first"]


def compare(ways: Ways, trace: Trace, texts: Texts, rounds: int) -> tuple[Rates, Rates]:
    """Tokens per second of each way, and each route's overhead."""
    tokens = sum(arrival.new_tokens for arrival in trace)
    takes: dict[str, Callable[[], float]] = {"executor": lambda: tokens / ways.executor(trace)[0]}
    takes |= {name: lambda name=name: tokens / ways.route(name, trace, texts)[0] for name in ROUTES}  # type: ignore[misc]
    rates = in_turns(takes, rounds, warm=1)
    return medians(rates), {name: 1 - ratio(rates, name, "executor") for name in ROUTES}


def spent(server: Served, client: Client, route: str, streams: int, texts: Texts) -> dict[str, float]:
    """CPU microseconds per token by thread."""
    path, body = ROUTES[route]
    before = server.threads()
    found = client.ask(path, [body(text, NEW_TOKENS) for text in texts[:streams]])
    after = server.threads()
    seconds = {name: after[name] - before.get(name, 0.0) for name in after} | {"client": found["cpu"]}
    return {name: 1e6 * value / (streams * NEW_TOKENS) for name, value in seconds.items()}


def at_once(prompted: Sequence[tuple[str, list[int]]]) -> tuple[Trace, Texts]:
    return [Arrival(0.0, tokens, NEW_TOKENS) for _, tokens in prompted], [text for text, _ in prompted]


def at_moments(checkpoint: Path, rate: float, vocab_size: int) -> tuple[Trace, Texts]:
    drawn = at_random(ARRIVALS, rate, vocab_size)
    prompted = prompts(checkpoint, [len(arrival.prompt) for arrival in drawn])
    trace = [Arrival(one.at, tokens, one.new_tokens) for one, (_, tokens) in zip(drawn, prompted, strict=True)]
    return trace, [text for text, _ in prompted]


def report(ways: Ways, server: Served, client: Client, checkpoint: Path, args: argparse.Namespace) -> bool:
    """Print all; whether the aims are met."""
    good = True
    counts = args.streams
    prompted = prompts(checkpoint, [PROMPT] * max(counts))
    print(f"{'streams':>8}{'executor':>10}" + "".join(f"{name:>18}{'overhead':>10}" for name in ROUTES))
    for count in counts:
        trace, texts = at_once(prompted[:count])
        wait_for_quiet(args.patience)
        rates, lost = compare(ways, trace, texts, args.rounds)
        good &= max(lost.values()) < MOST_OVERHEAD
        cells = "".join(f"{rates[name]:18.0f}{lost[name]:10.1%}" for name in ROUTES)
        print(f"{count:8}{rates['executor']:10.0f}{cells}", flush=True)
    for count, route in product(counts, ROUTES):
        samples = [spent(server, client, route, count, [text for text, _ in prompted]) for _ in range(args.rounds)]
        names = "executor", "session", "backend", "main", "front end", "client"
        cells = ", ".join(f"{name} {median(parts.get(name, 0.0) for parts in samples):.0f}" for name in names)
        print(f"us of CPU time per token at {count} streams, {route}: {cells}", flush=True)
    trace, texts = at_moments(checkpoint, args.rate, SIZES[args.size]["vocab_size"])
    rounds = [
        [mean(first) for _, first in (ways.executor(trace), *(ways.route(name, trace, texts) for name in ROUTES))]
        for _ in range(args.rounds)
    ]
    alone = median(row[0] for row in rounds)
    print(f"first token at {args.rate:g} requests per second: executor {1000 * alone:.0f} ms", end="")
    for place, name in enumerate(ROUTES, 1):
        ratio = median(row[place] / row[0] for row in rounds)
        good &= ratio <= MOST_LATER
        print(f", {name} {1000 * median(row[place] for row in rounds):.0f} ms ({ratio:.2f} times)", end="")
    print()
    return good


def main() -> int:
    args = options_of(
        __doc__,
        size="125m",
        streams=[1, 8, 16],
        rounds=5,
        rate=(3.0, "requests per second where they come at random"),
        patience=(20.0, "seconds to wait for a quiet machine, per line"),
        precision="fp32",
        set=([""], "parameters of the model: NAME=VALUE"),
    )
    with tempfile.TemporaryDirectory() as place:
        checkpoint = make_checkpoint(Path(place) / "checkpoint", args.size)
        parameters = PARAMETERS | dict(text.split("=", 1) for text in args.set if text)
        folder = make_repository(Path(place), checkpoint, parameters, args.precision)
        with serving(Path(place)) as server, open_executor(folder) as executor, Client(server.port) as client:
            began = time.perf_counter()
            good = report(Ways(executor, client), server, client, checkpoint, args)
            print(f"in {time.perf_counter() - began:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
