"""Requests per second of this server with different settings, loaded in turns in one run.

    python benchmarks/server_variants.py --compare processes       # one process and N, by default one for each core
    python benchmarks/server_variants.py --compare fast-paths      # of a Python model in a process of its own
    python benchmarks/server_variants.py --compare request-log     # with and without --request-log
    python benchmarks/server_variants.py --compare attest-header   # with and without --attest-header
    python benchmarks/server_variants.py --compare processes --processes 4 --connections 1 8 32 --seconds 5

- **processes**: the model is ONNX and small, so that parsing and encoding cost most. With a home it is in one process:
  the share of requests that reach another one cross a socket more. With homes are two such models, one in each of two
  processes, which get half of the connections each. The rates of more cores are a model: each worker has a core, the
  clients are elsewhere, and the cores slow each other down no more than two do.
- **fast-paths**: a Python identity model (FP32, 16 values) in process; in a process; in one that gets each request by
  itself (``requests-ahead=1``); in one whose answers a thread takes, not the front end's event loop; and in one that
  spins before it sleeps. The exit status is 1 if one of the first two does not pay.
- **request-log**: the same model. Printed too is how many requests got no line.
- **attest-header**: the same model, whose answers name the signed receipt of its load, or do not.

Medians of the rates and of the rounds' ratios count. The generators run on the same cores as the servers. Start is from
the command to the ready file; memory is the proportional set size of all processes of a server after the load. Printed
too are microseconds of the server's processor time per request, and the part of the keeper in it.
"""

import os
import re
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from loads import SIXTEEN, Arrays, rate
from measures import columns, in_turns, medians, options_of, ratio, table
from onnx_models import CONFIG, write_models, write_onnx
from servers import MAIN, Server, repoagent, write_model

THREADS: Final = f"""
from repoagent.serving.instances.loop_reader import LoopReader
LoopReader.here = staticmethod(lambda: None)
{MAIN}
"""
"""Has every loop leave the answers of processes to threads."""
HOME: Final = 'parameters { key: "home" value { string_value: "one" } }'
PROCESS: Final = "--backend-config=python,execution=process"
HOMED: Final = ("relu_16_home", "relu_16_at_home")
CORES: Final = (8, 32)
QUIET: Final = "--log-info=false"


@dataclass(frozen=True, slots=True)
class Variant:
    """A server, or another model of one; ``{folder}`` in ``flags`` is the folder of the run."""

    flags: Sequence[str] = ()
    program: str = MAIN
    model: str = "identity"
    """Several, with commas between them, share the connections."""
    server: str = ""
    """The variant whose server it is, if it has none of its own."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Of the rates of two variants; the first must be the higher from ``pays_from`` connections on, 0: never."""

    name: str
    other: str
    pays_from: int = 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """``write`` writes the models and returns their inputs."""

    variants: Mapping[str, Variant]
    ratios: Sequence[Ratio]
    write: Callable[[Path], Arrays]
    forms: Sequence[str] = ("json", "grpc")


def main() -> int:
    options = options_of(
        __doc__,
        compare=(list(COMPARISONS), "only these"),
        seconds=(2, "of one measurement"),
        rounds=5,
        processes=(os.cpu_count() or 1, "that are compared with one"),
        connections=[1, 8, 32],
    )
    print(f"requests per second, {os.cpu_count()} cores shared with the generators, load {os.getloadavg()[0]:.1f}")
    found = [compare(COMPARISONS[name](options), options) for name in options.compare]
    return 0 if all(found) else 1


def compare(comparison: Comparison, options: Namespace) -> bool:
    """Print the table of a comparison; whether all pays that must."""
    rows, costs, good = [], [], True
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        folder = Path(scratch)
        arrays = comparison.write(folder / "models")
        servers: dict[str, Server] = {}
        starts: dict[str, float] = {}
        for name, variant in comparison.variants.items():
            if variant.server:
                servers[name] = servers[variant.server]
                continue
            started = time.monotonic()
            flags = [flag.format(folder=folder) for flag in variant.flags]
            servers[name] = stack.enter_context(repoagent(name, folder, flags, ("-c", variant.program)))
            starts[name] = time.monotonic() - started
        for form, count in product(comparison.forms, options.connections):
            takes = {
                name: partial(take, server, form, comparison.variants[name].model, arrays, count, options.seconds)
                for name, server in servers.items()
            }
            taken = in_turns(takes, options.rounds, warm=1)
            rates = {name: [one.rate for one in several] for name, several in taken.items()}
            shares = [ratio(rates, each.name, each.other) for each in comparison.ratios]
            pairs = zip(comparison.ratios, shares, strict=True)
            good &= all(share > 1 for each, share in pairs if 0 < each.pays_from <= count)
            rows.append(
                [form, count, *(f"{value:,.0f}" for value in medians(rates).values()), *(f"{it:.2f}" for it in shares)]
            )
            costs += [[form, count, name, *cost(several)] for name, several in taken.items()]
        heads = [f"{each.name} / {each.other}" for each in comparison.ratios]
        print(table(("form", "connections", *servers, *heads), rows))
        print(table(("form", "connections", "server", "us", "of the keeper", *(f"{n} cores" for n in CORES)), costs))
        for name in starts:
            used = f"memory {memory(servers[name]):.0f} MiB{log(servers[name], folder)}"
            print(f"{name}: start {starts[name]:.1f} s, {used}")
    return good


