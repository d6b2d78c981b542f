"""One load of one model: what is asked for, what all slots share, and how its agents run and its versions are built."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from repoagent.audit import NO_AUDIT, Audit, AuditError
from repoagent.config import ModelConfig
from repoagent.errors import (
    CancelledError,
    InternalError,
    NotFoundError,
    RepoAgentError,
    StoreUnavailableError,
    UnavailableError,
    UnsupportedError,
    causes,
    did_you_mean,
)
from repoagent.loader.chain import LoadedChain
from repoagent.loader.load_context import Progress
from repoagent.loader.loader import Loader
from repoagent.serving.ensembles.plan import Dependencies, is_ensemble
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.lifecycle.loaded_model import LoadedModel, Origin, Retirements
from repoagent.serving.lifecycle.model_states import UNLOADED, ModelState
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.model_builder import BuildError, ModelBuilder
from repoagent.serving.versions.reuse import Built, Present, contents_of
from repoagent.storage.paths.names import NAME_BYTES
from repoagent.storage.repositories.sources import MemorySource, ModelSource

if TYPE_CHECKING:
    from repoagent.serving.lifecycle.model_slot import ModelSlot


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
        """The same with all versions of the model ``name`` that it means beside what is loaded; ``UnsupportedError`` if
        the files of the others are not there any more."""
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


_FILE_PREFIX: Final = "file:"


@dataclass(frozen=True, slots=True)
class SlotContext:
    """What the slots of one server share."""

    repositories: RepositorySet
    loader: Loader
    builder: ModelBuilder
    dependencies: Dependencies
    retirements: Retirements
    changed: Callable[[str], None] = lambda _model: None
    """Notify the followers of a model that has been loaded, or has lost its members. Returns soon, never raises."""
    on_progress: Callable[[Progress], None] | None = None
    audit: Audit = NO_AUDIT

    def source(self, model: ModelId, order: LoadRequest) -> ModelSource:
        """Where the files of the model are; raises if no repository has the model, or several have."""
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


class LoadAttempt:
    """Makes what takes the place of what ``slot`` has loaded, which goes on serving meanwhile. Used once, on one
    thread. The slot gets the report of a load that fails before its states show that."""

    def __init__(self, slot: "ModelSlot", context: SlotContext, order: LoadRequest, pending: PendingLoad) -> None:
        self._slot = slot
        self._states = slot.states
        self._current = slot.loaded
        self._context = context
        self._order = order
        self._pending = pending

    def run(self, source: ModelSource, key: object) -> tuple[LoadedModel, Built]:
        """The model that ``source`` has, ready to take the place of the present one. If this raises, its agents have
        been called to the end."""
        order, pending = self._order, self._pending
        if self._current is None:
            self._states.start_loading()
        elif order.version is not None and order.version not in self._current.versions:
            self._states.move(order.version, ModelState.LOADING)
        try:
            cancelled, loader = pending.cancelled.is_set, self._context.loader
            chain = loader.load(source, override=order.config, cancelled=cancelled, on_progress=self._note_progress)
        except RepoAgentError as error:
            self._slot.report = error.report
            raise self._refused(error) from error
        finally:
            self._states.progress = ""
        try:
            model, built = self._build(chain, key)
            _attest(chain, built)
        except Exception as error:
            chain.fail(error)
            self._slot.report = chain.report
            failure = self._failed(error)
            raise failure from (error if failure is not error else error.__cause__)
        return model, built

    def _build(self, chain: LoadedChain, key: object) -> tuple[LoadedModel, Built]:
        order, current, builder, model = self._order, self._current, self._context.builder, self._slot.id
        config = builder.configuration(model.name, chain.config)
        self._slot.composed = is_ensemble(config)
        versions = builder.plan(model, config, chain.files, order.pinned)
        if order.version is not None and order.version not in versions:
            raise BuildError(self._slot.name, {order.version: "there is no such version directory"})
        if current is None:
            for version in versions:
                self._states.move(version, ModelState.LOADING)
        present = Present(current.versions if current is not None else {}, contents_of(chain))
        cancelled = self._pending.cancelled.is_set
        built = builder.build(model, config, chain.files, versions, cancelled, present)
        if cancelled():
            built.discard()
            raise self._pending.outdated(self._slot.name)
        origin = Origin(order.config, order.files is not None, order.pinned)
        return LoadedModel(chain, built.versions, key, origin), built

    def _note_progress(self, progress: Progress) -> None:
        self._states.progress = progress.summary
        if self._context.on_progress is not None:
            self._context.on_progress(progress)

    def _refused(self, error: RepoAgentError) -> RepoAgentError:
        """The error for a load that ended before its backend, after noting the state."""
        pending = self._pending
        reason = pending.reason if pending.cancelled.is_set() else str(error)
        if self._current is None:
            self._states.move(None, ModelState.UNAVAILABLE, reason)
        else:
            self._states.fail({}, reason)  # a version beside those that are loaded
        if pending.cancelled.is_set():
            return pending.outdated(self._slot.name)
        return error if isinstance(error, AuditError) else poll_failure(self._slot.name, error)

    def _failed(self, error: Exception) -> RepoAgentError:
        """The error for a load that ended after its agents, after noting the states."""
        pending = self._pending
        failure = as_repoagent_error(error, self._slot.name)
        reasons = failure.reasons if isinstance(failure, BuildError) else {}
        general = failure.reason if isinstance(failure, BuildError) else str(failure)
        # Of several versions the good ones go because of the bad ones: nothing is wrong with them.
        others = pending.reason if pending.cancelled.is_set() else UNLOADED if reasons else general
        self._states.fail(reasons, others)
        if pending.cancelled.is_set():
            return pending.outdated(self._slot.name)
        return failure if isinstance(failure, BuildError | AuditError) else poll_failure(self._slot.name, failure)


class MissingError(InternalError, NotFoundError):
    """A load for which the model, a file or a key does not exist: of Triton's code, and a NotFoundError to a caller."""


def poll_failure(name: str, error: RepoAgentError) -> RepoAgentError:
    """The error of a load whose files, or whose agents, are to blame: in Triton's words."""
    missing = any(isinstance(cause, NotFoundError) for cause in causes(error))
    later = any(isinstance(cause, StoreUnavailableError) for cause in causes(error))
    kind = MissingError if missing else UnavailableError if later else InternalError
    return kind(f"failed to load '{name}', failed to poll from model repository: {error}")


def _attest(chain: LoadedChain, built: Built) -> None:
    """Sign and record that the model is about to serve; what was built goes if that must be, and cannot be done."""
    try:
        chain.attest(sorted(built.versions))
    except Exception:
        built.discard()
        raise
    receipt = chain.attestation
    digest, in_answers = ("", False) if receipt is None else (f"sha256:{receipt.digest}", receipt.in_answers)
    for served in built.versions.values():  # of a version that serves on, the receipt of an earlier load goes
        served.show_receipt(digest, in_answers=in_answers)
