"""h2spec, the conformance test of HTTP/2, against our gRPC port.

    python benchmarks/h2spec.py --h2spec /path/to/h2spec

It runs with its strict tests, plain and with TLS, against `repoagent serve` as it is, and as it is with pages
(``install_pages``). With pages every test must pass. Without them those fail that need an answer with a body, or one
that comes after the whole request: ``NEED_PAGES``. Meanwhile a client of grpcio calls a model on the same port. Each of
its calls must be answered, and the server must log nothing and have no descriptor more at the end. A fault, or h2spec
MISSING, makes the exit status 1.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
from loads import METHOD, message, numbers
from onnx_models import write_wide_models
from repoagent_server.grpc import frontend
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.dispatcher import Dispatcher, Route
from repoagent_server.grpc.http2.head import RequestHead, Stream
from servers import HERE, MAIN, repoagent

NEED_PAGES: Final = frozenset(
    {
        "generic/2/2", "generic/2/3", "http2/5.1.2/1", "http2/6.9.1/3",
        "http2/8.1/1", "http2/8.1.2.1/3", "http2/8.1.2.6/1", "http2/8.1.2.6/2",
    }
)  # fmt: skip
"""Tests by group, section and number. h2spec itself skips four more without a body."""
GROUPS: Final = {"Generic": "generic", "Hypertext": "http2", "HPACK:": "hpack"}
SECTION: Final = re.compile(r"([0-9.]+)\. ")
FAILED: Final = re.compile(r"\u00d7 ([0-9]+): (.*)")
SUMMARY: Final = re.compile(r"[0-9]+ tests, ([0-9]+) passed, ([0-9]+) skipped, [0-9]+ failed")
H2SPEC_SECONDS: Final = 300
SETTLE_SECONDS: Final = 20.0


@dataclass
class Result:
    """What h2spec printed."""

    summary: str = ""
    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """The names of failed tests by group, section and number."""


def read(text: str) -> Result:
    """Understand the output of h2spec."""
    result, group, section = Result(), "", ""
    for line in text.splitlines():
        words = line.strip()
        if line.startswith(tuple(GROUPS)):
            group = GROUPS[words.split()[0]]
        elif found := SECTION.match(words):
            section = found[1]
        elif found := FAILED.match(words):
            result.failed[f"{group}/{section}/{found[1]}"] = found[2]
        elif found := SUMMARY.fullmatch(words):
            result.summary, result.passed, result.skipped = words, int(found[1]), int(found[2])
    return result


def faults(result: Result, pages: bool) -> list[str]:
    """What must not be."""
    if not result.passed:
        return ["h2spec printed no result"]
    found = [f"{key} failed: {name}" for key, name in result.failed.items() if pages or key not in NEED_PAGES]
    if pages and result.skipped:
        found.append(f"{result.skipped} tests were skipped")
    return found


# A gRPC port that also has pages, as h2spec asks for them: `repoagent serve` is started with this.

PAGE: Final = b"a page"
_ROUTE: Final = Route("page")


class DispatcherWithPages(Dispatcher):
    """Serves a page to what is not gRPC, whatever its path."""

    def route(self, head: RequestHead) -> None:
        super().route(head)
        if head.route.http_status:
            head.route = _ROUTE

    def opened(self, connection: Connection, stream: Stream) -> None:
        if stream.head.route is not _ROUTE:
            super().opened(connection, stream)

    def data(self, connection: Connection, stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        if stream.head.route is not _ROUTE:
            super().data(connection, stream, data, start, stop, ended)
        elif not ended:
            connection.credit(stream)
        elif connection.sender.send(stream, [PAGE]):
            connection.sender.finish(stream)


def install_pages() -> None:
    """Have every transport of this process answer what is not gRPC with a body once the request has ended.

    Our own port refuses it at once and without a body, so a test that needs an answer which waits, for a window or for
    the rest of a request, would find none.
    """
    frontend.Dispatcher = DispatcherWithPages  # type: ignore[attr-defined]


# The server, and a client beside h2spec.


@dataclass(frozen=True, slots=True)
class Serving:
    """A `repoagent serve`."""

    pid: int
    port: int
    log: Path

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


@contextmanager
def served(folder: Path, pages: bool, tls: bool) -> Iterator[Serving]:
    """A server of its own, with the models in ``folder``."""
    program = MAIN
    if pages:
        program = f"import sys; sys.path.insert(0, {str(HERE)!r}); import h2spec; h2spec.install_pages()\n{MAIN}"
    certificate = [f"--grpc-server-cert={folder / 'tls.crt'}", f"--grpc-server-key={folder / 'tls.key'}"]
    flags = ["--grpc-use-ssl", *certificate] if tls else []
    name = f"h2spec-{pages}-{tls}"
    with repoagent(name, folder, flags, ("-c", program)) as server:
        yield Serving(server.session, server.grpc, folder / f"{name}.log")


class Caller(threading.Thread):
    """Calls a model again and again, on a connection that stays."""

    def __init__(self, channel: Any) -> None:
        super().__init__(daemon=True)
        self._call = channel.unary_unary(METHOD)
        self._over = threading.Event()
        self.calls = 0
        self.errors: list[str] = []

    def run(self) -> None:
        payload = message("add", numbers(16))
        while not self._over.is_set():
            self.calls += 1
            try:
                self._call(payload, timeout=60, wait_for_ready=True)
            except grpc.RpcError as error:
                self.errors.append(f"a client's call ended with {error.code()}: {error.details()}")

    def end(self) -> list[str]:
        """Stop; what went wrong."""
        self._over.set()
        self.join()
        return self.errors[:3] or ([] if self.calls else ["the client made no call"])


def connected(port: int, certificate: Path | None) -> Any:
    options = [("grpc.use_local_subchannel_pool", 1)]
    if certificate is None:
        return grpc.insecure_channel(f"127.0.0.1:{port}", options)
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    return grpc.secure_channel(f"localhost:{port}", credentials, options)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def run(h2spec: str, folder: Path, pages: bool, tls: bool) -> list[str]:
    """h2spec once, with a client beside it; prints its summary and returns the faults."""
    certificate = folder / "tls.crt" if tls else None
    with served(folder, pages, tls) as server:
        with connected(server.port, certificate) as channel:
            channel.unary_unary(METHOD)(message("add", numbers(16)), timeout=60, wait_for_ready=True)
            before, logged = server.descriptors, server.log.stat().st_size
            caller = Caller(channel)
            caller.start()
            command = [h2spec, "--strict", "--host=127.0.0.1", f"--port={server.port}", *(("-t", "-k") if tls else ())]
            output = subprocess.run(command, capture_output=True, text=True, timeout=H2SPEC_SECONDS, check=False).stdout
            wrong = caller.end()
            if not until(lambda: server.descriptors <= before, SETTLE_SECONDS):
                wrong.append(f"the server has {server.descriptors - before} descriptors more than before")
        said = server.log.read_bytes()[logged:].decode(errors="replace")
        if said:
            wrong.append(f"the server logged {said[:200]!r}")
    result = read(output)
    name = f"{'with pages' if pages else 'as served'}, {'TLS' if tls else 'plain'}"
    print(f"{name:<18} {result.summary}; the client made {caller.calls} calls", flush=True)
    return faults(result, pages) + wrong


def make_certificate(folder: Path) -> None:
    command = "openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -subj /CN=localhost"
    files = ["-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt")]
    subprocess.run([*command.split(), "-addext", "subjectAltName=DNS:localhost", *files], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--h2spec", default="h2spec", help="the program, if it is not on the path")
    options = parser.parse_args()
    h2spec = shutil.which(options.h2spec)
    if h2spec is None:
        print("MISSING h2spec: build it (github.com/summerwind/h2spec), then make h2spec H2SPEC=/path/to/h2spec")
        return 1
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_wide_models(folder / "models")
        make_certificate(folder)
        for pages in (False, True):
            for tls in (False, True):
                wrong += run(h2spec, folder, pages, tls)
    for fault in wrong:
        print(f"FAULT: {fault}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
