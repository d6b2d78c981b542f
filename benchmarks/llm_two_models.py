"""Two language models of one server at once, against one after the other: what sharing the cores costs.

    python benchmarks/llm_two_models.py [--requests 4] [--tokens 96] [--rounds 5] [--quanta 10,30] [--form paged]

Random models of the same shape, in one process, each asked for as many texts at once. "apart": each model takes all
cores, and its threads wait busily. "shares": what ``--backend-config=llm,models-at-once=2`` gives. "turns": the
default, one model computes at a time, for 2 ms at least; "turns of 10 ms" and so on: the same with longer turns, which
are handed over less often. With ``--form paged`` they run on OpenVINO. The ways take turns, too. Each line has the
median seconds of one model after the other and of both at once, the median of the rounds' ratios, and the seconds both
at once take compared with one after the other "apart", the fastest way for one model alone. The aim for "turns" is 1.1
in both; the exit status is 1 where it is missed.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from executor_runs import opened
from measures import in_turns, options_of, seconds, together
from repoagent_llm import Executor, Request, RunnerOptions, Turns
from repoagent_llm.builder import Form, build

from examples.executor.synthetic import synthetic_checkpoint

AIM = 1.1
SHAPE: dict[str, Any] = {
    "vocab_size": 8000,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}


def ways(cores: int, quanta: Sequence[float]) -> dict[str, tuple[RunnerOptions, Turns | None]]:
    """How the models use the cores. ``quanta``: milliseconds of further turns."""
    in_turns = RunnerOptions(threads=cores, yielding=True, max_seq_len=512)
    return {
        "apart": (RunnerOptions(threads=cores, max_seq_len=512), None),
        "shares": (RunnerOptions(threads=max(1, cores // 2), spinning=False, max_seq_len=512), None),
        "turns": (in_turns, Turns()),
    } | {f"turns of {quantum:g} ms": (in_turns, Turns(quantum=quantum / 1000)) for quantum in quanta}


def ask(executor: Executor, requests: int, tokens: int) -> None:
    """So many texts at once."""
    ids = executor.enqueue_requests([Request(list(range(5, 40)), tokens) for _ in range(requests)])
    for request_id in ids:
        executor.await_responses(request_id)


def measure(executors: Sequence[Executor], requests: int, tokens: int) -> tuple[float, float]:
    """Seconds one after the other, and at once."""

    def in_turn() -> None:
        for executor in executors:
            ask(executor, requests, tokens)

    return seconds(in_turn), seconds(lambda: together([partial(ask, one, requests, tokens) for one in executors]))


def main() -> int:
    quanta_help = "milliseconds of further turns, with commas"
    options = options_of(__doc__, requests=4, tokens=96, rounds=5, quanta=("", quanta_help), form=Form.GQA)
    quanta = [float(text) for text in options.quanta.split(",") if text]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        synthetic_checkpoint(Path(place, "checkpoint"), **SHAPE)
        folder = build(Path(place, "checkpoint"), Path(place, "decoder"), form=options.form)
        pairs = {
            name: [stack.enter_context(opened(folder, options, turns=turns)) for _ in range(2)]
            for name, (options, turns) in ways(len(os.sched_getaffinity(0)), quanta).items()
        }
        takes = {name: partial(measure, pair, options.requests, options.tokens) for name, pair in pairs.items()}
        found = in_turns(takes, options.rounds, warm=1)
    good = True
    for name, samples in found.items():
        ratio = median(both / turn for turn, both in samples)
        best = median(both / turn for (turn, _), (_, both) in zip(found["apart"], samples, strict=True))
        good &= name != "turns" or max(ratio, best) <= AIM
        turn, both = (median(column) for column in zip(*samples, strict=True))
        line = f"one after the other {turn:.2f} s, at once {both:.2f} s, ratio {ratio:.2f}, to apart {best:.2f}"
        print(f"{name:14} {line}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
