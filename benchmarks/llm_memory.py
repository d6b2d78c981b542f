"""What a decoder takes of the memory: its folder in memory, as decrypted ones lie there, and its session.

    python benchmarks/llm_memory.py [--size 125m]

A random decoder in each precision, its folder on a tmpfs, loaded in a process of its own and asked for some tokens.
"mapped": the session maps the file of its weights, so that the folder stays as long as the model serves. "own": it
copies them, and the folder goes when it is loaded, as the backend ``llm`` does with decrypted models. Sizes in MiB:
"folder" on the tmpfs, "session" of this process without it (and without its KV cache, which is as large as it is
used), "serving" what both take then, "peak" what they took at once while it was loaded.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from executor_speed import SCALE, SIZES
from measures import options_of, run, status_bytes, table
from repoagent_llm import Executor, ExecutorConfig, ModelType, Request, RunnerOptions
from repoagent_llm.builder import Precision, build

from examples.executor.synthetic import synthetic_checkpoint
from repoagent.serving.lifecycle.load_pool import give_back_soon

MEMORY = "/dev/shm"
MIB = 1 << 20


def private_bytes() -> int:
    """Memory of this process that no file has."""
    return status_bytes("RssAnon")


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class Peak:
    """Looks at the private memory all the time."""

    def __init__(self) -> None:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, private_bytes())


def measure(folder: Path, *, own: bool) -> dict[str, float]:
    """In a process that has loaded nothing yet; the folder is gone afterwards."""
    size, before = folder_bytes(folder), private_bytes()
    config = ExecutorConfig(max_batch_size=1)
    threads = len(os.sched_getaffinity(0))
    vars(config)["runner_options"] = RunnerOptions(threads=threads, max_seq_len=64, own_weights=own)
    with Peak() as peak:
        executor = Executor(folder, ModelType.DECODER_ONLY, config)
    with executor:
        if own:
            shutil.rmtree(folder)
        give_back_soon()  # as the server does after loads
        executor.await_responses(executor.enqueue_request(Request([3, 4, 5], 8)))
        session = private_bytes() - before
    left = 0 if own else size
    sizes = {"folder": size, "session": session, "serving": session + left, "peak": peak.most - before + size}
    return {name: value / MIB for name, value in sizes.items()}


def main() -> None:
    args = options_of(__doc__, size="125m", one=([""], "a folder, and how to load it; prints the sizes as JSON"))
    if any(args.one):
        print(json.dumps(measure(Path(args.one[0]), own=args.one[1] == "own")))
        return
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory(dir=MEMORY) as memory:
        checkpoint = synthetic_checkpoint(Path(place, "checkpoint"), scale=SCALE, **SIZES[args.size])
        rows = []
        for precision in (one for one in Precision if one is not Precision.BF16):  # that belongs to the paged form
            built = build(checkpoint, Path(place, precision.value), precision=precision)
            for way in ("mapped", "own"):
                folder = shutil.copytree(built, Path(memory, f"{precision.value}-{way}"))
                found = json.loads(run([sys.executable, __file__, "--one", folder, way]).stdout.splitlines()[-1])
                rows.append((f"{precision.value}, {way}", *(f"{value:.0f}" for value in found.values())))
                shutil.rmtree(folder, ignore_errors=True)
    print(table(("MiB", *found), rows))


if __name__ == "__main__":
    main()
