"""What a server does in the life of its models, case by case: of a stock Triton, recorded, and of this server.

    python capi/tests/against_triton/life_cycles.py --triton .venvs/triton

records a stock Triton into life_cycles.json, which tests/docs/test_differences.py compares with this server. A case is
a list of steps; what a client, and the agent of the models, see of each step is one text.
"""

import argparse
import json
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from stock import Stock, Triton, running

RECORDED: Final = Path(__file__).with_name("life_cycles.json")
SETTLE_SECONDS: Final = 60
PYTHON_AGENT: Final = """import os, time
from repoagent.api import Agent

class CallsAgent(Agent):
    api_version = 1

    def model_action(self, model, action):
        with open(os.environ["CALLS"], "a") as calls:
            calls.write(action.name + "\\n")
        if model.parameters.get("sleep") == action.name:
            time.sleep(2)
        if model.parameters.get("fail") == action.name:
            raise ValueError("told to fail")
"""
_MODEL: Final = """import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        INITIALIZE

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        if any(not array.any() for array in given):
            raise ValueError("no zeros")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", FACTOR * array)]) for array in given]
"""
_CONFIG: Final = (
    'backend: "python"\ninput { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] }\n'
    'output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }\ninstance_group { count: COUNT kind: KIND_CPU }\n'
    'model_repository_agents { agents [ { name: "calls" AGENT } ] }\n'
)
_WARMUP: Final = (
    'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" '
    "value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } }\n"
)


def _write(
    path: Path, *, factor: int = 2, count: int = 1, agent: str = "", more: str = "", broken: bool = False
) -> None:
    """A model that multiplies by ``factor``."""
    (path / "1").mkdir(parents=True, exist_ok=True)
    code = _MODEL.replace("INITIALIZE", 'raise RuntimeError("no such luck")' if broken else "pass")
    (path / "1" / "model.py").write_text(code.replace("FACTOR", str(factor)))
    py_compile.compile(str(path / "1" / "model.py"))  # else a stock server's process does it, which counts as a change
    key, _, value = agent.partition(" ")
    entry = f'parameters {{ key: "{key}" value: "{value}" }}' if agent else ""
    (path / "config.pbtxt").write_text(_CONFIG.replace("COUNT", str(count)).replace("AGENT", entry) + more)


