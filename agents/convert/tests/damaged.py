"""Converts damaged files in processes that are forked behind the imports, and prints what became of them as JSON.

    python damaged.py MODULE:CONVERTER FILE COUNT

``FILE`` is the model in its directory, or a file of its folder; whole, it has to be converted. What is counted:
``refused`` by an error of the project, ``compared`` models, other ``errors``, ``ended`` processes, and those that took
``too long``; ``worse`` is a model that nothing was compared with. ``KiB`` is the most memory of a process.
"""

import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import zipfile
from collections import Counter
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "agents/convert")]

from repoagent.api import ConversionJob, ConversionSource, RepoAgentError  # noqa: E402
from repoagent.limits import DEFAULT_LIMITS  # noqa: E402

SECONDS = 120
"""Of the processor."""
MEMORY = DEFAULT_LIMITS.build_bytes
CODES = ("compared", "worse", "refused", "errors")


def changed(content: bytes, source: random.Random) -> bytes:
    """One to four changes of bits, bytes and lengths; of an archive, mostly in one of its members."""
    if content[:2] == b"PK" and source.random() < 0.8:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        chosen = source.choice([name for name, member in members.items() if member])
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, member in members.items():
                archive.writestr(name, changed(member, source) if name == chosen else member)
        return file.getvalue()
    data = bytearray(content)
    for _ in range(source.randint(1, 4)):
        place = source.randrange(len(data))
        match source.randrange(5):
            case 0:
                data[place] ^= 1 << source.randrange(8)
            case 1:
                data[place : place + 4] = source.choice((bytes(4), b"\xff" * 4, source.randbytes(4)))
            case 2:
                del data[place : place + source.randint(1, 200)]
            case 3:
                data[place:place] = data[source.randrange(len(data)) :][: source.randint(1, 200)]
            case _:
                data[place:] = data[place : place + len(data) // 2]
        data = data or bytearray(b"x")
    return bytes(data)


def converted(converter: Any, folder: Path, name: str) -> int:
    """The place of the outcome in :data:`CODES`."""
    most = min(MEMORY, getattr(converter, "memory_bytes", lambda _: MEMORY)((folder / name).stat().st_size))
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        options = {key: one.default for key, one in converter.options.items() if one.default is not None}
        plan = converter.plan(ConversionSource(folder, name, name), options)
        os.chdir(folder.parent / "scratch")
        product = converter.build(ConversionJob(folder, folder.parent / "target", plan.settings))
        return 0 if "compared with" in product.notes[-1] and "not compared" not in product.notes[-1] else 1
    except RepoAgentError:
        return 2
    except BaseException:
        return 3


def warm(modules: list[str]) -> None:
    """Import what the whole file needed, for the processes to come: they would take most of their time to do so.

    ONNX Runtime starts a thread, which no process behind a fork has.
    """
    for name in modules:
        if not name.startswith("onnxruntime"):
            with suppress(Exception):  # some are no modules of their own
                import_module(name)


def main(target: str, file: Path, count: int) -> None:
    module, _, name = target.partition(":")
    converter, source = getattr(import_module(module), name)(), random.Random(28)
    getattr(converter, "prepare", lambda: None)()
    found: Counter[str] = Counter()
    most = 0
    for turn in range(count + 1):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "model")
            shutil.copytree(file.parent, folder)
            for other in ("target", "scratch"):
                Path(place, other).mkdir()
            if turn:
                (folder / file.name).write_bytes(changed(file.read_bytes(), source))
            if not (process := os.fork()):
                outcome = converted(converter, folder, file.name)
                if not turn:
                    (folder.parent / "modules").write_text(" ".join(sys.modules))
                os._exit(outcome)
            _, status, used = os.wait4(process, 0)
            imported = Path(place, "modules")
            modules = imported.read_text().split() if imported.exists() else []
        code = os.waitstatus_to_exitcode(status)
        if not turn:
            assert code == CODES.index("compared"), "the whole file is not converted: this shows nothing"
            warm(modules)
            continue
        ended = "too long" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "ended"
        found[CODES[code] if code in range(4) else ended] += 1
        most = max(most, used.ru_maxrss)
    print(json.dumps({**found, "KiB": most}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
