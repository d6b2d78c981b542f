"""Models of scikit-learn, XGBoost and LightGBM: this server after ``convert``, MLServer's runtimes, and the library.

    make bench-tables                                       # installs the environments, then measures
    python benchmarks/tables.py --quick                     # one short round
    python benchmarks/tables.py --rows 1 1000 --rounds 5 --seconds 2

A forest and boosted trees, 100 trees of 20 features each, are regressions: MLServer answers those alone with the same
numbers. Both servers are asked over HTTP by one connection of wrk, the library in its own process; all take turns. The
medians of the milliseconds of a request count, and those of the rounds' ratios. JSON is the only form that MLServer
takes, so it is compared; the binary form of ours stands beside. Before, each answer is held against the library's.

Loads are timed at the client: the first, which converts, in a server whose cache is empty, and then from the cache.
MLServer loads the library's file each time. What is not installed is named; the exit status is then 1.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from itertools import product
from pathlib import Path
from subprocess import Popen
from typing import Any

import numpy as np
from loads import Payload, http_rate, payload
from measures import in_turns, machine, medians, options_of, ratio, seconds, table
from servers import HERE, Missing, Server, end_with_servers, mlserver, piped, repoagent, report_missing
from table_library import FILES, rows_of

AGENT = 'model_repository_agents { agents { name: "convert" } }'
RUNTIMES = {
    "forest": "mlserver_sklearn.SKLearnModel",
    "xgboost": "mlserver_xgboost.XGBoostModel",
    "lightgbm": "mlserver_lightgbm.LightGBMModel",
}
EXPLICIT = "--model-control-mode=explicit"


def main() -> int:
    environments = Path(".venvs").absolute()
    options = options_of(
        __doc__,
        rows=([1, 1000], "of a request"),
        rounds=5,
        seconds=(2.0, "of one measurement"),
        quick=(False, "one round of a second"),
        mlserver=(environments / "mlserver-tables", "where MLServer and its runtimes are installed"),
        sklearn=(environments / "sklearn", "where scikit-learn and skl2onnx are installed"),
    )
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    end_with_servers()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            measure(Path(scratch), options)
        except Missing as error:
            return report_missing({"MLServer, or scikit-learn": str(error)})
    return 0


def measure(folder: Path, options: Any) -> None:
    """Train the models, and print the two tables."""
    for environment in (options.mlserver, options.sklearn):
        if not (environment / "bin/python").exists():
            raise Missing(f"{environment} is not there; `make bench-tables` installs it")
    flags = [EXPLICIT, "--allow-code-conversion", f"--converter-environment=sklearn={options.sklearn.absolute()}"]
    python = [str(options.mlserver.absolute() / "bin/python"), "-W", "ignore", str(HERE / "table_library.py")]
    with piped([*python, str(folder / "models")]) as (process, _):
        for name in FILES:
            (folder / "models" / name / "config.pbtxt").write_text(AGENT)
        settings = {name: runtime(folder, name) for name in FILES}
        with mlserver("MLServer", folder, options.mlserver.absolute(), settings) as peer:
            loads = [load_seconds(folder, number, flags, peer) for number in range(options.rounds)]
            with repoagent("ours", folder, [*flags, f"--cache-directory={folder / 'cache-0'}"]) as ours:
                for name in FILES:
                    post(ours, f"/v2/repository/models/{name}/load")
                library = partial(asked, process)
                rows = [
                    compared(name, count, (ours, peer), library, options)
                    for name, count in product(FILES, options.rows)
                ]
                versions = ours.version, peer.version
    print(f"milliseconds of a request, {machine()}; {', '.join(versions)}")
    head = ("model", "rows", "library", "ours", "MLServer", "ours, binary", "MLServer / ours", "ours / library")
    print(table(head, rows))
    print("seconds of a load")
    print(table(("model", "ours, first", "ours, from the cache", "MLServer"), load_rows(loads)))
    sizes = {"MLServer": options.mlserver, "converter of scikit-learn": options.sklearn}
    print("environments: " + ", ".join(f"{name} {megabytes(path):,} MB" for name, path in sizes.items()))


def runtime(folder: Path, name: str) -> dict[str, Any]:
    """The settings of a model of MLServer's."""
    uri = str(folder / "models" / name / "1" / FILES[name])
    return {"implementation": RUNTIMES[name], "parameters": {"uri": uri}}


def compared(
    name: str, count: int, servers: tuple[Server, Server], library: Callable[[str, int, float], Any], options: Any
) -> list[object]:
    """A line of the table, once all answer the same."""
    arrays, (ours, peer) = {"input": rows_of(count)}, servers
    json_form, binary = (payload(name, form, arrays) for form in ("json", "binary"))
    wanted = np.array(library(name, count, 0)["answer"]).ravel()
    for server in servers:
        found = post(server, json_form.path, json_form)["outputs"][0]["data"]
        if not np.allclose(np.array(found).ravel(), wanted, rtol=1e-4, atol=1e-4):
            raise SystemExit(f"{server.name} answers differently from the library of '{name}'")
    takes = {
        "library": lambda: 1e3 / library(name, count, options.seconds)["rate"],
        "ours": lambda: 1e3 / http_rate(json_form, ours.http, 1, options.seconds),
        "MLServer": lambda: 1e3 / http_rate(json_form, peer.http, 1, options.seconds),
        "binary": lambda: 1e3 / http_rate(binary, ours.http, 1, options.seconds),
    }
    taken = in_turns(takes, options.rounds)
    ratios = (ratio(taken, "MLServer", "ours"), ratio(taken, "ours", "library"))
    return [name, count, *(f"{one:.3f}" for one in medians(taken).values()), *(f"{one:.2f}" for one in ratios)]


def asked(process: "Popen[str]", name: str, count: int, duration: float) -> Any:
    """What the process of the library answers to an order."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{name} {count} {duration}\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def load_seconds(folder: Path, number: int, flags: list[str], peer: Server) -> dict[tuple[str, str], float]:
    """The seconds of each load, by model and kind; the cache of this number is empty before."""
    found = {}
    with repoagent(f"loads-{number}", folder, [*flags, f"--cache-directory={folder / f'cache-{number}'}"]) as ours:
        for kind, server, name in (*product(["first", "cached"], [ours], FILES), *product(["peer"], [peer], FILES)):
            place = f"/v2/repository/models/{name}"
            if server is peer:
                post(server, f"{place}/unload")
            found[name, kind] = seconds(partial(post, server, f"{place}/load"))
            if server is ours:
                post(server, f"{place}/unload")
    return found


def load_rows(loads: list[dict[tuple[str, str], float]]) -> list[list[str]]:
    """A line for each model: the medians of all rounds."""
    found = medians({key: [one[key] for one in loads] for key in loads[0]})
    return [[name, *(f"{found[name, kind]:.3f}" for kind in ("first", "cached", "peer"))] for name in FILES]


def post(server: Server, path: str, item: Payload | None = None) -> Any:
    """The JSON that a server answers, if it has any."""
    connection = HTTPConnection("127.0.0.1", server.http, timeout=300)
    try:
        connection.request("POST", path, item.body if item else b"", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{server.name}, {path}: {answer.status} {content[:2000]!r}")
        return json.loads(content or b"null")
    finally:
        connection.close()


def megabytes(environment: Path) -> int:
    """What is installed, without what links lead to."""
    return sum(path.lstat().st_size for path in environment.rglob("*") if path.is_file()) // 1_000_000


if __name__ == "__main__":
    sys.exit(main())
