"""What the slots of one server share."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from repoagent.audit import NO_AUDIT, Audit
from repoagent.config import ModelConfig
from repoagent.config.suggestions import did_you_mean
from repoagent.errors import NotFoundError, RepoAgentError
from repoagent.loader.chain import LoadedChain
from repoagent.loader.load_context import Progress
from repoagent.loader.loader import Loader
from repoagent.serving.ensembles.dependencies import Dependencies
from repoagent.serving.lifecycle.load_request import LoadRequest
from repoagent.serving.lifecycle.loaded_model import Retirements
from repoagent.serving.repositories.repository_set import RepositorySet
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.storage import MemorySource, ModelSource
from repoagent.storage.paths.names import NAME_BYTES

_FILE_PREFIX: Final = "file:"


@dataclass(frozen=True, slots=True)
class SlotContext:
    """What the slots of one server share."""

    repositories: RepositorySet
    loader: Loader
    builder: ModelBuilder
    dependencies: Dependencies
    retirements: Retirements
    drain_timeout_seconds: float
    changed: Callable[[str], None] = lambda _model: None
    """Notify the followers of a model that has been loaded, or has lost its members. Returns soon, never raises."""
    on_progress: Callable[[Progress], None] | None = None
    audit: Audit = NO_AUDIT

    def source(self, model: ModelId, order: LoadRequest) -> ModelSource:
        """Where the files of the model are.

        Raises:
            RepoAgentError: no repository has the model, or several have.
        """
        if order.files is not None:
            files = {path.removeprefix(_FILE_PREFIX): content for path, content in order.files.items()}
            return MemorySource(model.name, files)
        try:
            return self.repositories.find(model)
        except NotFoundError as error:
            if order.config is None:
                raise NotFoundError(f"{error}{self._hint(model)}") from error
            return MemorySource(model.name, {})  # A configuration alone can be a whole model: an ensemble.

    def _hint(self, model: ModelId) -> str:
        size = len(model.name.encode(errors="replace"))
        if size > NAME_BYTES:
            return f"; its name has {size} bytes, and that of a directory at most {NAME_BYTES}"
        try:
            return did_you_mean(model, self.repositories.names())
        except RepoAgentError:  # what is wrong with the listing is not what was asked
            return ""

    def run_chain(
        self,
        source: ModelSource,
        override: ModelConfig | None,
        cancelled: threading.Event,
        on_progress: Callable[[Progress], None],
    ) -> LoadedChain:
        """Let the agents of the model do their part; ``on_progress`` gets how far they are, as all others do.

        Raises:
            RepoAgentError: one of them refused; every agent has been called.
        """

        def report(progress: Progress) -> None:
            on_progress(progress)
            if self.on_progress is not None:
                self.on_progress(progress)

        return self.loader.load(source, override=override, cancelled=cancelled.is_set, on_progress=report)
