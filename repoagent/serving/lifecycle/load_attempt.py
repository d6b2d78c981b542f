"""One load of one model: its agents run, its versions are built, and a failure is noted in its states."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from repoagent.audit import AuditError
from repoagent.errors import (
    InternalError,
    NotFoundError,
    RepoAgentError,
    StoreUnavailableError,
    UnavailableError,
    causes,
)
from repoagent.serving.ensembles.plan import is_ensemble
from repoagent.serving.instances.instance import as_repoagent_error
from repoagent.serving.lifecycle.load_request import LoadRequest, PendingLoad
from repoagent.serving.lifecycle.loaded_model import LoadedModel, Origin
from repoagent.serving.lifecycle.model_states import UNLOADED, ModelState, SlotStates
from repoagent.serving.lifecycle.slot_context import SlotContext
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.model_builder import BuildError
from repoagent.serving.versions.reuse import Built, Present
from repoagent.serving.versions.version_contents import contents_of

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.load_context import Progress
    from repoagent.storage import ModelSource


class LoadAttempt:
    """Makes what takes the place of ``current``, which goes on serving meanwhile. Used once, on one thread.

    ``on_failure`` gets the report of a load that fails, before the states show that.
    """

    def __init__(
        self,
        model: ModelId,
        context: SlotContext,
        states: SlotStates,
        current: LoadedModel | None,
        order: LoadRequest,
        pending: PendingLoad,
        on_failure: "Callable[[LoadReport | None], None]",
    ) -> None:
        self._id = model
        self._name: str = model
        self._context = context
        self._states = states
        self._current = current
        self._order = order
        self._pending = pending
        self._on_failure = on_failure
        self.composed: bool | None = None
        """Whether the model is an ensemble; None as long as that is not known."""

    def run(self, source: "ModelSource", key: object) -> tuple[LoadedModel, Built]:
        """The model that ``source`` has, ready to take the place of the present one.

        Raises:
            RepoAgentError: it cannot be loaded; its agents have been called to the end.
        """
        order, pending = self._order, self._pending
        if self._current is None:
            self._states.start_loading()
        elif order.version is not None and order.version not in self._current.versions:
            self._states.move(order.version, ModelState.LOADING)
        try:
            chain = self._context.run_chain(source, order.config, pending.cancelled, self._note_progress)
        except RepoAgentError as error:
            self._on_failure(error.report)
            raise self._refused(error) from error
        finally:
            self._states.progress = ""
        try:
            model, built = self._build(chain, key)
            _attest(chain, built)
        except Exception as error:
            chain.fail(error)
            self._on_failure(chain.report)
            failure = self._failed(error)
            raise failure from (error if failure is not error else error.__cause__)
        return model, built

    def _build(self, chain: "LoadedChain", key: object) -> tuple[LoadedModel, Built]:
        order, current, builder = self._order, self._current, self._context.builder
        config = builder.configuration(self._id.name, chain.config)
        self.composed = is_ensemble(config)
        versions = builder.plan(self._id, config, chain.files, order.pinned)
        if order.version is not None and order.version not in versions:
            raise BuildError(self._name, {order.version: "there is no such version directory"})
        if current is None:
            for version in versions:
                self._states.move(version, ModelState.LOADING)
        present = Present(current.versions if current is not None else {}, contents_of(chain))
        cancelled = self._pending.cancelled.is_set
        built = builder.build(self._id, config, chain.files, versions, cancelled, present)
        if cancelled():
            built.discard()
            raise self._pending.outdated(self._name)
        origin = Origin(order.config, order.files is not None, order.pinned)
        return LoadedModel(chain, built.versions, key, origin), built

    def _note_progress(self, progress: "Progress") -> None:
        self._states.progress = progress.summary

    def _refused(self, error: RepoAgentError) -> RepoAgentError:
        """The error for a load that ended before its backend, after noting the state."""
        pending = self._pending
        reason = pending.reason if pending.cancelled.is_set() else str(error)
        if self._current is None:
            self._states.move(None, ModelState.UNAVAILABLE, reason)
        else:
            self._states.fail({}, reason)  # a version beside those that are loaded
        if pending.cancelled.is_set():
            return pending.outdated(self._name)
        return error if isinstance(error, AuditError) else poll_failure(self._name, error)

    def _failed(self, error: Exception) -> RepoAgentError:
        """The error for a load that ended after its agents, after noting the states."""
        pending = self._pending
        failure = as_repoagent_error(error, self._name)
        reasons = failure.reasons if isinstance(failure, BuildError) else {}
        general = failure.reason if isinstance(failure, BuildError) else str(failure)
        # Of several versions the good ones go because of the bad ones: nothing is wrong with them.
        others = pending.reason if pending.cancelled.is_set() else UNLOADED if reasons else general
        self._states.fail(reasons, others)
        if pending.cancelled.is_set():
            return pending.outdated(self._name)
        return failure if isinstance(failure, BuildError | AuditError) else poll_failure(self._name, failure)


class MissingError(InternalError, NotFoundError):
    """A load for which the model, a file or a key does not exist: of Triton's code, and a NotFoundError to a caller."""


def poll_failure(name: str, error: RepoAgentError) -> RepoAgentError:
    """The error of a load whose files, or whose agents, are to blame: in Triton's words."""
    missing = any(isinstance(cause, NotFoundError) for cause in causes(error))
    later = any(isinstance(cause, StoreUnavailableError) for cause in causes(error))
    kind = MissingError if missing else UnavailableError if later else InternalError
    return kind(f"failed to load '{name}', failed to poll from model repository: {error}")


def _attest(chain: "LoadedChain", built: Built) -> None:
    """Sign and record that the model is about to serve; what was built goes if that must be, and cannot be done."""
    try:
        chain.attest(sorted(built.versions))
    except Exception:
        built.discard()
        raise
