"""``repoagent serve`` for benchmarks of language models, and what each of its threads takes of the processor.

``llm_server.py FLAGS...`` is the program: it serves, and answers each line of its input with its threads by number.
"""

import json
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_NAMES = (("repoagent-executor", "executor"), ("-llm", "backend"), ("MainThread", "main"))


class Served:
    """A server that is ready."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self._process = process
        self.port = port

    def threads(self) -> dict[str, float]:
        """Seconds of the processor by kind of thread; those without a Python name belong to ONNX Runtime."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        names = json.loads(self._process.stdout.readline())
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


def _name_threads() -> None:
    for _ in sys.stdin:
        print(json.dumps({str(one.native_id): one.name for one in threading.enumerate()}), flush=True)


if __name__ == "__main__":
    from repoagent.cli.main import main

    threading.Thread(target=_name_threads, daemon=True, name="front end").start()
    main()
