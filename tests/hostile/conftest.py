"""What hostile tests share: a file outside of every model, a repository, and cores over it with any policy."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm.builder import build

from examples.executor.synthetic import synthetic_checkpoint
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore

SECRET = b"AGE-SECRET-KEY-1"
"""What must never come out: as long as the tensor of the models that look for it."""

NewCore = Callable[..., ServingCore]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A key in a file of the server's user, beside the repository and not in it."""
    path = tmp_path / "outside" / "key.txt"
    path.parent.mkdir()
    path.write_bytes(SECRET)
    path.chmod(0o600)
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    return path


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def new_core(tmp_path: Path, repository: Path, workspace: Path) -> Iterator[NewCore]:
    """Starts real cores over the repository, EXPLICIT unless another mode is given; ``policy`` is the policy's text."""
    with ExitStack() as stack:

        def make(*, policy: str | None = None, **options: Any) -> ServingCore:
            if policy is not None:
                options["agent_policy"] = tmp_path / "policy.toml"
                options["agent_policy"].write_text(policy)
            settings: dict[str, Any] = {
                "repositories": (str(repository),),
                "control_mode": ControlMode.EXPLICIT,
                "exit_on_error": False,
                "repoagent_directory": None,
                "workspace_directory": workspace,
                "cache_directory": tmp_path / "cache",
                "exit_timeout_seconds": 10,
            }
            return stack.enter_context(ServingCore(CoreOptions(**settings | options)))

        yield make


@pytest.fixture
def reasons() -> Callable[[ServingCore], str]:
    """Why models are not served: all reasons of the index, as a client is given them."""
    return lambda core: "\n".join(str(entry.get("reason")) for entry in core.index() if entry.get("reason"))


@pytest.fixture(scope="session")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small decoder folder with its weights in a file of their own; copy it before changing it."""
    root = tmp_path_factory.mktemp("decoder")
    synthetic_checkpoint(root / "checkpoint", "llama")
    build(root / "checkpoint", root / "decoder")
    return root / "decoder"


Swap = Callable[[str, Callable[[], None]], None]


class _Opens:
    """Calls what a test arranged when a name is about to be opened, after any look at it. Audit hooks never go."""

    def __init__(self) -> None:
        self.wanted: dict[str, Callable[[], None]] = {}
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.wanted or not isinstance(arguments[0], str | Path):
            return
        act = self.wanted.pop(Path(arguments[0]).name, None)
        if act is not None:
            act()


@pytest.fixture(scope="session")
def _opens() -> _Opens:
    return _Opens()


@pytest.fixture
def at_open(_opens: _Opens) -> Iterator[Swap]:
    """``at_open("labels.txt", swap)``: call ``swap`` just before a file of that name is opened the next time."""
    yield lambda name, act: _opens.wanted.update({name: act})
    _opens.wanted.clear()
