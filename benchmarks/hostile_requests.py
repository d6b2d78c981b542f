"""Requests that mean harm, one after another and several at once, while others are answered.

    python benchmarks/hostile_requests.py [--seconds 5] [--together 1 4]

A server runs two small Python models. For each kind of request, clients send it again and again for some seconds, while
one client asks for liveness and another for a small inference, each on a connection of its own. Printed are the
statuses of the requests, the slowest and the 99th percentile of liveness, and that of the small model.
"""

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PROGRAM: Final = [sys.executable, "-c", "from repoagent.cli.main import main; main()", "serve"]
_IDENTITY: Final = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]) for array in inputs]
"""
_NUMBERS: Final = "/v2/models/numbers/infer"
_TEXT: Final = "/v2/models/text/infer"
_SMALL: Final = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}
).encode()
_LENGTH: Final = "Inference-Header-Content-Length"

Hostile = tuple[str, bytes, dict[str, str]]
"""Path, body, headers."""


def _tensor(name: str = "INPUT0", datatype: str = "FP32", count: int = 1, **more: object) -> str:
    return json.dumps({"name": name, "datatype": datatype, "shape": [count], **more})


def _with(text: str) -> bytes:
    return b'{"inputs":[%b],%b}' % (_tensor(data=[1]).encode(), text.encode())


def _values(datatype: str, value: str, count: int) -> bytes:
    head = _tensor(datatype=datatype, count=count)[:-1]
    return f'{{"inputs":[{head},"data":[{",".join([value] * count)}]}}]}}'.encode()


def _binary_texts(count: int) -> Hostile:
    head = (
        f'{{"inputs":[{_tensor(datatype="BYTES", count=count, parameters={"binary_data_size": 4 * count})}]}}'.encode()
    )
    return _TEXT, head + bytes(4 * count), {_LENGTH: str(len(head))}


def hostile_requests() -> dict[str, Callable[[], Hostile]]:
    """By name, what makes them; each is of the size in which it was seen to stop a server, or the largest allowed."""
    return {
        "42 MB of parameters": lambda: (
            _NUMBERS,
            _with('"parameters":{' + ",".join(f'"p{i}":{i}' for i in range(2_700_000)) + "}"),
            {},
        ),
        "4 million outputs": lambda: (
            _NUMBERS,
            _with('"outputs":[' + ",".join(['{"name":"a"}'] * 4_000_000) + "]"),
            {},
        ),
        "15 million empty inputs": lambda: (_NUMBERS, b'{"inputs":[' + b",".join([b"{}"] * 15_000_000) + b"]}", {}),
        "15 million empty texts": lambda: _binary_texts(15_000_000),
        "20 million numbers": lambda: (_NUMBERS, _values("FP32", "1.5", 15_000_000), {}),
        "10 million texts": lambda: (_TEXT, _values("BYTES", '"ab"', 10_000_000), {}),
        "a text of 60 MB": lambda: (_TEXT, _values("BYTES", '"' + "x" * 60_000_000 + '"', 1), {}),
        "60 MB of escapes": lambda: (_TEXT, _values("BYTES", '"' + "\\n" * 30_000_000 + '"', 1), {}),
        "nested 30 million deep": lambda: (_NUMBERS, b'{"inputs":' + b"[" * 30_000_000 + b"}", {}),
        "60 MB of nothing": lambda: (_NUMBERS, b" " * 60_000_000, {}),
        "generate with 42 MB of members": lambda: (
            "/v2/models/text/generate",
            ("{" + ",".join(f'"p{i}":{i}' for i in range(2_700_000)) + "}").encode(),
            {},
        ),
        "an index request of 42 MB": lambda: (
            "/v2/repository/index",
            ("{" + ",".join(f'"p{i}":{i}' for i in range(2_700_000)) + "}").encode(),
            {},
        ),
        "log settings of 42 MB": lambda: (
            "/v2/logging",
            ("{" + ",".join(f'"p{i}":{i}' for i in range(2_700_000)) + "}").encode(),
            {},
        ),
    }


def write_models(folder: Path) -> None:
    """``numbers`` (FP32) and ``text`` (BYTES) give back their one input."""
    for name, data_type in (("numbers", "FP32"), ("text", "STRING")):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(_IDENTITY)
        tensor = f"data_type: TYPE_{data_type} dims: [-1]"
        (folder / name / "config.pbtxt").write_text(
            f'backend: "python"\ninput {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
        )


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """A server of its own process; where its HTTP is."""
    write_models(folder / "models")
    ready, log = folder / "ready.json", folder / "log"
    flags = ["--http-port=0", "--allow-metrics=false", f"--ready-file={ready}", f"--workspace-directory={folder / 'w'}"]
    command = [*PROGRAM, f"--model-repository={folder / 'models'}", f"--cache-directory={folder / 'c'}", *flags]
    with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr, stdin=subprocess.DEVNULL) as process:
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise SystemExit(f"the server ended:\n{log.read_text()}")
                time.sleep(0.05)
            http_port = json.loads(ready.read_text())["http"]["port"]
            yield "127.0.0.1", http_port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


class Asking(threading.Thread):
    """One client that asks the same again and again until it is stopped; the time of each answer, in milliseconds."""

    def __init__(self, address: tuple[str, int], path: str, body: bytes | None = None, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._address, self._path, self._body, self._pause = address, path, body, pause
        self.times: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.headers: dict[str, str] = {}
        self._done = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=300)
        while not self._done.is_set():
            start = time.perf_counter()
            connection.request("POST" if self._body is not None else "GET", self._path, self._body, self.headers)
            response = connection.getresponse()
            response.read()
            self.times.append((time.perf_counter() - start) * 1000)
            self.statuses[response.status] += 1
            self._done.wait(self._pause)
        connection.close()

    def stop(self) -> None:
        """Let it end after the answer that it waits for."""
        self._done.set()
        self.join()


def measure(address: tuple[str, int], hostile: Hostile | None, together: int, seconds: float) -> str:
    """One line: what ``together`` clients that send ``hostile`` do to the others."""
    live = Asking(address, "/v2/health/live", pause=0.005)
    small = Asking(address, _NUMBERS, _SMALL, pause=0.001)
    attackers: list[Asking] = []
    for _ in range(together if hostile else 0):
        assert hostile is not None
        attackers.append(Asking(address, hostile[0], hostile[1]))
        attackers[-1].headers = hostile[2]
    everybody = [live, small, *attackers]
    for client in everybody:
        client.start()
    time.sleep(seconds)
    for client in everybody:
        client.stop()
    statuses = sum((client.statuses for client in attackers), Counter[int]())
    answers = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
    return (
        f"{max(live.times):8.1f} {_p99(live.times):8.1f} {_p99(small.times):8.1f} {max(small.times):8.1f}   {answers}"
    )


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kind")
    parser.add_argument("--together", type=int, nargs="+", default=[1, 4], help="how many at once")
    parser.add_argument("--only", default="", help="only kinds with this in their name")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as address:
        print(f"{'milliseconds':42} live max live p99 small p99 small max   answers")
        print(f"{'none':40} 0 {measure(address, None, 0, options.seconds)}")
        for name, make in hostile_requests().items():
            if options.only in name:
                hostile = make()
                for together in options.together:
                    print(f"{name:40} {together} {measure(address, hostile, together, options.seconds)}", flush=True)


if __name__ == "__main__":
    main()
