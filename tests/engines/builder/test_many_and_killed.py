"""Builds of real plans by many processes at once, and by processes that are killed."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from repoagent.api import ConversionJob, Product
from repoagent.converters.onnx.tensorrt import TensorRtConverter
from repoagent.engines.plan_description import check_digest
from repoagent.engines.plan_header import PlanHeader
from repoagent.errors import RepoAgentError
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import AgentHarness
from tests.engines import models
from tests.engines.builder.plans import need_tensorrt
from tests.processes import children, runs
from tests.waiting import until

pytestmark = pytest.mark.slow

_ROOT: Final = Path(__file__).parents[3]
_CONFIG: Final = """
max_batch_size: 8
model_repository_agents { agents [ { name: "convert" parameters { key: "to" value: "tensorrt" } } ] }
"""
_BUILDER: Final = "repoagent.loader.converting.build_child"
_IN_A_BUILD: Final = "held in the library"


class Held(TensorRtConverter):
    """Holds the library in the first step that it reports, until somebody ends the process: no build ends before."""

    def build(self, job: ConversionJob) -> Product:
        def progress(done: int, total: int | None = None, _: str = "") -> None:
            if total is not None:  # The library reports it; before that the model is read.
                job.progress(done, total, _IN_A_BUILD)
                threading.Event().wait()

        return super().build(replace(job, progress=progress))


_HELD: Final = {("onnx", "tensorrt"): f"{__name__}:{Held.__name__}"}

# Loads the model when a line comes; with "kill" it kills itself as soon as the library is at work.
_PROGRAM: Final = """
import hashlib, json, os, signal, sys
from pathlib import Path
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import AgentHarness
from tests.engines.builder.test_many_and_killed import _HELD, _IN_A_BUILD, builders

directory, what = Path(sys.argv[1]), sys.argv[2]

def progress(step):
    if what == "kill" and step.what == _IN_A_BUILD:
        print(json.dumps(builders()), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

with AgentHarness(directory / "harness", converters=_HELD if what == "kill" else {}) as harness:
    print("ready", flush=True)
    sys.stdin.readline()
    chain = harness.loader.load(open_source("m", str(directory / "m")), on_progress=progress)
    plan = chain.files.bytes("1/model.plan")
    notes = [note for action in chain.report.entries[0].actions for note in action.notes]
    print(json.dumps([hashlib.sha256(plan).hexdigest(), notes]), flush=True)
    chain.fail(RuntimeError("enough"))
"""

Start = Callable[..., "subprocess.Popen[str]"]


def builders() -> list[int]:
    """The processes of this one that convert."""
    return [pid for pid in children(os.getpid()) if _BUILDER in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.fixture(autouse=True)
def _model(tmp_path: Path) -> None:
    need_tensorrt()
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_bytes(models.matmul())
    (tmp_path / "m/config.pbtxt").write_text(_CONFIG)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start(what)``: a process that is ready to load the model; all share one cache."""
    processes: list[subprocess.Popen[str]] = []

    def start(what: str = "") -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", _PROGRAM, str(tmp_path), what]
        process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _objects(tmp_path: Path) -> list[Path]:
    """What the cache has, and what it has begun."""
    return list((tmp_path / "harness/cache/objects").glob("*")) + list((tmp_path / "harness/cache/objects").glob(".*"))


def _check_next_load(tmp_path: Path) -> None:
    """The next load builds the plan, and nothing is left of the one before."""
    with AgentHarness(tmp_path / "harness") as harness:
        outcome = harness.run(tmp_path / "m")
        assert outcome.error is None
        assert PlanHeader.of(outcome.files["1/model.plan"])
        check_digest(outcome.files["1/model.plan"], "model.plan", outcome.files["1/model.plan.intoto.json"])
        notes = " ".join(note for action in outcome.report.entries[0].actions for note in action.notes)
        assert ", built after " in notes
        assert harness.left_over() == []
    (kept,) = _objects(tmp_path)
    assert sorted(path.name for path in kept.iterdir()) == ["model.plan", "model.plan.intoto.json"]


def test_eight_processes_that_ask_at_once_for_one_plan_build_once(start: Start, tmp_path: Path) -> None:
    processes = [start() for _ in range(8)]
    assert [_line(process) for process in processes] == ["ready"] * 8
    for process in processes:
        _go(process)
    answers = [json.loads(_line(process)) for process in processes]
    (kept,) = _objects(tmp_path)
    assert {digest for digest, _ in answers} == {hashlib.sha256((kept / "model.plan").read_bytes()).hexdigest()}
    texts = [" ".join(notes) for _, notes in answers]
    assert sorted("from the cache" in text for text in texts) == [False] + [True] * 7
    assert sum(", built after " in text for text in texts) == 1


def test_a_server_that_is_killed_in_a_plans_build_leaves_no_half_result(start: Start, tmp_path: Path) -> None:
    process = start("kill")
    assert _line(process) == "ready"
    _go(process)
    (builder,) = json.loads(_line(process))
    assert process.wait() == -signal.SIGKILL
    try:
        until(lambda: not runs(builder))
    except AssertionError:
        os.kill(builder, signal.SIGKILL)  # It is held, and would never end.
        raise
    assert not [path for path in _objects(tmp_path) if not path.name.startswith(".")]
    _check_next_load(tmp_path)


def test_a_build_that_is_killed_refuses_its_load_and_leaves_no_half_result(tmp_path: Path) -> None:
    def progress(step: object) -> None:
        if getattr(step, "what", "") == _IN_A_BUILD:
            (builder,) = builders()
            os.kill(builder, signal.SIGKILL)

    with AgentHarness(tmp_path / "harness", converters=_HELD) as harness:
        with pytest.raises(RepoAgentError, match="the converter from 'onnx' to 'tensorrt' was killed"):
            harness.loader.load(open_source("m", str(tmp_path / "m")), on_progress=progress)
        assert harness.left_over() == []
    assert _objects(tmp_path) == []
    _check_next_load(tmp_path)
