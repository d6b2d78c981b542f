"""Requests per second of this server with different settings, loaded in turns in one run.

    python benchmarks/server_variants.py --compare processes       # one process and N, by default one for each core
    python benchmarks/server_variants.py --compare fast-paths      # of a Python model in a process of its own
    python benchmarks/server_variants.py --compare request-log     # with and without --request-log
    python benchmarks/server_variants.py --compare processes --processes 4 --connections 1 8 32 --seconds 5

- **processes**: the model is ONNX and small, so that parsing and encoding cost most. With a home it is in one process:
  the share of requests that reach another one cross a socket more.
- **fast-paths**: a Python identity model (FP32, 16 values) in process; in a process; in one that gets each request by
  itself (``requests-ahead=1``); in one whose answers a thread takes, not the front end's event loop; and in one that
  spins before it sleeps. The exit status is 1 if one of the first two does not pay.
- **request-log**: the same model. Printed too is how many requests got no line.

Medians of the rates and of the rounds' ratios count. The generators run on the same cores as the servers. Start is from
the command to the ready file; memory is the proportional set size of all processes of a server after the load.
"""

import os
import re
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Final

from loads import SIXTEEN, Arrays, rate
from measures import in_turns, medians, options_of, ratio, table
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
QUIET: Final = "--log-info=false"


@dataclass(frozen=True, slots=True)
class Variant:
    """A server, or another model of one; ``{folder}`` in ``flags`` is the folder of the run."""

    flags: Sequence[str] = ()
    program: str = MAIN
    model: str = "identity"
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
    rows, good = [], True
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
                name: partial(
                    rate,
                    form,
                    comparison.variants[name].model,
                    arrays,
                    ("127.0.0.1", server.grpc if form == "grpc" else server.http),
                    count,
                    options.seconds,
                )
                for name, server in servers.items()
            }
            rates = in_turns(takes, options.rounds, warm=1)
            shares = [ratio(rates, each.name, each.other) for each in comparison.ratios]
            pairs = zip(comparison.ratios, shares, strict=True)
            good &= all(share > 1 for each, share in pairs if 0 < each.pays_from <= count)
            rows.append(
                [form, count, *(f"{value:,.0f}" for value in medians(rates).values()), *(f"{it:.2f}" for it in shares)]
            )
        heads = [f"{each.name} / {each.other}" for each in comparison.ratios]
        print(table(("form", "connections", *servers, *heads), rows))
        for name in starts:
            used = f"memory {memory(servers[name]):.0f} MiB{log(servers[name], folder)}"
            print(f"{name}: start {starts[name]:.1f} s, {used}")
    return good


def processes(options: Namespace) -> Comparison:
    many = f"{options.processes} processes"

    def write(models: Path) -> Arrays:
        arrays = write_models(models)["relu_16"]
        content = (models / "relu_16" / "1" / "model.onnx").read_bytes()
        write_onnx(models, "relu_16_home", content, f"{CONFIG} {HOME}")
        return arrays

    variants = {
        "1 process": Variant(model="relu_16"),
        many: Variant([f"--processes={options.processes}"], model="relu_16"),
        "with a home": Variant(model="relu_16_home", server=many),
    }
    return Comparison(variants, [Ratio(many, "1 process"), Ratio("with a home", many)], write)


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


COMPARISONS: Final[Mapping[str, Callable[[Namespace], Comparison]]] = {
    "processes": processes,
    "fast-paths": fast_paths,
    "request-log": request_log,
}


def write_identity(models: Path) -> Arrays:
    write_model(models)
    return {"INPUT0": SIXTEEN}


def memory(server: Server) -> float:
    """Proportional set size of a server and the processes below it, in MiB."""
    total, waiting = 0, [server.session]
    while waiting:
        pid = waiting.pop()
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
        for thread in Path(f"/proc/{pid}/task").iterdir():
            waiting += map(int, (thread / "children").read_text().split())
    return total / 1024


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
