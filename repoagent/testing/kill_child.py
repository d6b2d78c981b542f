"""The process that :class:`~repoagent.testing.KillHarness` kills: ``python -m repoagent.testing.kill_child``.

It reads one job per line on stdin, imports what the job's agents need, and forks; the fork runs the job and dies at the
point that the job names. So every job has a real process of its own, and none waits for imports. For each job it
answers with one line, the exit status (negative: the signal that ended it).
"""

import importlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from repoagent.config import agent_entries, read_text
from repoagent.errors import RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.storage.repositories.sources import open_source
from repoagent.testing.faults import FaultInjection
from repoagent.testing.harness import AgentHarness
from repoagent.testing.remote import remote_source


@dataclass(frozen=True, slots=True)
class Job:
    """One run of one model. Paths are absolute; ``agents`` are ``"module:Class"`` by name; ``result`` is written to."""

    model: str
    directory: str
    memory: str
    scratch: str
    result: str
    kill_at: str | None = None
    remote: bool = False
    agents: Mapping[str, str] = field(default_factory=dict)
    repoagent_directory: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def to_line(self) -> str:
        """As one line of text."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Job":
        """Read what :meth:`to_line` wrote."""
        return cls(**json.loads(line))


def main() -> None:
    """Serve jobs until stdin ends."""
    for line in sys.stdin:
        job = Job.from_line(line)
        _import_agents(job)
        print(_in_fork(job), flush=True)  # noqa: T201 - the answer


def _import_agents(job: Job) -> None:
    """What is imported here is there in every fork. What cannot be imported fails in the job, where it is reported."""
    config = Path(job.model, "config.pbtxt")
    registry = AgentRegistry(None)
    for entry in agent_entries(read_text(config.read_text())) if config.exists() else ():
        with suppress(RepoAgentError):
            registry.load(entry.name)


def _in_fork(job: Job) -> int:
    process = os.fork()
    if process == 0:
        os._exit(_guarded(job))
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _guarded(job: Job) -> int:
    try:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        _run(job)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run(job: Job) -> None:
    os.environ.update(job.environment, TMPDIR=job.scratch)
    tempfile.tempdir = None
    os.chdir(job.scratch)
    faults = FaultInjection()
    if job.kill_at is not None:
        faults.kill(job.kill_at)
    with AgentHarness(
        Path(job.directory),
        {name: _resolve(target) for name, target in job.agents.items()},
        faults=faults,
        memory=Path(job.memory),
        repoagent_directory=Path(job.repoagent_directory) if job.repoagent_directory else None,
    ) as harness:
        model = Path(job.model)
        source = remote_source(model) if job.remote else open_source(model.name, job.model)
        outcome = harness.run(source)
    error = str(outcome.error) if outcome.error is not None else None
    Path(job.result).write_text(json.dumps({"passed": faults.passed, "error": error}))


def _resolve(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


if __name__ == "__main__":
    main()
