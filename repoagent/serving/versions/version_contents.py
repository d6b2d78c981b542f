"""What one version of a model consists of, so that a reload knows which versions it need not load again."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.config import ModelConfig, copy
from repoagent.errors import RepoAgentError
from repoagent.storage import FileEntry, fingerprint_of
from repoagent.storage.repositories.sources import version_numbers

if TYPE_CHECKING:
    from repoagent.loader.chain import LoadedChain

logger = logging.getLogger(__name__)

_NOT_SHARED: Final = ("version_policy", "model_repository_agents", "instance_group")
"""Fields of a configuration that no loaded version depends on: which versions there are, who judged them, and how
many instances they have, which can be changed while they serve."""
_CONFIGURATIONS: Final = ("config.pbtxt", "configs/")
"""Files that count by what has become of them: the configuration that the chain left."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a version was made of. Versions of one model with equal shares need not be loaded twice."""

    files: str
    """A digest of its directory, and of the files outside of all version directories."""
    configuration: bytes
    lasting: bool
    """Its files stay where they are when the load that brought them ends: they are the repository's own."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a model after its agents, by what changes when they do."""

    place: str
    """What the tags are worth: entries of different places are never equal."""
    entries: tuple[FileEntry, ...]
    lasting: bool

    def share(self, version: int, config: ModelConfig) -> Share:
        """The share of ``version`` in these files and in ``config``, which is the one that the chain left."""
        numbers = {str(number) for number in version_numbers({top for top, rest in self._split() if rest})}
        chosen = [
            entry
            for entry, (top, rest) in zip(self.entries, self._split(), strict=True)
            if (top == str(version) or top not in numbers or not rest) and not entry.path.startswith(_CONFIGURATIONS)
        ]
        return Share(f"{self.place} {fingerprint_of(chosen).digest}", share_of_configuration(config), self.lasting)

    def _split(self) -> list[tuple[str, str]]:
        return [(top, rest) for top, _, rest in (entry.path.partition("/") for entry in self.entries)]


def share_of_configuration(config: ModelConfig) -> bytes:
    """All of ``config`` that a loaded version depends on."""
    mine = copy(config)
    for field in _NOT_SHARED:
        mine.ClearField(field)
    return mine.SerializeToString(deterministic=True)


def contents_of(chain: "LoadedChain") -> Callable[[], Contents | None]:
    """What the agents left, for a comparison. What is returned waits until it has been read.

    It is None if it cannot be read: then what has changed is unknown. Files of the repository go by its listing, made
    here and now, before anything is loaded from them: a later change shows in the next one. Files that an agent made
    go by their contents, read on another thread, as that may take as long as the load and they do not change any more.
    """
    source = chain.source
    if chain.in_place or source.is_remote:
        return _deferred(
            lambda: Contents(source.location, tuple(source.contents()), lasting=not source.is_remote), None
        )
    thread = "repoagent-contents" if chain.private else None
    return _deferred(lambda: Contents("", _digested(chain), lasting=False), thread)


def _digested(chain: "LoadedChain") -> tuple[FileEntry, ...]:
    root = Path(chain.source.root)
    return tuple(
        FileEntry(path, (root / path).stat().st_size, digest, path) for path, digest in chain.digests().items()
    )


def _deferred(read: Callable[[], Contents], thread_name: str | None) -> Callable[[], Contents | None]:
    results: list[Contents] = []

    def work() -> None:
        try:
            results.append(read())
        except (RepoAgentError, OSError) as error:
            logger.warning("the files of a model cannot be compared with those of its next load: %s", error)

    if thread_name is None:
        work()
        return lambda: next(iter(results), None)
    thread = threading.Thread(target=work, name=thread_name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # The machine has no thread left.
        work()
        return lambda: next(iter(results), None)

    def wait() -> Contents | None:
        thread.join()
        return next(iter(results), None)

    return wait
