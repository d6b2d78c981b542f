"""Requests per second of one process, and of the same model behind Ray Serve, in turns in one run.

    python benchmarks/ray_hop.py                          # `make ray` installs what it needs, and runs it
    python benchmarks/ray_hop.py --rounds 5 --seconds 4 --connections 1 8

The model is a Python model that returns its 16 numbers. One `repoagent serve` has it, and an application of
``deploy/ray`` with one replica on a local cluster. There a request passes Ray's proxy, the ingress and the replica:
three processes. The same generators load both, on the same cores. Each cell is the median of its rounds; the time of a
request is that on one connection. It also prints what the processes of the cluster take in memory, shared pages divided
among those that share them, and the seconds in which the application starts.
"""

import argparse
import os
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc_infer
import http_infer
import numpy as np
from table_servers import free_ports, repoagent, write_model

ARRAYS = {"INPUT0": (np.arange(16) / 8).astype(np.float32)}
MEMORY = 120 << 20
LONGEST = 40
"""Characters of a directory below which the sockets of Ray have names that the system takes."""

Ports = dict[str, int]
Load = Callable[[int, int], float]
"""Requests per second, by port and connections."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    item = http_infer.payload("identity", "binary", ARRAYS)
    message = grpc_infer.message("identity", ARRAYS)
    loads: dict[str, Load] = {
        "http": lambda port, count: http_infer.load(item, port, count, options.seconds),
        "grpc": lambda port, count: grpc_infer.load(port, message, count, options.seconds),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_model(folder / "models")
        with repoagent("one process", folder) as alone, on_ray(folder) as (ray, seconds):
            servers = {"one process": {"http": alone.http, "grpc": alone.grpc}, "Ray Serve": ray}
            rates = measured(servers, loads, options.connections, options.rounds)
            held = memory(alone.session)
    show(rates)
    show_memory(held)
    print(f"\nthe application started in {seconds:.1f} s; the load of the machine was {os.getloadavg()[2]:.1f}")
    return 0


@contextmanager
def on_ray(folder: Path) -> Iterator[tuple[Ports, float]]:
    """An application with one replica; the ports of Ray's proxies, and the seconds in which it was ready."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray
    from ray import serve
    from repoagent_ray import Settings, application
    from repoagent_ray.servicer import FUNCTIONS

    http, grpc = free_ports(2)
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < LONGEST else "/tmp"
    scratch = tempfile.mkdtemp(prefix="ray", dir=place)
    ray.init(num_cpus=2, object_store_memory=MEMORY, include_dashboard=False, log_to_driver=False, _temp_dir=scratch)
    try:
        serve.start(
            http_options={"host": "127.0.0.1", "port": http},
            grpc_options={"port": grpc, "grpc_servicer_functions": FUNCTIONS},
        )
        options = {"workspace_directory": str(folder / "workspace of Ray")}
        settings = Settings(model_repository=str(folder / "models"), options=options)
        begun = time.perf_counter()
        serve.run(application(settings), name="models", route_prefix="/")
        yield {"http": http, "grpc": grpc}, time.perf_counter() - begun
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)


def measured(
    servers: dict[str, Ports], loads: dict[str, Load], connections: list[int], rounds: int
) -> dict[tuple[str, int], dict[str, list[float]]]:
    """By protocol and connections, the rates of each server, taken in turns."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for protocol, load in loads.items():
        for ports in servers.values():
            load(ports[protocol], 1)  # what happens once has happened then
        for count in connections:
            found[protocol, count] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, ports in servers.items():
                    found[protocol, count][name].append(load(ports[protocol], count))
    return found


def memory(alone: int) -> dict[str, float]:
    """MiB of each process of the cluster, and of the one process, by what it is."""
    parents = {int(path.parent.name): int(path.read_text().rpartition(")")[2].split()[1]) for path in stats()}
    found = {"one process": held_mib(alone)}
    for pid in parents:
        above = pid
        while above not in (0, 1, os.getpid()):
            above = parents.get(above, 0)
        if above == os.getpid() and pid not in (above, alone):
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
            found[title(words)] = held_mib(pid)
    return found


def title(words: list[str]) -> str:
    """What a process of Ray is, by its command."""
    if words[0].startswith("ray::"):
        return words[0].removeprefix("ray::")
    program = Path(words[0]).name
    return next(Path(word).name for word in words if word.endswith(".py")) if "python" in program else program


def stats() -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]


def held_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


def show(rates: dict[tuple[str, int], dict[str, list[float]]]) -> None:
    print("| | connections | one process, 1/s | Ray Serve, 1/s | ratio | ms of a request, one process | Ray Serve |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (protocol, count), found in rates.items():
        alone, ray = (statistics.median(found[name]) for name in ("one process", "Ray Serve"))
        times = f"{1000 / alone:.2f} | {1000 / ray:.2f}" if count == 1 else " | "
        print(f"| {protocol} | {count} | {alone:,.0f} | {ray:,.0f} | **{ray / alone:.3f}** | {times} |")


def show_memory(held: dict[str, float]) -> None:
    print("\n| process | MiB |\n| --- | --- |")
    for name, mib in sorted(held.items(), key=lambda item: -item[1]):
        print(f"| {name} | {mib:.0f} |")


if __name__ == "__main__":
    sys.exit(main())
