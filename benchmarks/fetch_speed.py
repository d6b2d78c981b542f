"""A download through the cache beside curl with parallel ranges, from a loopback server, in turns in one run.

    python benchmarks/fetch_speed.py
    python benchmarks/fetch_speed.py --sizes 256M --directory /dev/shm

First what the server itself can send: eight connections to a client that throws the bytes away in the kernel. It must
exceed 2 GB/s, or it bounds the others. Then curl with eight ranges to /dev/null; curl that writes them, which nobody
checks; curl and sha256sum after it; and ours, which hashes while the bytes arrive. The last column is our peak memory,
and the exit status is 1 if the server is too slow.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

RANGES = 8
NEEDED = 2.0
"""GB/s of the server."""
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
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
from repoagent.storage.transfer.remote_files import RemoteFile
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="256M,1G,4G")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", default="/dev/shm", help="where the file, the copies and the cache are")
    options = parser.parse_args()
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
    size = int(label[:-1]) * UNITS[label[-1]]
    source = scratch / "source"
    make(source, size)
    digest = "sha256:" + subprocess.run(["sha256sum", source], capture_output=True, check=True, text=True).stdout[:64]
    url = serve(source, size)
    seconds: dict[str, list[float]] = {"server": [], "null": [], "curl": [], "both": [], "ours": []}
    memory = 0
    for _ in range(rounds):
        seconds["server"].append(drain(url, size))
        seconds["null"].append(curl(url, size, None))
        spent = curl(url, size, scratch)
        start = time.perf_counter()
        subprocess.run(["sha256sum", *sorted(scratch.glob("part*"))], stdout=subprocess.DEVNULL, check=True)
        seconds["curl"].append(spent)
        seconds["both"].append(spent + time.perf_counter() - start)
        for part in scratch.glob("part*"):
            part.unlink()
        command = [sys.executable, "-c", OURS, url, digest, str(size), str(scratch / "cache")]
        environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
        done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
        spent, before, peak = json.loads(done.stdout)
        seconds["ours"].append(spent)
        memory = max(memory, peak - before)
        subprocess.run(["chmod", "-R", "u+w", scratch / "cache"], check=True)
        shutil.rmtree(scratch / "cache")
    rate = {name: size / statistics.median(values) / 1e9 for name, values in seconds.items()}
    server, null, alone, both, ours = (rate[name] for name in ("server", "null", "curl", "both", "ours"))
    print(
        f"{label:>6} {server:>5.2f}GB/s {null:>5.2f}GB/s {alone:>5.2f}GB/s {both:>5.2f}GB/s {ours:>5.2f}GB/s "
        f"{ours / alone:>8.2f} {ours / both:>8.2f} {memory / 1024:>6.0f}MiB",
        flush=True,
    )
    return server


def drain(url: str, size: int) -> float:
    """Seconds that the server takes to send all ranges to a client that looks at none."""
    port = url.rpartition(":")[2].partition("/")[0]
    command = [sys.executable, "-c", DRAIN, port, str(size), str(RANGES)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def make(path: Path, size: int) -> None:
    block = os.urandom(16 << 20)
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            file.write(block[: size - start])


def curl(url: str, size: int, scratch: Path | None) -> float:
    """Seconds that curl takes for all ranges."""
    command = [
        "curl",
        "--silent",
        "--no-progress-meter",
        "--fail",
        "--noproxy",
        "*",
        "--parallel",
        "--parallel-immediate",
    ]
    step = -(-size // RANGES)
    for number in range(RANGES):
        target = "/dev/null" if scratch is None else str(scratch / f"part{number}")
        span = f"{number * step}-{min(size, (number + 1) * step) - 1}"
        command += [*(["--next", "--silent", "--fail", "--noproxy", "*"] if number else []), "--range", span]
        command += ["--output", target, url]
    start = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


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
