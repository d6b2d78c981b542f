"""Requests that mean harm, one after another and several at once, while others are answered.

    python benchmarks/hostile_requests.py [--seconds 5] [--together 1 4] [--held-mib 256] [--only T18]

A server runs two small Python models. For each kind of request, clients send it again and again for some seconds, while
one client asks for liveness and another for a small inference, each on a connection of its own. Printed are the
statuses of the requests, the slowest and the 99th percentile of liveness, and that of the small model, and by how much
the memory of the server has grown at most, beside what it was before.

T18 is compressed bodies, 16 at once, with a reserve of --held-mib: the growth must stay below that and a tenth. T22 is
one connection that floods the port of gRPC, or that of HTTP: the others must wait less than 100 ms.
"""

import argparse
import contextlib
import gzip
import http.client
import json
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import grpc
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame
from measures import options_of, status_bytes
from repoagent_server.grpc.http2.frames import PREFACE as _PREFACE
from servers import IDENTITY, Server, repoagent

_NUMBERS: Final = "/v2/models/numbers/infer"
_TEXT: Final = "/v2/models/text/infer"
_SMALL: Final = json.dumps(
    {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}]}
).encode()
_LENGTH: Final = "Inference-Header-Content-Length"

Hostile = tuple[str, bytes, dict[str, str]]
"""Path, body, headers."""
Flood = Callable[[], tuple[bytes, bytes]]
"""What begins a connection, and what is sent on it again and again until it ends."""
_TOGETHER: Final = 16
MIB: Final = 1 << 20


def _tensor(name: str = "INPUT0", datatype: str = "FP32", count: int = 1, **more: object) -> str:
    return json.dumps({"name": name, "datatype": datatype, "shape": [count], **more})


def _values(datatype: str, value: str, count: int) -> bytes:
    head = _tensor(datatype=datatype, count=count)[:-1]
    return f'{{"inputs":[{head},"data":[{",".join([value] * count)}]}}]}}'.encode()


def _long_text(as_json: bool) -> Hostile:
    """One of 60 MB in binary, which the model gives back."""
    size = 60_000_000
    head = _tensor(datatype="BYTES", count=1, parameters={"binary_data_size": size + 4})
    text = f'{{"inputs":[{head}],"parameters":{{"binary_data_output":{json.dumps(not as_json)}}}}}'.encode()
    return _TEXT, text + struct.pack("<I", size) + b"x" * size, {_LENGTH: str(len(text))}


def _text(text: str) -> Hostile:
    return _TEXT, _values("BYTES", f'"{text}"', 1), {}


def _numbers(announced: bytes = b"15000000") -> Hostile:
    """15 million in JSON, of a shape that announces as many or not."""
    return _NUMBERS, _values("FP32", "1.5", 15_000_000).replace(b"15000000", announced, 1), {}


REQUESTS: Final[dict[str, Callable[[], Hostile]]] = {
    "10 million texts": lambda: (_TEXT, _values("BYTES", '"ab"', 10_000_000), {}),
    "2 million texts": lambda: (_TEXT, _values("BYTES", '"ab"', 2_000_000), {}),
    "a text of 16 MiB": lambda: _text("x" * (16 << 20)),
    "a text of 60 MB, binary": lambda: _long_text(as_json=False),
    "a text of 60 MB, JSON back": lambda: _long_text(as_json=True),
    "a text of 60 MB": lambda: _text("x" * 60_000_000),
    "60 MB of escapes": lambda: _text("\\n" * 30_000_000),
    "60 MB of blanks": lambda: (_NUMBERS, b" " * 60_000_000, {}),
    "15 million numbers of another shape": lambda: _numbers(b"15000001"),
    "15 million numbers": _numbers,
}
"""By name, what makes them; each is of the size in which it was seen to stop a server, or the largest allowed."""


def _opened() -> Hostile:
    """64 KB that open to 63 MiB."""
    count = 63 << 18
    head = f'{{"inputs":[{_tensor(count=count, parameters={"binary_data_size": 4 * count})}],'.encode()
    head += b'"parameters":{"binary_data_output":true}}'
    return _NUMBERS, gzip.compress(head + bytes(4 * count)), {_LENGTH: str(len(head)), "Content-Encoding": "gzip"}


def _refused_bomb() -> Hostile:
    """A megabyte that opens to a gigabyte."""
    return _NUMBERS, gzip.compress(bytes(1 << 30), 9), {"Content-Encoding": "gzip"}


BOMBS: Final[dict[str, Callable[[], Hostile]]] = {
    "T18: 63 MiB of gzip": _opened,
    "T18: gzip beyond the limit": _refused_bomb,
}


def _frames(*frames: Frame) -> bytes:
    return b"".join(frame.serialize() for frame in frames)


def _begun(number: int = 1, *more: tuple[str, str]) -> Frame:
    path = "/inference.GRPCInferenceService/ModelInfer"
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
    fields = [*fields, ("content-type", "application/grpc"), *more]
    return HeadersFrame(number, Encoder().encode(fields), flags=["END_HEADERS"])


def _data_of_a_byte() -> tuple[bytes, bytes]:
    start = _frames(SettingsFrame(), _begun(), DataFrame(1, struct.pack(">BI", 0, 1 << 25)))
    return _PREFACE + start, _frames(DataFrame(1, b"x")) * 20_000


def _new_headers() -> tuple[bytes, bytes]:
    headers = [_begun(number, ("x", f"{number:08}" * 1000)) for number in range(1, 2000, 2)]
    return _PREFACE + _frames(SettingsFrame()), _frames(*headers)


