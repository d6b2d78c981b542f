"""The load generators of bench_table.py, and what others on the machine took meanwhile."""

import csv
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loads import SIXTEEN, http_rate, payload
from measures import Others, Sample
from servers import Missing, Server

WINDOWS = 3
"""perf_analyzer takes the mean of so many."""


@dataclass(frozen=True, slots=True)
class Case:
    """One way of asking: "json" or "binary" by wrk, "grpc" or "stream" by perf_analyzer."""

    form: str
    connections: int


def take(case: Case, server: Server, servers: Sequence[Server], seconds: int, analyzer: Path | None) -> Sample:
    """Measure once."""
    with Others(servers) as others:
        if case.form in ("json", "binary"):
            item = payload("identity", case.form, {"INPUT0": SIXTEEN})
            rate = http_rate(item, server.http, case.connections, seconds)
        else:
            assert analyzer is not None
            rate = analyzed(analyzer, case, server.grpc, seconds)
    return Sample(rate, others.cores)


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
