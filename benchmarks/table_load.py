"""The load generators of bench_table.py, and what others on the machine took meanwhile."""

import csv
import os
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import http_infer
import numpy as np
from table_rounds import Sample
from table_servers import Missing, Server

__all__ = ["Case", "busy_seconds", "own_seconds", "perf_analyzer", "session_seconds", "take"]

WINDOWS = 3
"""perf_analyzer takes the mean of so many."""
_ARRAYS = {"INPUT0": (np.arange(16) / 8).astype(np.float32)}


@dataclass(frozen=True, slots=True)
class Case:
    """One way of asking: "json" or "binary" by wrk, "grpc" or "stream" by perf_analyzer."""

    form: str
    connections: int


def take(case: Case, server: Server, servers: Sequence[Server], seconds: int, analyzer: Path | None) -> Sample:
    """Measure once."""
    begun, busy, own = time.perf_counter(), busy_seconds(), own_seconds(servers)
    if case.form in ("json", "binary"):
        rate = http_infer.load(
            http_infer.payload("identity", case.form, _ARRAYS), server.http, case.connections, seconds
        )
    else:
        assert analyzer is not None
        rate = analyzed(analyzer, case, server.grpc, seconds)
    took = time.perf_counter() - begun
    others = (busy_seconds() - busy - (own_seconds(servers) - own)) / took
    return Sample(rate, max(0.0, others))


def analyzed(analyzer: Path, case: Case, port: int, seconds: int) -> float:
    """The rate that perf_analyzer reports."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.csv")
        command = [str(analyzer), "-m", "identity", "-u", f"127.0.0.1:{port}", "-i", "grpc", "-b", "1"]
        command += ["--async", "--streaming"] if case.form == "stream" else ["--sync"]
        command += ["--concurrency-range", str(case.connections), "-p", str(seconds * 1000 // WINDOWS)]
        # It never repeats a window because the last ones differed.
        command += ["-s", "999", "-r", str(WINDOWS), "-f", str(report)]
        libraries = str(analyzer.parent / "libraries")
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LD_LIBRARY_PATH": libraries})
        if done.returncode or not report.exists():
            raise SystemExit(f"perf_analyzer: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        with report.open(newline="") as lines:
            return float(next(csv.DictReader(lines))["Inferences/Second"])


def perf_analyzer(environment: Path, wheels: Path) -> Path:
    """The program in the wheel of tritonclient that lies in ``wheels``, with the libraries that it wants beside it.

    Raises:
        Missing: there is no such wheel, or no Triton that brings the libraries.
    """
    found = sorted(wheels.glob("tritonclient-*manylinux*.whl"))
    bundled = next(iter(environment.glob("lib/python3*/site-packages/nvidia_pytriton.libs")), None)
    if not found or bundled is None:
        raise Missing("tritonclient's wheel with perf_analyzer is not there; `make bench-table` downloads it")
    home = wheels / "unpacked"
    if not home.exists():
        shutil.unpack_archive(found[-1], home, "zip")
    program = next(home.glob("*/data/bin/perf_analyzer"))
    program.chmod(0o755)
    libraries = program.parent / "libraries"
    libraries.mkdir(exist_ok=True)
    for name in ("libb64.so.0d", "libcudart.so.12"):
        (source,) = sorted(bundled.glob(f"{name.split('.')[0]}*"))[:1]
        if not (libraries / name).exists():
            (libraries / name).symlink_to(source.resolve())
    return program


def busy_seconds() -> float:
    """CPU seconds that all processes of the machine have used."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds(servers: Sequence[Server]) -> float:
    """Those of this program, of the generators that have ended, and of the servers with their processes."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    return own + sum(session_seconds(server) for server in servers)


def session_seconds(server: Server) -> float:
    """Those of a server and its processes."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # It has just ended.
            continue
        if int(fields[3]) == server.session:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