def _chunks_of_a_byte() -> tuple[bytes, bytes]:
    head = f"POST {_NUMBERS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head.encode(), b"1\r\nx\r\n" * 20_000


def _requests_ahead() -> tuple[bytes, bytes]:
    return b"", b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000


FLOODS: Final[dict[str, tuple[str, Flood]]] = {
    "T22: DATA of a byte": ("grpc", _data_of_a_byte),
    "T22: new headers": ("grpc", _new_headers),
    "T22: chunks of a byte": ("http", _chunks_of_a_byte),
    "T22: requests sent ahead": ("http", _requests_ahead),
}


def write_models(folder: Path) -> None:
    """``numbers`` (FP32) and ``text`` (BYTES) give back their one input."""
    for name, data_type in (("numbers", "FP32"), ("text", "STRING")):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(IDENTITY)
        tensor = f"data_type: TYPE_{data_type} dims: [-1]"
        (folder / name / "config.pbtxt").write_text(
            f'backend: "python"\ninput {{ name: "INPUT0" {tensor} }}\noutput {{ name: "OUTPUT0" {tensor} }}\n'
        )


class Client(threading.Thread):
    """One of those that do the same again and again until they are stopped."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._done = threading.Event()
        self.times: list[float] = []
        """Milliseconds of each answer."""
        self.statuses: Counter[int] = Counter()

    def stop(self) -> None:
        """Let it end after what it waits for."""
        self._done.set()
        self.join()


class Flooding(Client):
    """One client at a time that floods a port; when it is cut off it comes again."""

    def __init__(self, address: tuple[str, int], flood: Flood) -> None:
        super().__init__(address)
        self._start, self._again = flood()

    def run(self) -> None:
        while not self._done.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._address, timeout=1) as connection:
                connection.sendall(self._start)
                while not self._done.is_set():
                    connection.sendall(self._again)
            self.statuses[0] += 1


class Calling(Client):
    """One client that calls over gRPC again and again on an open connection."""

    def run(self) -> None:
        with grpc.insecure_channel("{}:{}".format(*self._address)) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            call(b"", timeout=60)
            while not self._done.wait(0.001):
                start = time.perf_counter()
                with contextlib.suppress(grpc.RpcError):  # there may be no room for a message
                    call(b"", timeout=60)
                self.times.append((time.perf_counter() - start) * 1000)


class Asking(Client):
    """One client that asks the same over HTTP."""

    def __init__(
        self,
        address: tuple[str, int],
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        pause: float = 0.0,
    ) -> None:
        super().__init__(address)
        self._path, self._body, self._headers, self._pause = path, body, headers or {}, pause

    def run(self) -> None:
        connection = http.client.HTTPConnection(*self._address, timeout=300)
        while not self._done.is_set():
            start = time.perf_counter()
            connection.request("POST" if self._body is not None else "GET", self._path, self._body, self._headers)
            response = connection.getresponse()
            response.read()
            self.times.append((time.perf_counter() - start) * 1000)
            self.statuses[response.status] += 1
            self._done.wait(self._pause)
        connection.close()


def measure(server: Server, attackers: Sequence[Client], seconds: float) -> str:
    """One line: what the attackers do to the others."""
    address = ("127.0.0.1", server.http)
    live = Asking(address, "/v2/health/live", pause=0.005)
    small = Asking(address, _NUMBERS, _SMALL, pause=0.001)
    called = Calling(("127.0.0.1", server.grpc))
    everybody = [live, small, called, *attackers]
    before = status_bytes("VmRSS", server.session)
    Path(f"/proc/{server.session}/clear_refs").write_text("5")  # the peak begins again
    for client in everybody:
        client.start()
    time.sleep(seconds)
    for client in everybody:
        client.stop()
    statuses = sum((client.statuses for client in attackers), Counter[int]())
    answers = ", ".join(f"{count} x {status or 'cut off'}" for status, count in sorted(statuses.items()))
    times = "".join(
        f"{value:9.1f}" for one in (live, small, called) for value in (_p99(one.times), max(one.times, default=0))
    )
    more = status_bytes("VmHWM", server.session) - before
    return f"{times} {before / MIB:7.0f} {more / MIB:7.0f}   {answers}"


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else sum(times)


def main() -> None:
    """Measure and print."""
    options = options_of(
        __doc__,
        seconds=(5.0, "for each kind"),
        together=([1, 4], "how many at once"),
        only=("", "only kinds with this in their name"),
        held_mib=(256, "the reserve of memory"),
    )
    with tempfile.TemporaryDirectory() as scratch:
        write_models(Path(scratch, "models"))
        flags = [f"--limit-held-bytes={options.held_mib * MIB}", f"--cache-directory={scratch}/cache"]
        with repoagent("hostile", Path(scratch), flags) as server:
            measure_all(server, options)


def measure_all(server: Server, options: argparse.Namespace) -> None:
    print(f"{'milliseconds':42}  live p99      max small p99      max  gRPC p99      max  MiB at   and more   answers")
    print(f"{'none':40} 0 {measure(server, (), options.seconds)}")
    for name, (port, flood) in FLOODS.items():
        if options.only in name:
            attackers = [Flooding(("127.0.0.1", getattr(server, port)), flood)]
            print(f"{name:40} 1 {measure(server, attackers, options.seconds)}", flush=True)
    for name, make in (BOMBS | REQUESTS).items():
        if options.only not in name:
            continue
        hostile = make()
        for together in (_TOGETHER,) if name in BOMBS else options.together:
            posts = [Asking(("127.0.0.1", server.http), *hostile) for _ in range(together)]
            print(f"{name:40} {together} {measure(server, posts, options.seconds)}", flush=True)


if __name__ == "__main__":
    main()
