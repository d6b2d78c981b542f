"""A new load of a model that is loaded: which of its versions serve on, and what changes about them."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from repoagent.config import ModelConfig, copy, normalize
from repoagent.errors import RepoAgentError
from repoagent.loader.chain import LoadedChain
from repoagent.serving.versions.instance_set import InstanceChange
from repoagent.serving.versions.served_model import ServedModel
from repoagent.storage.repositories.listing import FileEntry, fingerprint_of
from repoagent.storage.repositories.sources import version_numbers

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
    fresh: str = ""
    """A digest of the folders that it can take up while it serves."""

    def keeps(self, served: ServedModel) -> bool:
        """Whether ``served`` can serve on as the version that is made of this: nothing that it depends on has changed.

        The configuration may be the one that the server has completed, too: clients read it, change the instances in
        it, and send it with a load.
        """
        before = served.share
        if before is None or (self.files, self.lasting) != (before.files, before.lasting) or served.broken:
            return False
        if served.composition is not None or (served.keeps_files and not self.lasting):
            return False  # An ensemble; or it goes on reading files that go with the load before.
        return self.configuration in (before.configuration, share_of_configuration(served.config))


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a model after its agents, by what changes when they do."""

    place: str
    """What the tags are worth: entries of different places are never equal."""
    entries: tuple[FileEntry, ...]
    lasting: bool

    def share(self, version: int, config: ModelConfig, fresh: Sequence[str] = ()) -> Share:
        """The share of ``version`` in these files and in ``config``, which is the one that the chain left.

        ``fresh``: folders of the version that it can take up while it serves.
        """
        numbers = {str(number) for number in version_numbers({top for top, rest in self._split() if rest})}
        chosen = [
            entry
            for entry, (top, rest) in zip(self.entries, self._split(), strict=True)
            if (top == str(version) or top not in numbers or not rest) and not entry.path.startswith(_CONFIGURATIONS)
        ]
        apart = tuple(f"{version}/{folder}/" for folder in fresh)
        files, others = (
            f"{self.place} {fingerprint_of([one for one in chosen if one.path.startswith(apart) is inside]).digest}"
            for inside in (False, True)
        )
        return Share(files, share_of_configuration(config), self.lasting, others)

    def _split(self) -> list[tuple[str, str]]:
        return [(top, rest) for top, _, rest in (entry.path.partition("/") for entry in self.entries)]


def share_of_configuration(config: ModelConfig) -> bytes:
    """All of ``config`` that a loaded version depends on."""
    mine = copy(config)
    for name in _NOT_SHARED:
        mine.ClearField(name)
    return mine.SerializeToString(deterministic=True)


def contents_of(chain: LoadedChain) -> Callable[[], Contents | None]:
    """What the agents left, for a comparison. What is returned waits until it has been read.

    It is None if it cannot be read: then what has changed is unknown. Files of the repository go by its listing, made
    here and now, before anything is loaded from them: a later change shows in the next one. Files that an agent made
    go by their contents, read on another thread, as that may take as long as the load and they do not change any more.
    """
    source, results = chain.source, list[Contents]()
    listed = chain.in_place or source.is_remote

    def read() -> None:
        try:
            if listed:
                results.append(Contents(source.location, tuple(source.contents()), lasting=not source.is_remote))
            else:
                results.append(Contents("", _digested(chain), lasting=False))
        except (RepoAgentError, OSError) as error:
            logger.warning("the files of a model cannot be compared with those of its next load: %s", error)

    thread = threading.Thread(target=read, name="repoagent-contents", daemon=True)
    started = chain.private and not listed
    try:
        if started:
            thread.start()
    except RuntimeError:  # The machine has no thread left.
        started = False
    if not started:
        read()

    def wait() -> Contents | None:
        if started:
            thread.join()
        return next(iter(results), None)

    return wait


def _digested(chain: LoadedChain) -> tuple[FileEntry, ...]:
    root = Path(chain.source.root)
    return tuple(
        FileEntry(path, (root / path).stat().st_size, digest, path) for path, digest in chain.digests().items()
    )


@dataclass(frozen=True, slots=True)
class Present:
    """What is there when a load builds: the versions that serve, and how to learn what the new files are."""

    versions: Mapping[int, ServedModel] = field(default_factory=dict)
    contents: Callable[[], Contents | None] = lambda: None

    def share(self, version: int, config: ModelConfig, served: ServedModel) -> Share | None:
        """What ``served``, or another in its place, is made of by the configuration of the new chain; None if that is
        unknown."""
        contents = self.contents()
        return contents.share(version, config, served.refreshable) if contents is not None else None


@dataclass(frozen=True, slots=True)
class Kept:
    """A version that serves on. Nothing of it has changed before :meth:`commit`."""

    served: ServedModel
    config: ModelConfig
    instances: InstanceChange
    fresh: str
    refresh: Callable[[], None]

    def commit(self) -> None:
        """Go by the new configuration, and the new files, from now on."""
        self.refresh()
        if self.served.share is not None:
            self.served.share = replace(self.served.share, fresh=self.fresh)
        self.served.change(self.config, self.instances)

    def discard(self) -> None:
        """The load failed: let go of what was made for it."""
        self.instances.discard()


@dataclass(frozen=True, slots=True)
class Built:
    """All versions of a load: those made for it, and those kept."""

    versions: Mapping[int, ServedModel]
    kept: tuple[Kept, ...] = ()
    on_commit: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, versions: Mapping[int, ServedModel | Kept]) -> "Built":
        served = {version: one.served if isinstance(one, Kept) else one for version, one in versions.items()}
        return cls(served, tuple(one for one in versions.values() if isinstance(one, Kept)))

    def discard(self) -> None:
        """Close what was made; what is kept belongs to the load before."""
        kept = {id(one.served) for one in self.kept}
        for served in self.versions.values():
            if id(served) not in kept:
                served.close()
        for one in self.kept:
            one.discard()

    def commit(self) -> None:
        """Change what is kept as the new load asks."""
        for one in self.kept:
            one.commit()
        self.on_commit()


def merged_config(complete: ModelConfig, config: ModelConfig, gpus: Sequence[int]) -> ModelConfig:
    """``complete`` with what may be new in ``config``, complete again."""
    merged = copy(complete)
    for name in _NOT_SHARED:
        merged.ClearField(name)
    if config.HasField("version_policy"):
        merged.version_policy.CopyFrom(config.version_policy)
    if config.HasField("model_repository_agents"):
        merged.model_repository_agents.CopyFrom(config.model_repository_agents)
    merged.instance_group.extend(config.instance_group)
    return normalize(merged, gpus=gpus)
