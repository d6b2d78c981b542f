"""Tokens per second beside the servers of other engines: llama.cpp's, openvino-genai and vLLM, in one run.

    make bench-table-llm                                         # installs the engines, writes docs/measurements
    python benchmarks/llm_peers.py --write docs/measurements
    python benchmarks/llm_peers.py --quick --streams 1 8

All serve the same random Llama over OpenAI's ``/v1/completions``, and are there at once: they are asked in turns, round
after round. Prompts of 128 tokens, 64 greedy tokens each, all at once; the client, which parses nothing, shares the
cores. A measurement during which other processes, the idle servers among them, took more than 0.12 core is repeated,
as long as there is time left; the medians of the quiet ones count, and a cell without any says so.

"same": how many of four texts are those of ours. An engine that is not installed prints MISSING, one that does not
serve FAILED, and the exit status is then 1.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import mean
from typing import Any

from executor_runs import NEW_TOKENS, PROMPT
from llm_client import Client
from llm_engines import ENGINES, OURS, PRECISIONS, Unserved, Wanted
from llm_folder import make_checkpoint, prompts
from llm_page import Cell, Streamed, Table, show, write
from measures import busy_seconds, machine, options_of, own_seconds, quiet, rounds, wait_for_quiet
from servers import Missing, NotStarted, Server, end_with_servers

PATH = "/v1/completions"
CHECKED = 4
"""Texts that are compared before anything is measured."""
LAST = 1000
"""Characters of what is known about an engine that does not serve."""
PATIENCE = 2.0
"""Seconds to wait for a quiet machine before each measurement; threads that spin have settled by then."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A server, and the client that asks it."""

    server: Server
    client: Client


def main() -> int:
    options = arguments()
    end_with_servers()
    deadline = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        checkpoint = make_checkpoint(Path(place) / "checkpoint", options.size)
        prompted = prompts(checkpoint, [PROMPT] * max(*options.streams, CHECKED))
        engines, written, missing = start(Path(place), checkpoint, prompted[:CHECKED], stack, options)
        samples = measure(engines, [text for text, _ in prompted], options, deadline)
    table = Table(
        samples={cell: quiet(found) for cell, found in samples.items()},
        noisy={cell for cell, found in samples.items() if not quiet(found, only=True)},
        same={key: same(found, written[OURS, key[1]]) for key, found in written.items() if (OURS, key[1]) in written},
        versions={name: asked.server.version for (name, _), asked in engines.items()},
        machine=machine(),
        size=options.size,
    )
    show(table)
    if options.write and OURS in table.versions:
        write(table, options.write)
    for name, remedy in missing.items():
        print(f"{name}: {remedy}")
    return 1 if missing else 0


def arguments() -> argparse.Namespace:
    options = options_of(
        __doc__,
        size="125m",
        streams=([1, 4, 8, 16], "how many at once"),
        precisions=(list(PRECISIONS), "only these"),
        engines=(list(ENGINES), "only these"),
        rounds=(5, "quiet measurements of each cell"),
        minutes=(15.0, "nothing is repeated after that; the start counts"),
        quick=(False, "one round, whatever others do"),
        write=(Path, "write llm-peers.md, its data and its plot below this directory"),
        environments=(Path(".venvs"), "where those of the engines lie"),
    )
    options.environments = options.environments.absolute()
    if options.quick:
        options.rounds, options.minutes = 1, 0
    return options


Engines = dict[tuple[str, str], Asked]
"""By name and precision."""
Texts = dict[tuple[str, str], list[str]]
Prompt = tuple[str, list[int]]
"""A text and its tokens."""


