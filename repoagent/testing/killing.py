"""Killing a process in the middle of a load, and looking at what it left."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Final

from repoagent.storage.cache.cache import Cache
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from repoagent.testing.faults import Point
from repoagent.testing.harness import memory_directory
from repoagent.testing.kill_child import Job
from repoagent.testing.leftovers import cache_faults, files_holding, held_locks, workspace_leftovers

_STDERR_LINES: Final = 20


class Child:
    """A process to fork and kill (:mod:`repoagent.testing.kill_child`), a context manager for many harnesses."""

    def __init__(self) -> None:
        with ExitStack() as stack:
            self._errors: IO[str] = stack.enter_context(tempfile.TemporaryFile("w+"))
            self._process = subprocess.Popen(
                [sys.executable, "-m", "repoagent.testing.kill_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,  # a job that could not be sent must not be sent again when the pipe is closed
            )
            stack.enter_context(self._process)
            self._stack = stack.pop_all()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()  # closing stdin ends it

    def run(self, job: Job) -> int:
        """Run ``job`` in a process of its own; its exit status, negative for a signal.

        Raises:
            RuntimeError: the child itself is gone.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        answer = b""
        with suppress(BrokenPipeError):
            stdin.write(job.to_line().encode())
            answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"the child process ended:\n{self.errors()}")
        return int(answer)

    def errors(self) -> str:
        """The last lines that it and its forks wrote to stderr."""
        self._errors.seek(0)
        return "".join(self._errors.readlines()[-_STDERR_LINES:])


class KillHarness:
    """Loads models in child processes that die at named points (:mod:`repoagent.testing.faults`).

    All of them use the same workspace, cache and temporary directory, one after the other, as a server would that is
    started again. A context manager. ::

        kill_harness.kill(model, "after mine acquire_location")
        kill_harness.restart()
        assert kill_harness.holding(b"planted") == []
    """

    def __init__(
        self,
        directory: Path,
        child: Child,
        *,
        agents: Mapping[str, str] | None = None,
        repoagent_directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make the directories.

        Args:
            directory: Where they are made.
            child: What runs the loads.
            agents: Name -> ``"module:Class"``, besides the installed ones.
            repoagent_directory: As the flag ``--repoagent-directory``.
            environment: Variables of the processes, for keys.
        """
        self.directory = directory
        self.scratch = directory / "tmp"
        self.scratch.mkdir(parents=True)
        self._child = child
        self._options: dict[str, Any] = {
            "agents": dict(agents or {}),
            "repoagent_directory": str(repoagent_directory) if repoagent_directory is not None else None,
            "environment": dict(environment or {}),
        }
        self._stack = ExitStack()
        self.memory = self._stack.enter_context(memory_directory(directory))

    def __enter__(self) -> "KillHarness":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def kill(self, model: Path, at: str, *, remote: bool = False) -> None:
        """Load ``model`` in a process that SIGKILL ends at the point ``at``; ``remote`` as a model that is fetched.

        Raises:
            AssertionError: the process did not get there; the message has the points that it passed.
        """
        Point.parse(at)
        status, result = self._run(model, kill_at=at, remote=remote)
        if status != -signal.SIGKILL:
            passed = "\n  ".join(result.get("passed", ()))
            raise AssertionError(
                f"the load was not killed at '{at}' but ended with status {status} (error: {result.get('error')}). "
                f"It passed:\n  {passed}\n{self._child.errors()}"
            )

    def run(self, model: Path, *, remote: bool = False) -> list[str]:
        """Load and unload ``model`` in a process that is not killed; the points that it passed.

        Raises:
            AssertionError: the load failed.
        """
        status, result = self._run(model, remote=remote)
        if status != 0 or result["error"] is not None:
            raise AssertionError(f"status {status}, error: {result.get('error')}\n{self._child.errors()}")
        passed: list[str] = result["passed"]
        return passed

    def restart(self) -> None:
        """Do what the next start of a server does with these directories, and stop again."""
        with WorkspaceRoot(self.directory / "workspace", confidential_dir=self.memory, allow_swap=True):
            Cache(self.directory / "cache").open_store()

    def left_over(self) -> list[Path]:
        """What lies in the workspaces."""
        return workspace_leftovers(self.directory / "workspace", self.memory)

    def holding(self, marker: bytes) -> list[Path]:
        """The files in workspaces, memory, cache and temporary directory that hold ``marker``."""
        return files_holding(marker, self.directory, self.memory)

    def held_locks(self) -> list[Path]:
        """The locks that are held."""
        return held_locks(self.directory, self.memory)

    def cache_faults(self) -> list[str]:
        """What is wrong with the cache."""
        return cache_faults(self.directory / "cache")

    def _run(self, model: Path, *, kill_at: str | None = None, remote: bool) -> tuple[int, dict[str, Any]]:
        result = self.scratch / ".result"
        result.unlink(missing_ok=True)
        job = Job(
            model=str(model.absolute()),
            directory=str(self.directory.absolute()),
            memory=str(self.memory),
            scratch=str(self.scratch.absolute()),
            result=str(result.absolute()),
            kill_at=kill_at,
            remote=remote,
            **self._options,
        )
        status = self._child.run(job)
        return status, json.loads(result.read_text()) if result.exists() else {}
