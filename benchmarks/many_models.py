"""Many models: what loading, polling and unloading them takes, and how a server with very many starts.

    python benchmarks/many_models.py                        # 250, 500 and 1,000 models; 2,500 to 10,000 at a start
    python benchmarks/many_models.py --models 100 200 --listed 1000 2000
    python benchmarks/many_models.py --write docs/measurements  # also writes many-models.md and its data

Every model is an ONNX file of 1 MB, encrypted, with three agents: the digest of the ciphertext, its decryption to
memory, the digest of the plaintext. One process per number of models loads all of them (mode POLL, at the start), looks
twice for changes when there are none, once more when ten models have changed, and unloads all (their directories have
gone). For the start, `repoagent serve` runs over models in mode EXPLICIT until it is ready. Exit status 1 if a start
takes two seconds, or a model of the largest number costs over 1.6 times one of the smallest.
"""

import csv
import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from measures import markdown, options_of, seconds, status_bytes, table
from onnx import TensorProto, helper, numpy_helper
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from servers import repoagent

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

GROWTH_LIMIT = 1.6
START_LIMIT = 2.0
CHANGED = 10
CONFIG = """backend: "onnxruntime"
model_repository_agents {{ agents [
  {{ name: "checksum" parameters {{ key: "SHA256:1/model.onnx.age" value: "{sealed}" }} }},
  {{ name: "decrypt" parameters {{ key: "identity" value: "env:MANY_MODELS_IDENTITY" }} }},
  {{ name: "checksum" parameters {{ key: "SHA256:1/model.onnx" value: "{plain}" }} }}
] }}
"""
STEPS = ("load", "poll", "poll 10 changed", "unload")
ELAPSED = ("load, elapsed", "unload, elapsed")
HELD = ("MiB", "MiB after", "threads")
COLUMNS = ("models", *STEPS, *ELAPSED, *HELD)


def main() -> int:
    options = options_of(
        __doc__,
        models=([250, 500, 1000], "how many are loaded"),
        listed=([2500, 5000, 10000], "how many a server finds"),
        write=(Path, "write the page and its data into this directory"),
        child=Path,
    )
    if options.child:
        print(json.dumps(measure(options.child, options.models[0])))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        rows = [loaded(Path(scratch), count) for count in options.models]
        starts = [started(Path(scratch), count) for count in options.listed]
    show(rows, starts)
    if options.write:
        write(options.write, rows, starts)
    each = [row["load"] / row["models"] for row in rows]
    slow = any(row["seconds"] >= START_LIMIT for row in starts)
    return 1 if slow or each[-1] > GROWTH_LIMIT * each[0] else 0


# Models.


def write_models(repository: Path, count: int, identity: X25519Identity) -> None:
    """All the same, as files of their own."""
    weights = numpy_helper.from_array(np.arange(250_000, dtype=np.float32), "w")
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [250_000]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "sum", shapes[:1], shapes[1:], [weights])
    plain = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    first = repository / "m0"
    (first / "1").mkdir(parents=True)
    source, sealed = first / "model.onnx", first / "1" / "model.onnx.age"
    source.write_bytes(plain)
    encrypt_file(source, sealed, [identity.recipient])
    source.unlink()
    digests = {"sealed": sealed.read_bytes(), "plain": plain}
    text = CONFIG.format(**{name: hashlib.sha256(content).hexdigest() for name, content in digests.items()})
    (first / "config.pbtxt").write_text(text)
    for number in range(1, count):
        shutil.copytree(first, repository / f"m{number}")


def loaded(scratch: Path, count: int) -> dict[str, Any]:
    """What :func:`measure` finds in a process of its own."""
    repository = scratch / f"loaded-{count}"
    identity = X25519Identity.generate()
    write_models(repository, count, identity)
    command = [sys.executable, __file__, "--child", str(repository), "--models", str(count)]
    environment = {**os.environ, "MANY_MODELS_IDENTITY": identity.export()}
    output = subprocess.run(command, capture_output=True, text=True, env=environment)
    if output.returncode:
        raise SystemExit(output.stderr)
    shutil.rmtree(repository)
    row: dict[str, Any] = json.loads(output.stdout)
    return row


def measure(repository: Path, count: int) -> dict[str, Any]:
    """Load, poll, change, unload all of the repository's models; seconds, memory and threads."""
    options = CoreOptions(
        repositories=(str(repository),), control_mode=ControlMode.POLL, poll_seconds=1e6, repoagent_directory=None
    )
    warm_up(repository)
    before = status_bytes("RssAnon") + status_bytes("RssShmem")
    core = ServingCore(options)
    row: dict[str, Any] = {"models": count}
    note(row, "load", core.start)
    with ExitStack() as stack:
        stack.callback(core.stop)
        ready = sum(entry["state"] == "READY" for entry in core.index())
        if ready != count:
            raise SystemExit(f"{ready} of {count} models are ready: {core.index()[0]}")
        row["MiB"] = ((status_bytes("RssAnon") + status_bytes("RssShmem")) - before) >> 20
        row["threads"] = threading.active_count()
        note(row, "poll", core.poll)
        for number in range(CHANGED):
            path = repository / f"m{number}" / "config.pbtxt"
            path.write_text(path.read_text() + "\n# changed\n")
        note(row, "poll 10 changed", core.poll)
        for number in range(count):
            (repository / f"m{number}" / "config.pbtxt").unlink()
            shutil.rmtree(repository / f"m{number}")
        note(row, "unload", core.poll)
        if any(entry.get("state") == "READY" for entry in core.index()):
            raise SystemExit("models are left")
        settle()
        row["MiB after"] = ((status_bytes("RssAnon") + status_bytes("RssShmem")) - before) >> 20
    return row


