"""Two language models of one server at once, against one after the other: what sharing the cores costs.

    python benchmarks/llm_two_models.py [--requests 4] [--tokens 96] [--rounds 5]

Random models of the same shape, in one process, each asked for as many texts at once. "alone": the default, with which
each model takes all cores and its threads wait busily. "shared": what ``--backend-config=llm,models-at-once=2`` gives.
Each line has the seconds of both ways, medians of the rounds, and their ratio. The aim for "shared" is 1.1; the exit
status is 1 where it is missed.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from repoagent.executor import Executor, ExecutorConfig, ModelType, Request, RunnerOptions
from repoagent.executor.builder import build
from repoagent.executor.builder.synthetic import synthetic_checkpoint

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


def open_two(folder: Path, threads: int, *, spinning: bool) -> list[Executor]:
    """Two executors over the same folder."""
    made = []
    for _ in range(2):
        config = ExecutorConfig()
        vars(config)["runner_options"] = RunnerOptions(threads=threads, spinning=spinning, max_seq_len=512)
        made.append(Executor(folder, ModelType.DECODER_ONLY, config))
    return made


def ask(executor: Executor, requests: int, tokens: int) -> None:
    """So many texts at once."""
    ids = executor.enqueue_requests([Request(list(range(5, 40)), tokens) for _ in range(requests)])
    for request_id in ids:
        executor.await_responses(request_id)


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(folder: Path, threads: int, options: argparse.Namespace, *, spinning: bool) -> tuple[float, float]:
    """Seconds one after the other, and at once."""
    executors = open_two(folder, threads, spinning=spinning)

    def one(executor: Executor) -> None:
        ask(executor, options.requests, options.tokens)

    def in_turn() -> None:
        for executor in executors:
            one(executor)

    def at_once() -> None:
        running = [threading.Thread(target=one, args=(executor,)) for executor in executors]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    try:
        in_turn()
        rounds = [(seconds(in_turn), seconds(at_once)) for _ in range(options.rounds)]
    finally:
        for executor in executors:
            executor.shutdown()
    return median(turn for turn, _ in rounds), median(both for _, both in rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("--requests", 4), ("--tokens", 96), ("--rounds", 5)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    good = True
    with tempfile.TemporaryDirectory() as place:
        synthetic_checkpoint(Path(place, "checkpoint"), **SHAPE)
        folder = build(Path(place, "checkpoint"), Path(place, "decoder"))
        for name, threads, spinning in (("alone", cores, True), ("shared", max(1, cores // 2), False)):
            turn, both = compare(folder, threads, options, spinning=spinning)
            good = name == "alone" or both / turn <= AIM
            print(f"{name}: one after the other {turn:.2f} s, at once {both:.2f} s, ratio {both / turn:.2f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
