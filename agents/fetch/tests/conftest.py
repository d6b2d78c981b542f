"""A loader with the agent under a policy, and without one."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.loader.policy import PolicyPlanner, read_policy
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

Fetch = Callable[..., dict[str, bytes]]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr("repoagent.storage.transfer.download_file._FIRST_PAUSE", 0.0)


@pytest.fixture
def notes() -> list[str]:
    """The notes of all loads."""
    return []


@pytest.fixture
def fetch(tmp_path: Path, notes: list[str]) -> Fetch:
    """Load a model that only the policy, or only its own configuration, makes the agent fetch; its files."""
    model = tmp_path / "repository" / "m"
    model.mkdir(parents=True)

    def load(
        parameters: Mapping[str, str | list[str]],
        *,
        demanded: bool = True,
        cancelled: Callable[[], bool] | None = None,
    ) -> dict[str, bytes]:
        pairs = [
            (key, one) for key, value in parameters.items() for one in ([value] if isinstance(value, str) else value)
        ]
        with ExitStack() as stack:
            workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))
            cache = stack.enter_context(Cache(tmp_path / "cache"))
            registry = AgentRegistry(None)
            planner = None
            if demanded:
                rendered = ", ".join(f'["{key}", "{value}"]' for key, value in pairs)
                policy = tmp_path / "policy.toml"
                policy.write_text(
                    '[[rule]]\nmodels = ["*"]\nmode = "enforce"\n'
                    f'before = [ {{ agent = "fetch", parameters = [{rendered}] }} ]\n'
                )
                planner = PolicyPlanner(read_policy(policy), registry)
                (model / "config.pbtxt").write_text("max_batch_size: 0")
            else:
                entries = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in pairs)
                (model / "config.pbtxt").write_text(
                    f'model_repository_agents {{ agents [ {{ name: "fetch" {entries} }} ] }}'
                )
            loader = Loader(registry, workspace, Services(cache=cache), planner=planner)
            stack.callback(loader.close)
            chain = loader.load(open_source("m", str(model)), cancelled=cancelled)
            notes.extend(chain.report.to_dict()["entries"][0]["actions"][0]["notes"])
            root = chain.files.local_path()
            files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
            chain.complete()
            chain.unload()
            chain.unload_complete()
            del files["config.pbtxt"]
            return files

    return load
