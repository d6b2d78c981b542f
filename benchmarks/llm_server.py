"""``repoagent serve`` for benchmarks of language models, what each of its threads takes of the processor, and the steps
of its executor.

``llm_server.py FLAGS...`` is the program: it serves, and answers each line of its input with its threads by number, and
the steps since the last line.
"""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, cast

from repoagent_llm.engine.engine import Engine

_NAMES = (("repoagent-executor", "executor"), ("-llm", "backend"), ("MainThread", "main"))


#: Beginning, end, sequences, tokens.
Step = tuple[float, float, int, int]
_steps: list[Step] = []


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a run by what they went into. ``outside``: before the first step, and behind the last."""

    prompts: float
    generating: float
    between: float
    outside: float
    steps: float
    slowest: float
    """The median of the steps with the most sequences."""

    @classmethod
    def median(cls, samples: Sequence["Parts"]) -> "Parts":
        """Of each part by itself."""
        return cls(*(median(getattr(sample, field.name) for sample in samples) for field in fields(cls)))

    def __str__(self) -> str:
        return (
            f"prompts {self.prompts:.2f} s, generating {self.generating:.2f} s ({1e3 * self.slowest:.1f} ms a step), "
            f"between {1e3 * self.between:.0f} ms, outside {1e3 * self.outside:.0f} ms, {self.steps:.0f} steps"
        )


def note_steps() -> None:
    """Note all steps from now on."""
    compute: Any = Engine._compute

    def noted(engine: Engine, *args: Any) -> Any:
        began = time.perf_counter()
        computed = compute(engine, *args)
        if computed is not None:
            works = computed[0].works
            tokens = sum(len(work.segment.tokens) for work in works) if computed[0].round is None else len(works)
            _steps.append((began, time.perf_counter(), len(works), tokens))
        return computed

    cast("Any", Engine)._compute = noted


def take_steps() -> list[Step]:
    """Those since the last call."""
    taken = list(_steps)
    _steps.clear()
    return taken


def parts_of(steps: Sequence[Sequence[float]], seconds: float) -> Parts:
    """Of a run that took ``seconds`` and had these steps."""
    most = max(works for _, _, works, _ in steps)
    generating = [end - begin for begin, end, works, tokens in steps if tokens == works]
    slowest = [end - begin for begin, end, works, tokens in steps if tokens == works == most]
    computing = sum(end - begin for begin, end, _, _ in steps)
    span = steps[-1][1] - steps[0][0]
    return Parts(
        computing - sum(generating),
        sum(generating),
        span - computing,
        seconds - span,
        len(steps),
        median(slowest or generating),
    )


class Served:
    """A server that is ready."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process = process
        self.port = port

    def _told(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told

    def steps(self) -> list[list[float]]:
        """Those of its executor since the last question."""
        steps: list[list[float]] = self._told()["steps"]
        return steps

    def threads(self) -> dict[str, float]:
        """Seconds of the processor by kind of thread; those without a Python name belong to ONNX Runtime."""
        names = self._told()["threads"]
        seconds: dict[str, float] = defaultdict(float)
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            used = int((task / "schedstat").read_text().split()[0]) / 1e9
            seconds[_kind(names.get(task.name))] += used
        return seconds


def _kind(name: str | None) -> str:
    if name is None:
        return "session"
    return next((kind for part, kind in _NAMES if part in name), "front end")


@contextmanager
def serving(root: Path, flags: Sequence[str] = ()) -> Iterator[Served]:
    """A server over ``root/models``."""
    ready, log = root / "ready.json", root / "serve.log"
    command = [sys.executable, __file__, "serve", "--model-repository", str(root / "models"), "--http-port=0"]
    command += ["--allow-grpc=false", "--allow-metrics=false", "--allow-openai=true", f"--ready-file={ready}"]
    command += ["--workspace-directory", str(root / "workspace"), *flags]
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        try:
            deadline = time.monotonic() + 120
            while not ready.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the server did not start:\n{log.read_text()}")
                time.sleep(0.02)
            yield Served(process, int(json.loads(ready.read_text())["http"]["port"]))
        finally:
            process.terminate()


def _tell() -> None:
    for _ in sys.stdin:
        threads = {str(one.native_id): one.name for one in threading.enumerate()}
        print(json.dumps({"threads": threads, "steps": take_steps()}), flush=True)


if __name__ == "__main__":
    from repoagent.cli.main import main

    note_steps()
    threading.Thread(target=_tell, daemon=True, name="front end").start()
    main()