def start(
    place: Path, checkpoint: Path, checked: Sequence[Prompt], stack: ExitStack, options: argparse.Namespace
) -> tuple[Engines, Texts, dict[str, str]]:
    """The engines that serve, the texts that each has written, and what is wrong with the others."""
    engines: Engines = {}
    written: Texts = {}
    missing: dict[str, str] = {}
    for name in options.engines:
        python, serve = ENGINES[name]
        for precision in options.precisions:
            folder = place / name / precision
            folder.mkdir(parents=True)
            begun = time.monotonic()
            try:
                wanted = Wanted(folder, checkpoint, str(options.environments / python), precision)
                server = stack.enter_context(serve(wanted))
                written[name, precision] = completions(server.http, checked)
            except Unserved:
                continue
            except Missing as error:
                missing[f"MISSING {name}"] = str(error)
                break
            except (NotStarted, OSError, HTTPException, RuntimeError) as error:
                missing[f"FAILED {name} {precision}"] = str(error)[-LAST:]
                continue
            engines[name, precision] = Asked(server, stack.enter_context(Client(server.http)))
            print(f"{name} {precision}: {server.version}, ready after {time.monotonic() - begun:.0f} s", flush=True)
    return engines, written, missing


def body(text: str, *, stream: bool = True) -> dict[str, Any]:
    """``cache_prompt`` is llama.cpp's; the others pass over it."""
    return {
        "model": "m",
        "prompt": text,
        "max_tokens": NEW_TOKENS,
        "stream": stream,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
    }


def completions(port: int, prompted: Sequence[Prompt]) -> list[str]:
    """The continuations of prompts, asked all at once.

    Raises:
        RuntimeError: an engine read other tokens than ours does, or wrote another number than was wanted.
    """
    with ThreadPoolExecutor(len(prompted)) as pool:
        return list(pool.map(lambda prompt: completion(port, *prompt), prompted))


def completion(port: int, text: str, tokens: Sequence[int]) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", PATH, json.dumps(body(text, stream=False)), {"Content-Type": "application/json"})
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise RuntimeError(f"{PATH} answers {response.status}: {content[:500]!r}")
    answer = json.loads(content)
    counts = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
    if counts != (len(tokens), NEW_TOKENS):
        raise RuntimeError(f"{counts} tokens were read and written, not {(len(tokens), NEW_TOKENS)}")
    return str(answer["choices"][0]["text"])


def same(texts: Sequence[str], ours: Sequence[str]) -> int:
    return sum(left == right for left, right in zip(texts, ours, strict=True))


def measure(
    engines: Engines, texts: Sequence[str], options: argparse.Namespace, deadline: float
) -> dict[Cell, list[Streamed]]:
    """Rounds over every engine, for each precision and number of streams."""

    def once(cell: Cell) -> Streamed:
        sample = take(engines[cell.engine, cell.precision], texts[: cell.streams])
        print(
            f"{cell.precision} {cell.streams} {cell.engine}: {sample.rate:.0f} tokens/s, first {sample.first:.0f} ms, "
            f"others {sample.others:.2f}",
            flush=True,
        )
        return sample

    cells = [
        Cell(precision, streams, name)
        for precision in options.precisions
        for streams in options.streams
        for name in options.engines
        if (name, precision) in engines
    ]
    for asked in engines.values():
        asked.client.ask(PATH, [body(text) for text in texts[: max(options.streams)]])
    return rounds(cells, once, options.rounds, deadline, once=options.quick)


def take(asked: Asked, texts: Sequence[str]) -> Streamed:
    """Measure once. What the other servers do meanwhile counts as done by others."""
    wait_for_quiet(PATIENCE)
    begun, busy, own = time.perf_counter(), busy_seconds(), own_seconds([asked.server])
    found = asked.client.ask(PATH, [body(text) for text in texts])
    used = own_seconds([asked.server]) - own + found["cpu"]
    others = (busy_seconds() - busy - used) / (time.perf_counter() - begun)
    rate = len(texts) * NEW_TOKENS / max(found["last"])
    return Streamed(rate, max(0.0, others), 1000 * mean(found["first"]))


if __name__ == "__main__":
    sys.exit(main())
