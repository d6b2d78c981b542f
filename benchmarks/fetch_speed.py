"""A download through the cache beside curl with parallel ranges, from a loopback server, in turns in one run.

    python benchmarks/fetch_speed.py
    python benchmarks/fetch_speed.py --sizes 256M --directory /dev/shm

First what the server itself can send: eight connections to a client that throws the bytes away in the kernel. It must
exceed 2 GB/s, or it bounds the others. Then curl with eight ranges to /dev/null; curl that writes them, which nobody
checks; curl and sha256sum after it; and ours, which hashes while the bytes arrive. The last column is our peak memory,
and the exit status is 1 if the server is too slow.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from measures import fill, in_turns, medians, options_of, run, size_of

RANGES = 8
NEEDED = 2.0
"""GB/s of the server."""
DRAIN = """
import socket, sys, threading, time
port, size, ranges = map(int, sys.argv[1:])
step = -(-size // ranges)
def drain(start, end):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /w HTTP/1.1\\r\\nRange: bytes=%d-%d\\r\\n\\r\\n" % (start, end - 1))
        head = b""
        while b"\\r\\n\\r\\n" not in head:
            head += connection.recv(1024)
        left = end - start - len(head.partition(b"\\r\\n\\r\\n")[2])
        buffer = bytearray(1 << 20)
        while left:
            left -= connection.recv_into(buffer, min(left, len(buffer)), socket.MSG_TRUNC)
begin = time.perf_counter()
threads = [threading.Thread(target=drain, args=(n * step, min(size, (n + 1) * step))) for n in range(ranges)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(time.perf_counter() - begin)
"""
OURS = """
import json, sys, time
from pathlib import Path
from repoagent.storage.cache.cache import Cache
from repoagent.storage.transfer.streams import RemoteFile
from repoagent.storage.transfer.streams import web_opener
from repoagent.web import Hosts, WebClient
url, digest, size, cache = sys.argv[1:]
file = RemoteFile("1/w", url, web_opener(WebClient(Hosts(["127.0.0.1"])), url), int(size), digest=digest)
def peak():  # not ru_maxrss: a child begins with that of its parent
    return int(next(line.split()[1] for line in Path("/proc/self/status").open() if line.startswith("VmHWM")))
before = peak()
start = time.perf_counter()
with Cache(Path(cache)) as store, store.scope() as scope:
    scope.get_or_build("m", lambda target: scope.download([file], target) and None)
seconds = time.perf_counter() - start
print(json.dumps([seconds, before, peak()]))
"""


def main() -> int:
    where = ("/dev/shm", "where the file, the copies and the cache are")
    options = options_of(__doc__, sizes="256M,1G,4G", rounds=3, directory=where)
    if shutil.which("curl") is None:
        print("MISSING curl")
        return 1
    print(
        f"{'size':>6} {'server':>9} {'to null':>9} {'curl':>9} {'curl+sum':>9} {'ours':>9} "
        f"{'of curl':>8} {'of both':>8} {'memory':>9}"
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        rates = [measure(size, Path(scratch), options.rounds) for size in options.sizes.split(",")]
    if min(rates) < NEEDED:
        print(f"the server sends {min(rates):.2f} GB/s, which is less than {NEEDED}: run this on a quieter machine")
    return int(min(rates) < NEEDED)


def measure(label: str, scratch: Path, rounds: int) -> float:
    """Print one line; the GB/s of the server."""
    size = size_of(label)
    source = fill(scratch / "source", size, 1) / "part0000"
    digest = f"sha256:{run(['sha256sum', source]).stdout[:64]}"
    url, memory = serve(source, size), [0]

    def summed() -> float:
        paths = sorted(scratch.glob("part*"))
        taken = run(["sha256sum", *paths]).seconds
        for path in paths:
            path.unlink()
        return taken

    def ours() -> float:
        printed = run([sys.executable, "-c", OURS, url, digest, size, scratch / "cache"]).stdout
        spent, before, peak = json.loads(printed)
        memory.append(peak - before)
        run(["chmod", "-R", "u+w", scratch / "cache"])
        shutil.rmtree(scratch / "cache")
        return float(spent)

    ways: dict[str, Callable[[], float]] = {"server": partial(drain, url, size), "null": partial(curl, url, size, None)}
    ways |= {"curl": partial(curl, url, size, scratch), "sum": summed, "ours": ours}
    seconds = in_turns(ways, rounds)
    shutil.rmtree(scratch / "source")
    seconds["both"] = [one + two for one, two in zip(seconds["curl"], seconds["sum"], strict=True)]
    rate = {name: size / value / 1e9 for name, value in medians(seconds).items()}
    cells = "".join(f"{rate[name]:>5.2f}GB/s " for name in ("server", "null", "curl", "both", "ours"))
    ratios = f"{rate['ours'] / rate['curl']:>8.2f} {rate['ours'] / rate['both']:>8.2f}"
    print(f"{label:>6} {cells}{ratios} {max(memory) / 1024:>6.0f}MiB", flush=True)
    return rate["server"]


def drain(url: str, size: int) -> float:
    """Seconds that the server takes to send all ranges to a client that looks at none."""
    port = url.rpartition(":")[2].partition("/")[0]
    return float(run([sys.executable, "-c", DRAIN, port, size, RANGES]).stdout)


def curl(url: str, size: int, scratch: Path | None) -> float:
    """Seconds that curl takes for all ranges."""
    common = ["--silent", "--fail", "--noproxy", "*"]
    command: list[object] = ["curl", "--no-progress-meter", "--parallel", "--parallel-immediate"]
    step = -(-size // RANGES)
    for number in range(RANGES):
        span = f"{number * step}-{min(size, (number + 1) * step) - 1}"
        target = "/dev/null" if scratch is None else scratch / f"part{number}"
        command += [*(["--next"] if number else []), *common, "--range", span, "--output", target, url]
    return run(command).seconds


def serve(source: Path, size: int) -> str:
    """A server of one file with ranges, whose bytes the kernel copies."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def answer(connection: socket.socket) -> None:
        with connection, source.open("rb") as file:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            buffered = b""
            while True:
                while b"\r\n\r\n" not in buffered:
                    received = connection.recv(65536)
                    if not received:
                        return
                    buffered += received
                head, _, buffered = buffered.partition(b"\r\n\r\n")
                line = next(one for one in head.decode().splitlines() if one.lower().startswith("range:"))
                first, _, last = line.partition("=")[2].partition("-")
                start, end = int(first), min(int(last) + 1, size)
                connection.sendall(
                    f'HTTP/1.1 206 Partial Content\r\nETag: "x"\r\nContent-Range: bytes {start}-{end - 1}/{size}\r\n'
                    f"Content-Length: {end - start}\r\n\r\n".encode()
                )
                while start < end:
                    start += os.sendfile(connection.fileno(), file.fileno(), start, end - start)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=guarded, args=(answer, connection), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}/w"


def guarded(answer: object, connection: socket.socket) -> None:
    try:
        answer(connection)  # type: ignore[operator]
    except OSError:
        """The client has gone."""


if __name__ == "__main__":
    sys.exit(main())
