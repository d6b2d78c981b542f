"""Trees of files, and the agent in a loader."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from repoagent_scan.agent import ScanAgent

from repoagent.testing import AgentHarness, Outcome, write_files

MakeTree = Callable[[Mapping[str, bytes]], Path]
Scan = Callable[..., Outcome]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write files (path -> content) below a fresh directory, and return it."""

    return lambda files: write_files(tmp_path / "model", files)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    with AgentHarness(tmp_path / "harness", {"scan": ScanAgent}) as harness:
        yield harness


@pytest.fixture
def load(harness: AgentHarness, make_tree: MakeTree) -> Scan:
    """Load a model of these files through the agent, with parameters as (key, value)."""

    def run(files: Mapping[str, bytes], *parameters: tuple[str, str]) -> Outcome:
        given = " ".join(f"parameters {{ key: '{key}' value: '{value}' }}" for key, value in parameters)
        config = f"model_repository_agents {{ agents [ {{ name: 'scan' {given} }} ] }}"
        return harness.run(make_tree({**files, "config.pbtxt": config.encode()}))

    return run