class Bench:
    """A server under a case, and what is seen of it."""

    def __init__(self, directory: Path, quiet: float) -> None:
        self._quiet = quiet
        self.directory = directory
        self.models = directory / "models"
        self.models.mkdir()
        self._calls = directory / "calls"
        self._server: Triton | None = None
        self.awaited = ""
        """The calls that are to come, where that is known."""

    @property
    def server(self) -> Triton:
        assert self._server is not None
        return self._server

    def attach(self, server: Triton) -> None:
        """The server that runs."""
        self._server = server

    def write(self, name: str = "m", **how: Any) -> None:
        """Write a model."""
        _write(self.models / name, **how)

    def load(self, name: str = "m", **parameters: Any) -> str:
        """Load it; status, text, and what the agents were called with."""
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in parameters.items()}
        status, text = self.server.load(name, **texts)
        return self._seen(status, text)

    def unload(self, name: str = "m") -> str:
        """The same for an unload."""
        return self._seen(*self.server.call(f"repository/models/{name}/unload"))

    def load_twice_at_once(self) -> str:
        """Two clients."""
        seen: list[str] = []
        threads = [threading.Thread(target=lambda: seen.append(str(self.server.load("m")[0]))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return f"{' '.join(sorted(seen))} | {self.settled()}"

    def answer(self) -> str:
        """The factor by which the model multiplies."""
        given = {"name": "IN", "datatype": "FP32", "shape": [4], "data": [1, 2, 3, 4]}
        status, text = self.server.call("models/m/infer", {"inputs": [given]})
        return str(int(json.loads(text)["outputs"][0]["data"][0])) if status == 200 else f"{status} {self._plain(text)}"

    def index(self) -> str:
        """What the index has, without reasons of failures: those are in the answers."""
        entries = json.loads(self.server.call("repository/index")[1])
        shown = [
            " ".join([entry["name"], *(entry[key] for key in ("version", "state") if entry.get(key))])
            for entry in entries
        ]
        return ", ".join(sorted(shown))

    def parameter(self) -> str:
        """That of the configuration that is shown."""
        found = json.loads(self.server.get("models/m/config")).get("parameters", {})
        return ", ".join(f"{key}={value['string_value']}" for key, value in sorted(found.items()))

    def ready(self) -> str:
        """Of the server."""
        try:
            self.server.get("health/ready")
        except OSError as error:
            return str(error)
        return "ready"

    def until(self, wanted: Callable[[], bool]) -> str:
        """Whether it comes to be."""
        end = time.monotonic() + SETTLE_SECONDS
        while not wanted():
            if time.monotonic() > end:
                return "never"
            time.sleep(0.1)
        return f"so it is | {self.settled()}"

    def tried_again(self) -> str:
        """Whether a model whose load failed is tried again although nothing has changed."""
        self.settled()
        end = time.monotonic() + SETTLE_SECONDS
        while "LOAD" not in self.calls():
            if time.monotonic() > end:
                return "not again"
            time.sleep(0.1)
        return "again"

    def stop(self, signals: int) -> str:
        """The exit status after so many SIGTERM, half a second after each other, and the calls."""
        for _ in range(signals - 1):
            self.server.send(signal.SIGTERM)
            time.sleep(0.5)
        return f"{self.server.end(signal.SIGTERM)} | {self.calls()}"

    def settled(self) -> str:
        """The calls, once nothing is under way."""
        end = time.monotonic() + SETTLE_SECONDS
        while re.search("LOADING|UNLOADING", self.index()) and time.monotonic() < end:
            time.sleep(0.05)
        seen = ""
        while True:  # the last calls of agents come when a process has ended, which the index does not show
            time.sleep(self._quiet)
            more = self.calls()
            seen = f"{seen} {more}".strip()
            if not more and (seen == (self.awaited or seen) or time.monotonic() > end):
                return seen

    def calls(self) -> str:
        """Those since the last look."""
        text = self._calls.read_text() if self._calls.exists() else ""
        self._calls.unlink(missing_ok=True)
        return " ".join(text.split())

    def _seen(self, status: int, text: str) -> str:
        return f"{status} {self._plain(text)} | {self.settled()}"

    def _plain(self, text: str) -> str:
        """Without the paths of the case, and where in Python's code something was raised."""
        error = json.loads(text).get("error", "") if text.strip() else ""
        return re.sub(r"\n+At:.*?(?=;\n|$)", "", error, flags=re.DOTALL).replace(str(self.directory), "DIR").strip()


@dataclass(frozen=True)
class Case:
    """Steps, each of which gives a text or nothing; ``differ`` has the numbers of those that differ on purpose."""

    name: str
    steps: tuple[Callable[[Bench], str | None], ...]
    flags: tuple[str, ...] = ("--model-control-mode", "explicit")
    prepare: Callable[[Bench], None] = lambda bench: bench.write()
    differ: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Step, from 0 -> numbers of docs/differences.md."""


def _second_repository(bench: Bench) -> None:
    bench.write()
    shutil.copytree(bench.models / "m", bench.directory / "other" / "m")


def _link_out(bench: Bench) -> None:
    bench.write()
    shutil.move(bench.models / "m" / "1", bench.directory / "outside")
    (bench.models / "m" / "1").symlink_to(bench.directory / "outside")


def _two_versions(bench: Bench) -> None:
    bench.write(more="version_policy { all {} }\n")
    shutil.copytree(bench.models / "m" / "1", bench.models / "m" / "2")


_POLL: Final = (
    *("--model-control-mode", "poll", "--repository-poll-secs", "1"),
    *("--exit-on-error", "false", "--strict-readiness", "false"),
)
_OVERRIDE: Final[dict[str, Any]] = {
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_FP32", "dims": [4]}],
    "output": [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [4]}],
    "parameters": {"given": {"string_value": "yes"}},
}

CASES: Final = (
    Case("load, infer, unload", (Bench.load, Bench.answer, Bench.index, Bench.unload, Bench.index, Bench.answer)),
    Case("a load that changes nothing", (Bench.load, Bench.load, Bench.load)),
    Case(
        "a load after the model changed",
        (Bench.load, lambda bench: bench.write(factor=3), Bench.load, Bench.answer),
    ),
    Case(
        "a load after only instance_group changed",
        (Bench.load, Bench.load, lambda bench: bench.write(count=2), Bench.load, Bench.answer),
    ),
    Case(
        "two loads of one model at once",
        (Bench.load_twice_at_once, Bench.answer),
        prepare=lambda bench: bench.write(agent="sleep LOAD"),
    ),
    Case(
        "an agent refuses",
        (Bench.load, Bench.index, Bench.unload, Bench.index),
        prepare=lambda bench: bench.write(agent="fail LOAD"),
        differ={0: (5,), 1: (17,), 3: (17,)},
    ),
    Case(
        "an agent refuses a reload",
        (Bench.load, lambda bench: bench.write(factor=3, agent="fail LOAD"), Bench.load, Bench.index, Bench.answer),
        differ={2: (5,)},
    ),
    Case(
        "the backend fails",
        (Bench.load, Bench.index, Bench.ready, Bench.unload, Bench.index),
        prepare=lambda bench: bench.write(broken=True),
    ),
    Case(
        "a model that does not exist",
        (lambda bench: bench.load("nosuch"), lambda bench: bench.unload("nosuch"), Bench.index),
        differ={0: (5,)},
    ),
    Case(
        "a warm-up that fails",
        (Bench.load, Bench.index, Bench.answer),
        prepare=lambda bench: bench.write(more=_WARMUP),
        differ={0: (20,)},
    ),
    Case(
        "a plain load after one with a configuration",
        (
            Bench.load,
            lambda bench: bench.load(config=_OVERRIDE),
            Bench.parameter,
            Bench.load,
            Bench.parameter,
        ),
        differ={3: (44,), 4: (44,)},
    ),
    Case(
        "a version directory that is a link out of the model",
        (Bench.load, Bench.answer),
        prepare=_link_out,
        differ={0: (45,), 1: (45,)},
    ),
    Case(
        "a loaded model whose directory goes",
        (
            Bench.load,
            lambda bench: shutil.rmtree(bench.models / "m"),
            Bench.index,
            Bench.answer,
            Bench.load,
            Bench.index,
            Bench.unload,
            Bench.index,
        ),
        differ={2: (46,), 4: (5,), 5: (46,)},
    ),
    Case(
        "two versions, one of which goes",
        (
            Bench.load,
            lambda bench: shutil.rmtree(bench.models / "m" / "2"),
            Bench.load,
            Bench.index,
            Bench.answer,
            Bench.unload,
        ),
        prepare=_two_versions,
        differ={2: (2,), 5: (2,)},
    ),
    Case(
        "a model in two repositories",
        (Bench.load, Bench.index),
        ("--model-control-mode", "explicit", "--model-repository", "DIR/other"),
        _second_repository,
        differ={0: (5,)},
    ),
    Case(
        "a repository that is given twice",
        (Bench.load, Bench.index),
        ("--model-control-mode", "explicit", "--model-repository", "DIR/models"),
    ),
    Case(
        "polling: a model comes, changes and goes",
        (
            lambda bench: bench.write(),
            lambda bench: bench.until(lambda: bench.answer() == "2"),
            lambda bench: bench.write(factor=3),
            lambda bench: bench.until(lambda: bench.answer() == "3"),
            lambda bench: shutil.rmtree(bench.models / "m"),
            lambda bench: bench.until(lambda: not bench.answer().isdecimal()),
            Bench.load,
        ),
        _POLL,
        lambda bench: None,
    ),
    Case(
        "polling: a load that fails",
        (Bench.tried_again,),
        _POLL,
        lambda bench: bench.write(broken=True),
    ),
    Case("one SIGTERM", (Bench.load, lambda bench: bench.stop(1))),
    Case(
        "a second SIGTERM while an agent works",
        (Bench.load, lambda bench: bench.stop(2)),
        prepare=lambda bench: bench.write(agent="sleep UNLOAD"),
    ),
    Case(
        "a third SIGTERM while an agent works",
        (Bench.load, lambda bench: bench.stop(3)),
        prepare=lambda bench: bench.write(agent="sleep UNLOAD"),
        differ={1: (47,)},
    ),
)


def observe(
    case: Case,
    command: Sequence[str],
    variables: Mapping[str, str],
    *,
    quiet: float,
    recorded: Sequence[str] = (),
    start: Callable[..., Any] = subprocess.Popen,
) -> list[str]:
    """What is seen of each step.

    Args:
        case: What is done.
        command: Starts a server, without its ports, repositories and the flags of the case.
        variables: Its environment.
        quiet: Seconds without calls after which no more are to come.
        recorded: What another server did: where it should be the same, its calls are waited for.
        start: What starts it, see :func:`running`.
    """
    with tempfile.TemporaryDirectory() as made:
        bench = Bench(Path(made).resolve(), quiet)
        case.prepare(bench)
        command = [*command, "--model-repository", str(bench.models)]
        command += [flag.replace("DIR", str(bench.directory)) for flag in case.flags]
        seen = []
        with running(
            command, bench.directory / "log", {**variables, "CALLS": str(bench.directory / "calls")}, start
        ) as server:
            bench.attach(server)
            bench.settled()
            for number, step in enumerate(case.steps):
                bench.awaited = recorded[number].partition("| ")[2] if recorded and number not in case.differ else ""
                text = step(bench)
                seen.append(text if isinstance(text, str) else "")
        return seen


def main() -> int:
    """Record a stock Triton."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--triton", type=Path, required=True, help="the virtual environment with nvidia-pytriton")
    parser.add_argument("--case", default="", help="only those whose names contain this; prints instead of writing")
    arguments = parser.parse_args()
    stock = Stock(arguments.triton.resolve())
    chosen = [case for case in CASES if arguments.case in case.name]
    recorded: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        backends = stock.backends(place / "backends")
        library = place / "agents" / "calls" / "libtritonrepoagent_calls.so"
        library.parent.mkdir(parents=True)
        here = Path(__file__).parent
        include = here.parents[1] / "include"
        source = str(here / "calls_agent.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-I", str(include), "-o", str(library), source], check=True)
        command = [str(stock.home / "bin" / "tritonserver"), "--backend-directory", str(backends)]
        command += ["--repoagent-directory", str(library.parents[1]), "--allow-gpu-metrics", "false"]
        variables = stock.variables(PYTHONPYCACHEPREFIX=str(place / "cache"))
        for case in chosen:
            recorded[case.name] = observe(case, command, variables, quiet=2.0)
            print(case.name, json.dumps(recorded[case.name], indent=1), flush=True)
    if not arguments.case:
        recording = {"server": f"Triton 2.51.0, of nvidia-pytriton {stock.version}", "cases": recorded}
        RECORDED.write_text(json.dumps(recording, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