def warm_up(repository: Path) -> None:
    """What the first model of a process brings with it belongs to none of them."""
    options = CoreOptions(repositories=(str(repository),), control_mode=ControlMode.EXPLICIT, repoagent_directory=None)
    with ServingCore(options) as core:
        core.load("m0")
    gc.collect()


def settle() -> None:
    """Wait for the threads that unload: the last one gives freed memory back, and ends after that."""
    while any(thread.name.startswith(("repoagent-load", "repoagent-retire")) for thread in threading.enumerate()):
        time.sleep(0.01)


def note(row: dict[str, Any], step: str, work: Callable[[], object]) -> None:
    """Add the seconds that a step took, and those of the processor, which others on the machine change little."""
    begun = time.process_time()
    row[f"{step}, elapsed"] = seconds(work)
    row[step] = time.process_time() - begun


# A server with very many.


def started(scratch: Path, count: int) -> dict[str, Any]:
    folder = scratch / f"listed-{count}"
    for number in range(count):
        (folder / "models" / f"m{number}" / "1").mkdir(parents=True)
        (folder / "models" / f"m{number}" / "config.pbtxt").write_text('backend: "onnxruntime"\n')
    start = time.perf_counter()
    with repoagent("listed", folder, ["--model-control-mode=explicit"]) as server:
        ready = time.perf_counter() - start
        index = seconds(lambda: listed(server.http, count))
    shutil.rmtree(folder)
    return {"models": count, "seconds": ready, "index": index}


def listed(port: int, count: int) -> None:
    from urllib.request import Request, urlopen

    request = Request(f"http://127.0.0.1:{port}/v2/repository/index", data=b"", method="POST")
    with urlopen(request) as answer:
        found = len(json.load(answer))
    if found != count:
        raise SystemExit(f"the index has {found} of {count} models")


# The table.


def show(rows: list[dict[str, Any]], starts: list[dict[str, Any]]) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; CPU milliseconds per model, MiB in all")
    print(table(COLUMNS, map(cells_of, rows)))
    cells = [(row["models"], f"{row['seconds']:.2f}", f"{row['index']:.2f}") for row in starts]
    print("\n" + table(("models", "seconds to ready", "seconds of an index"), cells))


def cells_of(row: dict[str, Any]) -> list[str]:
    """What :data:`COLUMNS` are of one number of models."""
    each = [f"{row[name] * 1e3 / row['models']:.2f}" for name in (*STEPS, *ELAPSED)]
    return [f"{row['models']:,}", *each, *(f"{row[name]:,}" for name in HELD)]


PAGE = """# Many models

`benchmarks/many_models.py` loads models of 1 MB with three agents each: the digest of the
ciphertext, its decryption to memory, the digest of the plaintext. It then polls them and unloads
them. `python docs/measurements/plot.py` draws the plot from `data/many_models.csv`.

    python benchmarks/many_models.py --write docs/measurements

![Milliseconds per model, by the number of models](../img/many_models.svg)

## Loading, polling, unloading

Milliseconds of the processor per model, so a step that grows faster than the work shows as a
growing column. "Elapsed" is the time on the clock, which includes that of others on the machine.

{loads}

"MiB" is the memory of the process with all models loaded, "MiB after" when all have gone.

## The start of a server

Seconds until `repoagent serve --model-control-mode=explicit` is ready, and those of a request for
the repository index.

{starts}

**Machine**: {machine}, {date}.
"""


def write(directory: Path, rows: list[dict[str, Any]], starts: list[dict[str, Any]]) -> None:
    """The page, and the data of its plot."""
    with (directory / "data" / "many_models.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["step", "models", "milliseconds per model"])
        for step in ("load", "poll", "unload"):
            writer.writerows([step, row["models"], f"{row[step] * 1e3 / row['models']:.3f}"] for row in rows)
    loads = markdown(COLUMNS, [cells_of(row) for row in rows])
    cells = [[f"{row['models']:,}", f"{row['seconds']:.2f}", f"{row['index']:.2f}"] for row in starts]
    versions = f"Python {sys.version.split()[0]}, onnx {onnx.__version__}"
    machine = f"{os.cpu_count()} cores with a load of {os.getloadavg()[0]:.1f}, {versions}"
    page = PAGE.format(
        loads=loads,
        starts=markdown(("models", "seconds to ready", "seconds of an index"), cells),
        machine=machine,
        date=datetime.now(UTC).strftime("%B %Y"),
    )
    (directory / "many-models.md").write_text(page)


if __name__ == "__main__":
    sys.exit(main())
