"""Trees of files to check, and a model that the agent can be called with outside of a server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from repoagent.api import AgentModel, ArtifactType, Parameters, digest_files
from repoagent.testing import write_files


@dataclass
class FakeModel:
    """The part of ``AgentModel`` that the agent uses; keeps what it is told."""

    directory: Path
    parameters: Parameters
    artifact_type: ArtifactType = ArtifactType.FILESYSTEM
    cancelled: bool = False
    demanded: bool = False
    trust_roots: Mapping[str, Path] = field(default_factory=dict)
    updated: list[Path] = field(default_factory=list)
    progressed: list[tuple[int, int | None]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def localize(self) -> Path:
        return self.directory

    def update_location(self, location: str | Path, artifact_type: ArtifactType = ArtifactType.FILESYSTEM) -> None:
        self.updated.append(Path(location))

    def progress(self, done: int, total: int | None = None, what: str = "") -> None:
        self.progressed.append((done, total))

    def digests(self, files: Mapping[str, Sequence[str]], *, follow: bool = False) -> Mapping[str, Mapping[str, str]]:
        found = digest_files(
            self.directory, files, follow=follow, cancelled=lambda: self.cancelled, progress=self.progress
        )
        self.reports.append({"bytes_read": sum((self.directory / path).stat().st_size for path in files)})
        return found

    def report(self, **what: Any) -> None:
        self.reports[-1:] = [{**dict(*self.reports[-1:]), **what}]

    def as_model(self) -> AgentModel:
        return cast(AgentModel, self)


MakeTree = Callable[[Mapping[str, bytes]], Path]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write files (path -> content) below a fresh directory, and return it."""

    return lambda files: write_files(tmp_path / "model", files)


@pytest.fixture
def fake_model() -> type[FakeModel]:
    return FakeModel
