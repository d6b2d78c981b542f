"""What a caller wants loaded."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from repoagent.config import ModelConfig
from repoagent.errors import CancelledError, UnsupportedError
from repoagent.serving.lifecycle.loaded_model import LoadedModel
from repoagent.serving.lifecycle.model_states import UNLOADED


class PendingLoad:
    """One load of a model, until its end."""

    def __init__(self, *, follows_unload: bool, version: int | None = None) -> None:
        self.version = version
        """The only one that it is to bring."""
        self.follows_unload = follows_unload
        """An unload that was asked for before it had not ended."""
        self.cancelled = threading.Event()
        self.reason = ""

    def cancel(self, reason: str) -> None:
        """Have it end without the model; the first ``reason`` counts."""
        self.reason = self.reason or reason
        self.cancelled.set()

    def outdated(self, model: str) -> CancelledError:
        """The error of a load of ``model`` that was cancelled."""
        if self.reason != UNLOADED:
            return CancelledError(f"load failed for model '{model}': {self.reason}\n")
        return CancelledError(
            f"load failed for model '{model}': Newer operation has been applied to the model lifecycle, current "
            "load operation is out-dated.\n"
        )


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What a caller wants loaded: the repository's model, or one with this configuration, or made of these files."""

    config: ModelConfig | None = None
    files: Mapping[str, bytes] | None = None
    needed: bool = False
    """Another model, or a request, needs it; it was not asked for by its name. One that was loaded with a configuration
    or files of a request stays as it is; otherwise what changed in the repository is loaded."""
    version: int | None = None
    """One version, beside those that are loaded, whatever the version policy is; None: what the policy selects."""
    pinned: frozenset[int] | None = None
    """All versions that are to be loaded; set by the slot."""

    def beside(self, current: LoadedModel | None, name: str) -> "LoadRequest":
        """The same with all versions of the model ``name`` that it means beside what is loaded.

        Raises:
            UnsupportedError: the files of the other versions are not there any more.
        """
        if current is None:
            return self if self.version is None else replace(self, pinned=frozenset((self.version,)))
        origin = current.origin
        if self.version is None:
            return replace(self, pinned=origin.pinned) if self.needed else self
        if origin.files:
            raise UnsupportedError(
                f"failed to load '{name}' version {self.version}: the model was loaded with files of a load "
                "request, which are not kept; load it again with all files"
            )
        return replace(self, config=origin.config, pinned=frozenset((*current.versions, self.version)))

    def covered_by(self, current: LoadedModel) -> bool:
        """Whether ``current`` has the versions that it means."""
        return current.origin.pinned == self.pinned or self.version in current.versions