class Taken(NamedTuple):
    """Requests per second, and seconds of processor time of a server and of its first process per request."""

    rate: float
    spent: float
    keeper: float


def take(server: Server, form: str, model: str, arrays: Arrays, count: int, seconds: float) -> Taken:
    """Load ``server`` for so long; the models share the connections, as far as there are enough."""
    models = model.split(",")[:count]
    address = "127.0.0.1", server.grpc if form == "grpc" else server.http
    before = spent(server)
    with ThreadPoolExecutor(len(models)) as pool:
        found = sum(pool.map(lambda one: rate(form, one, arrays, address, count // len(models), seconds), models))
    whole, first = (after - earlier for after, earlier in zip(spent(server), before, strict=True))
    return Taken(found, whole / (found * seconds), first / (found * seconds))


def cost(several: Sequence[Taken]) -> list[str]:
    """Microseconds per request, the keeper's, and the rates that so many cores would have, where there are workers."""
    _, each, keeper = columns(several)
    if keeper > each / 2:  # One process has all.
        return [f"{each * 1e6:.0f}", *[""] * (1 + len(CORES))]
    return [f"{each * 1e6:.0f}", f"{keeper * 1e6:.1f}", *(f"{cores / each:,.0f}" for cores in CORES)]


def spent(server: Server) -> tuple[float, float]:
    """Seconds of processor time of all processes of a server, and of its first one."""
    times = []
    for pid in processes_of(server):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        times.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return sum(times), times[0]


def processes(options: Namespace) -> Comparison:
    many = f"{options.processes} processes"

    def write(models: Path) -> Arrays:
        arrays = write_models(models)["relu_16"]
        content = (models / "relu_16" / "1" / "model.onnx").read_bytes()
        for name in HOMED:
            write_onnx(models, name, content, f"{CONFIG} {HOME}")
        return arrays

    variants = {
        "1 process": Variant(model="relu_16"),
        many: Variant([f"--processes={options.processes}"], model="relu_16"),
        "with a home": Variant(model=HOMED[0], server=many),
        "with homes": Variant(model=",".join(HOMED), server=many),
    }
    ratios = [Ratio(many, "1 process"), Ratio("with a home", many), Ratio("with homes", many)]
    return Comparison(variants, ratios, write)


def fast_paths(_: Namespace) -> Comparison:
    variants = {
        "in process": Variant(),
        "process": Variant([PROCESS]),
        "one by one": Variant([PROCESS, "--backend-config=python,requests-ahead=1"]),
        "by threads": Variant([PROCESS], THREADS),
        "spinning": Variant([PROCESS, "--backend-config=python,spin-microseconds=400"]),
    }
    ratios = [Ratio("process", "one by one", pays_from=2), Ratio("process", "by threads", pays_from=1)]
    return Comparison(variants, ratios, write_identity, ["json"])


def request_log(_: Namespace) -> Comparison:
    variants = {"off": Variant([QUIET]), "on": Variant([QUIET, "--request-log={folder}/requests.log"])}
    return Comparison(variants, [Ratio("on", "off")], write_identity)


def attest_header(_: Namespace) -> Comparison:
    def write(models: Path) -> Arrays:
        key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (models.parent / "key.pem").write_bytes(key)
        return write_identity(models)

    signs = [QUIET, "--attest-key=file:{folder}/key.pem"]
    variants = {"off": Variant(signs), "on": Variant([*signs, "--attest-header"])}
    return Comparison(variants, [Ratio("on", "off")], write)


COMPARISONS: Final[Mapping[str, Callable[[Namespace], Comparison]]] = {
    "processes": processes,
    "fast-paths": fast_paths,
    "request-log": request_log,
    "attest-header": attest_header,
}


def write_identity(models: Path) -> Arrays:
    write_model(models)
    return {"INPUT0": SIXTEEN}


def processes_of(server: Server) -> list[int]:
    """All of them, the first one first."""
    found = [server.session]
    for pid in found:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def memory(server: Server) -> float:
    """Proportional set size of a server and the processes below it, in MiB."""
    texts = (Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in processes_of(server))
    return sum(int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("Pss:")) / 1024


def log(server: Server, folder: Path) -> str:
    """What its request log has, and how many requests have no line; empty if it has none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics}/metrics") as page:
        dropped = re.search(r"repoagent_request_log_dropped_total (\d+)", page.read().decode())
    if dropped is None:
        return ""
    time.sleep(1)
    content = (folder / "requests.log").read_bytes()
    return f", lines {len(content.splitlines()):,}, dropped {int(dropped[1]):,}, {len(content):,} bytes"


if __name__ == "__main__":
    sys.exit(main())
