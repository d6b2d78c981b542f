"""Building model repositories for tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from repoagent.config import ModelConfig, read_text, write_text
from repoagent.storage.paths.names import join_inside
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.testing.remote import remote_source

Files = Mapping[str, bytes]
"""Path in the model's directory -> content."""
AgentSpec = str | tuple[str, Mapping[str, str] | Sequence[tuple[str, str]]]
"""An agent's name, or its name and its parameters; pairs where a key is repeated."""


def write_files(root: Path, files: Files) -> Path:
    """Write ``files`` below the directory ``root``, which need not exist, and return it.

    Raises:
        UnsafePathError: a path of ``files`` leads out of ``root``.
    """
    for path, content in files.items():
        file = join_inside(root, path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return root


class ModelRepo:
    """A model repository in a directory.

    ::

        model = model_repo.add("m", {"1/model.onnx": b"weights"}, agents=[("mine", {"key": "value"})])
    """

    def __init__(self, root: Path) -> None:
        """``root`` is created with the first model."""
        self.root = root

    def add(self, name: str, files: Files | None = None, *, agents: Sequence[AgentSpec] = (), config: str = "") -> Path:
        """Write a model and return its directory.

        Args:
            name: The model's name. Files of a model of that name stay unless they are written again.
            files: Default: one small file in version 1.
            agents: The agents that the configuration names, in order.
            config: Other lines of ``config.pbtxt``, such as ``max_batch_size: 8``.

        Raises:
            ConfigError: ``config`` does not parse.
            UnsafePathError: a path of ``files`` leads out of the model's directory.
        """
        directory = write_files(self.root / name, {"1/model.bin": b"weights"} if files is None else files)
        directory.mkdir(parents=True, exist_ok=True)
        self.configure(name, agents=agents, config=config)
        return directory

    def configure(self, name: str, *, agents: Sequence[AgentSpec] = (), config: str = "") -> None:
        """Rewrite the configuration of the model ``name``; arguments as in :meth:`add`."""
        wanted = read_text(config)
        wanted.name = name
        _add_agents(wanted, agents)
        (self.root / name / "config.pbtxt").write_text(write_text(wanted))

    def source(self, name: str) -> ModelSource:
        """The model ``name`` as the loader takes it."""
        return open_source(name, str(self.root / name))

    def remote(self, name: str) -> ModelSource:
        """The same on a remote filesystem, so that its files have to be fetched."""
        return remote_source(self.root / name)


def _add_agents(config: ModelConfig, agents: Sequence[AgentSpec]) -> None:
    for spec in agents:
        name, parameters = (spec, ()) if isinstance(spec, str) else spec
        pairs = parameters.items() if isinstance(parameters, Mapping) else parameters
        entry = config.model_repository_agents.agents.add(name=name)
        for key, value in pairs:
            entry.parameters.add(key=key, value=value)
