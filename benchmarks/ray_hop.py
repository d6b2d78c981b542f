"""Requests per second of one process, of the same model behind Ray Serve, and of the least that Ray Serve can do.

    python benchmarks/ray_hop.py                          # `make ray` installs what it needs, and runs it
    python benchmarks/ray_hop.py --rounds 5 --seconds 4 --connections 1 8

The model is a Python model that returns its 16 numbers. One `repoagent serve` has it, and an application of
``deploy/ray`` with one replica on a local cluster, where a request passes HAProxy, the ingress and the replica: three
processes. On the same cluster runs ray_echo.py, whose ingress and replica do nothing but pass the same bytes on. All
are loaded in turns, by the same generators, on the same cores. Each cell is the median of its rounds; the time of a
request is that on one connection.

It also prints the time of a core that each process takes for a request, what the processes of the cluster take in
memory, shared pages divided among those that share them, and the seconds in which the application starts.
"""

import os
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loads import SIXTEEN, grpc_rate, http_rate, message, payload
from measures import markdown, options_of
from servers import free_ports, repoagent, write_model

ONE, BARE, OURS = "one process", "bare Serve", "Ray Serve"
SERVERS = (ONE, BARE, OURS)
ARRAYS = {"INPUT0": SIXTEEN}
MEMORY = 120 << 20
LONGEST = 40
"""Characters of a directory below which the sockets of Ray have names that the system takes."""

Load = Callable[[int, int], float]
"""Requests per second, by connections and seconds."""
Costs = dict[tuple[str, str], Counter[str]]
"""By server and protocol, the milliseconds of a core that each process takes for a request."""


@dataclass(frozen=True)
class Cluster:
    """Ray's ports, and the seconds in which the application was ready."""

    http: int
    grpc: int
    seconds: float


def main() -> int:
    options = options_of(__doc__, rounds=5, seconds=(3, "of each measurement"), connections=[1, 8])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_model(folder / "models")
        with repoagent(ONE, folder) as alone, on_ray(folder) as ray:
            loads = {
                "http": {ONE: http(alone.http), BARE: http(ray.http, "/bare"), OURS: http(ray.http)},
                "grpc": {ONE: grpc(alone.grpc), BARE: grpc(ray.grpc, "bare"), OURS: grpc(ray.grpc, "models")},
            }
            rates, costs = measured(loads, options.connections, options.rounds, options.seconds, alone.session)
            held = memory(alone.session)
    show(rates)
    show_costs(costs)
    show_memory(held)
    print(f"\nthe application started in {ray.seconds:.1f} s; the load of the machine was {os.getloadavg()[2]:.1f}")
    return 0


def http(port: int, path: str = "") -> Load:
    item = payload("identity", "binary", ARRAYS)
    asked = replace(item, at=path) if path else item
    return lambda count, seconds: http_rate(asked, port, count, seconds)


def grpc(port: int, application: str = "") -> Load:
    body = message("identity", ARRAYS)
    metadata = [f"application={application}"] if application else []
    return lambda count, seconds: grpc_rate(body, port, count, seconds, metadata=metadata)


@contextmanager
def on_ray(folder: Path) -> Iterator[Cluster]:
    """A cluster with both applications, of one replica each."""
    from repoagent_ray.environment import CLUSTER

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ |= {**CLUSTER, "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "0"}
    import ray
    from ray import serve
    from ray_echo import echo
    from repoagent_ray import Settings, application
    from repoagent_ray.servicer import FUNCTIONS

    http, grpc = free_ports(2)
    place = tempfile.gettempdir() if len(tempfile.gettempdir()) < LONGEST else "/tmp"
    scratch = tempfile.mkdtemp(prefix="ray", dir=place)
    os.environ["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
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
        seconds = time.perf_counter() - begun
        serve.run(echo(), name="bare", route_prefix="/bare")
        yield Cluster(http, grpc, seconds)
    finally:
        if ray.is_initialized():
            serve.shutdown()
            ray.shutdown()
        shutil.rmtree(scratch, ignore_errors=True)


def measured(
    loads: dict[str, dict[str, Load]], connections: list[int], rounds: int, seconds: int, alone: int
) -> tuple[dict[tuple[str, int], dict[str, list[float]]], Costs]:
    """By protocol and connections, the rates of each server, taken in turns; and what the last connections cost."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    costs: Costs = {}
    for protocol, servers in loads.items():
        for load in servers.values():
            load(1, 1)  # what happens once has happened then
        for count in connections:
            found[protocol, count] = {name: [] for name in servers}
            for _ in range(rounds):
                for name, load in servers.items():
                    before = spent(alone)
                    rate = load(count, seconds)
                    found[protocol, count][name].append(rate)
                    costs[name, protocol] = per_request(before, spent(alone), rate * seconds)
    return found, costs


def spent(alone: int) -> dict[int, tuple[str, float]]:
    """What each process is, and the seconds of a core that it has had."""
    found = {}
    for pid in family(alone):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            title = ONE if pid == alone else role(pid)
            found[pid] = title, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


def per_request(
    before: dict[int, tuple[str, float]], after: dict[int, tuple[str, float]], requests: float
) -> Counter[str]:
    found: Counter[str] = Counter()
    for pid, (title, seconds) in after.items():
        found[title] += 1000 * (seconds - before.get(pid, ("", 0.0))[1]) / requests  # type: ignore[assignment]
    return found


def role(pid: int) -> str:
    """What a process is to a request."""
    name = title(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split() or [""])
    for end, what in {":Ingress": "ingress", ":Front": "ingress", ":Models": "replica", ":Echo": "replica"}.items():
        if end in name:
            return what
    return "HAProxy" if "haproxy" in name.lower() else "the rest of Ray"


def memory(alone: int) -> dict[str, float]:
    """MiB of each process of the cluster, and of the one process, by what it is."""
    found = {ONE: held_mib(alone)}
    for pid in family(alone) - {alone}:
        words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").split()
        if words and ":bare:" not in words[0]:
            found[title(words)] = held_mib(pid)
    return found


def family(alone: int) -> set[int]:
    """The processes of the cluster, and the one process. HAProxy is started so that it outlives what started it."""
    found = {alone}
    session = {os.getpid()}
    parents = {}
    for path in stats():
        with suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in session and pid not in session | {alone}}
        session |= more
        grown = bool(more)
    return found | session - {os.getpid()}


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
    rows = []
    for (protocol, count), found in rates.items():
        alone, bare, ours = (statistics.median(found[name]) for name in SERVERS)
        ratios = [f"{ours / bare:.2f}", f"{ours / alone:.3f}"]
        times = [f"{1000 / rate:.2f}" if count == 1 else "" for rate in (alone, bare, ours)]
        rows.append([protocol, count, f"{alone:,.0f}", f"{bare:,.0f}", f"{ours:,.0f}", *ratios, *times])
    columns = ["", "connections", "one process, 1/s", "bare Serve", "Ray Serve", "of bare", "of one process"]
    print(markdown([*columns, "ms of a request, one process", "bare Serve", "Ray Serve"], rows))


def show_costs(costs: Costs) -> None:
    roles = dict.fromkeys(title for cost in costs.values() for title in cost)
    rows = [[title, *(f"{cost[title]:.2f}" for cost in costs.values())] for title in roles]
    print("\n" + markdown(["milliseconds of a core per request", *map(" ".join, costs)], rows))


def show_memory(held: dict[str, float]) -> None:
    rows = [(name, f"{mib:.0f}") for name, mib in sorted(held.items(), key=lambda item: -item[1])]
    print("\n" + markdown(("process", "MiB"), rows))


if __name__ == "__main__":
    sys.exit(main())
