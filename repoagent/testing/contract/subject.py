"""What the contract knows about an agent, and how it runs it."""

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

import pytest

from repoagent.api import Agent
from repoagent.testing.faults import FaultInjection
from repoagent.testing.harness import AgentHarness, FakeKeys, Outcome
from repoagent.testing.repository import Files, ModelRepo

_QUIET: Final = frozenset({"cancelled", "progress", "report", "request_unload"})
"""What an agent asks of its model that cannot fail."""


class Subject:
    """The agent under test: what a test class declares about it, and the means to run it."""

    agent: ClassVar[type[Agent]]
    """The class under test. Required."""

    entry_point: ClassVar[str | None] = None
    """The name under which the installed package offers it, if it is installed where the tests run."""

    long_running: ClassVar[bool] = False
    """Whether LOAD may take long. It must then look at ``model.cancelled`` (or use ``run_child``) and give up."""

    config: ClassVar[str] = ""
    """Further lines of the models' ``config.pbtxt``."""

    _accepts: ClassVar[bool]

    @property
    def parameters(self) -> Mapping[str, str] | Sequence[tuple[str, str]]:
        """The agent's parameters, for the good model and the bad one."""
        return ()

    @property
    def good_model(self) -> Files:
        """The files of a model that the agent accepts: path -> content."""
        return {"1/model.bin": b"weights"}

    @property
    def bad_model(self) -> Files | None:
        """The files of a model that it refuses; None for an agent that refuses nothing, which no guard is."""
        return None

    @property
    def secrets(self) -> Mapping[str, bytes]:
        """What ``fake:NAME`` in the parameters refers to. It must not show anywhere."""
        return {}

    @property
    def plaintext(self) -> bytes | None:
        """Bytes of the good model that may lie in confidential directories only; a marker that is nowhere else."""
        return None

    @property
    def readme(self) -> Path | None:
        """The README that documents the parameters."""
        return None

    @pytest.fixture(autouse=True)
    def _places(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Working directory, home and temporary files are in one place, where nothing may be left."""
        self.directory = tmp_path
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir()
        self._numbers = itertools.count()
        for variable in ("HOME", "TMPDIR"):
            monkeypatch.setenv(variable, str(self.scratch))
        for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr(tempfile, "tempdir", str(self.scratch))
        monkeypatch.chdir(self.scratch)

    @property
    def name(self) -> str:
        """The name of the agent in the contract's models."""
        return self.entry_point or "subject"

    def open_harness(self, agents: Mapping[str, type[Agent]] | None = None, **options: object) -> AgentHarness:
        """A harness of its own, with the agent under test and ``agents``; close it.

        An agent that refuses its good model fails the first test of the contract. Here the test is skipped then: it
        could prove nothing.
        """
        if not self.accepts_the_good_model():
            pytest.skip("the good model was refused, see test_a_good_model_is_loaded_and_unloaded")
        return self._open_harness(agents, **options)

    def accepts_the_good_model(self) -> bool:
        """Whether the agent does. It is tried once for all tests of the class."""
        kind = type(self)
        if "_accepts" not in vars(kind):
            kind._accepts = self.try_good_model().error is None
        return kind._accepts

    def try_good_model(self) -> Outcome:
        """The good model's whole life, whether it is accepted or not."""
        with self._open_harness(None) as harness:
            return self.run_good(harness)

    def _open_harness(self, agents: Mapping[str, type[Agent]] | None, **options: object) -> AgentHarness:
        return AgentHarness(
            self.directory / f"harness-{next(self._numbers)}",
            {self.name: self.agent, **(agents or {})},
            keys=FakeKeys(self.secrets),
            faults=FaultInjection(),
            **options,  # type: ignore[arg-type]
        )

    def write_model(self, files: Files, *after: str, name: str = "m") -> Path:
        """A model in a repository of its own, which names the agent under test and then the agents ``after``."""
        repository = ModelRepo(self.directory / f"repository-{next(self._numbers)}")
        return repository.add(name, files, agents=[(self.name, self.parameters), *after], config=self.config)

    def run_good(self, harness: AgentHarness) -> Outcome:
        """The good model's whole life."""
        return harness.run(self.write_model(self.good_model))

    def run_bad(self, harness: AgentHarness) -> Outcome | None:
        """The same of the bad model, if there is one."""
        return None if self.bad_model is None else harness.run(self.write_model(self.bad_model))

    def calls_in_load(self, outcome: Outcome) -> list[str]:
        """The points of ``outcome`` at which the agent, in LOAD, asked its model for something that can fail."""
        passed = list(outcome.passed)
        begin = passed.index(f"{self.name} LOAD")
        end = passed.index(f"after {self.name} LOAD")
        own = [point for point in passed[begin + 1 : end] if point.startswith(f"{self.name} ")]
        return [point for point in own if point.split()[1] not in _QUIET]
