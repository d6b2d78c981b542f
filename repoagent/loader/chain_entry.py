"""One entry of a chain: an agent, its view of the model, and how far its life has come."""

import enum
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

from repoagent.api.agent import Agent
from repoagent.api.hooks import ActionEvent
from repoagent.api.report import Action
from repoagent.errors import AgentError, AgentRefusedError, CancelledError, InvalidTransitionError
from repoagent.loader.agent_model import EntryModel
from repoagent.loader.agent_pool import AgentPool, call_agent, reason_of
from repoagent.loader.load_context import LoadContext
from repoagent.loader.plan import PlannedAgent
from repoagent.loader.report import EntryRecorder
from repoagent.loader.shared_read import SharedRead
from repoagent.storage.repositories.sources import ModelSource


class State(enum.Enum):
    """What an entry was last called with."""

    NEW = "NEW"
    INITIALIZED = "INITIALIZED"
    LOAD = "LOAD"
    LOAD_COMPLETE = "LOAD_COMPLETE"
    LOAD_FAIL = "LOAD_FAIL"
    UNLOAD = "UNLOAD"
    UNLOAD_COMPLETE = "UNLOAD_COMPLETE"
    FINALIZED = "FINALIZED"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.NEW: frozenset({State.INITIALIZED}),
        # FINALIZED without LOAD: model_initialize raised, or the load was given up before this entry's turn.
        State.INITIALIZED: frozenset({State.LOAD, State.FINALIZED}),
        State.LOAD: frozenset({State.LOAD_COMPLETE, State.LOAD_FAIL}),
        State.LOAD_COMPLETE: frozenset({State.UNLOAD}),
        State.LOAD_FAIL: frozenset({State.FINALIZED}),
        State.UNLOAD: frozenset({State.UNLOAD_COMPLETE}),
        State.UNLOAD_COMPLETE: frozenset({State.FINALIZED}),
        State.FINALIZED: frozenset(),
    }
)

STATE_OF_ACTION: Final[Mapping[Action, State]] = MappingProxyType({action: State[action.name] for action in Action})


class Lifecycle:
    """The current state of ``subject`` (a text for messages). Not locked: its owner is."""

    __slots__ = ("_state", "_subject")

    def __init__(self, subject: str, state: State = State.NEW) -> None:
        self._subject = subject
        self._state = state

    @property
    def state(self) -> State:
        return self._state

    def may(self, to: State) -> bool:
        """Whether ``to`` may come next."""
        return to in TRANSITIONS[self._state]

    def advance(self, to: State) -> None:
        """Go on to ``to``; raises ``InvalidTransitionError``, and changes nothing, if it may not follow."""
        if not self.may(to):
            raise InvalidTransitionError(
                f"{self._subject}: unexpected lifecycle state transition from {self._state.value} to {to.value}"
            )
        self._state = to


logger = logging.getLogger("repoagent.loader")


class ChainEntry:
    """Calls one agent for one load, of whose object it owns a share in ``pool`` until :meth:`close`. Every call goes
    through the state machine, so none can come out of order."""

    def __init__(
        self,
        index: int,
        planned: PlannedAgent,
        agent: Agent,
        pool: AgentPool,
        load: LoadContext,
        recorder: EntryRecorder,
    ) -> None:
        self._index = index
        self._name = planned.name
        self._agent = agent
        self._pool = pool
        self._load = load
        self._recorder = recorder
        self._life = Lifecycle(f"agent '{planned.name}' of model '{load.name}'")
        self._model = EntryModel(load, index, planned, recorder)

    def share(self, *, judges: SharedRead | None = None, reads: SharedRead | None = None) -> None:
        """This entry judges what the next one reads, or reads for the one before."""
        self._model.judges, self._model.reads = judges, reads

    def initialize(self) -> None:
        """Call ``model_initialize``; raises what the agent raised."""
        self._life.advance(State.INITIALIZED)
        with measured(self._recorder, "MODEL_INITIALIZE", only_failures=True):
            call = partial(self._agent.model_initialize, self._model)
            call_agent(self._name, self._named("model_initialize"), call, self._is_cancelled, refuses=True)

    def load(self) -> None:
        """Call ``LOAD``, and raise if the agent refuses the model. After it the model may :meth:`hand_on`."""
        self._act(Action.LOAD)

    def hand_on(self) -> None:
        """Let the model go on from where the agent moved it; raises if the configuration there cannot be read."""
        self._model.hand_on()

    def may(self, action: Action) -> bool:
        """Whether ``action`` may come next."""
        return self._life.may(STATE_OF_ACTION[action])

    def tell(self, action: Action) -> None:
        """Call one of the actions after ``LOAD``. An agent that raises is logged and reported, and stops nothing."""
        try:
            self._act(action)
        except AgentRefusedError as error:
            logger.debug("%s of model '%s' goes on to the other agents: %s", action.name, self._load.name, error)

    def relocate(self, former: ModelSource) -> None:
        self._model.relocate(former)

    def close(self) -> None:
        """Call ``model_finalize`` and give the agent back, which may finalise it. What they raise is only reported."""
        self._life.advance(State.FINALIZED)
        self._model.action, self._model.over = None, True
        try:
            with measured(self._recorder, "MODEL_FINALIZE", only_failures=True):
                call = partial(self._agent.model_finalize, self._model)
                call_agent(self._name, self._named("model_finalize"), call, self._is_cancelled)
        except AgentRefusedError as error:
            logger.debug("model_finalize stops nothing: %s", error)
        finally:
            _release(self._pool, self._name, self._recorder)

    def _act(self, action: Action) -> None:
        self._life.advance(STATE_OF_ACTION[action])
        self._model.action = action
        result = Measured()
        try:
            with measured(self._recorder, action.name) as result:
                call = partial(self._agent.model_action, self._model, action)
                refuses = action is Action.LOAD
                call_agent(self._name, self._named(action.name), call, self._is_cancelled, refuses=refuses)
        finally:
            self._load.services.notify(
                "action_finished",
                ActionEvent(self._load.name, self._name, self._index, action, result.seconds, result.error),
            )

    def _named(self, what: str) -> str:
        return f"{what} of model '{self._load.name}'"

    def _is_cancelled(self) -> bool:
        return self._load.cancelled


def open_entry(
    index: int,
    planned: PlannedAgent,
    pool: AgentPool,
    load: LoadContext,
    recorder: EntryRecorder,
    *,
    shared: bool = False,
) -> ChainEntry:
    """Take the agent from ``pool``; a guard, and what the policy demands, sees a copy that no one else can reach.

    Not so where a read is ``shared``: what the guard judges and what goes on are the same bytes then.
    """
    with measured(recorder, "INITIALIZE", only_failures=True):
        agent = pool.acquire(planned.name)
    try:
        if (agent.guard or planned.origin == "policy") and not shared:
            _isolate(load, recorder, hashed=agent.compares_digests, agent=planned.name)
    except BaseException:
        _release(pool, planned.name, recorder)
        raise
    return ChainEntry(index, planned, agent, pool, load, recorder)


def _isolate(load: LoadContext, recorder: EntryRecorder, *, hashed: bool, agent: str) -> None:
    started = time.monotonic()
    with measured(recorder, "SNAPSHOT", only_failures=True):
        copied = load.isolate(hashed=hashed, agent=agent)
    if copied is not None:
        recorder.add(0, 0, None, f"private snapshot in {time.monotonic() - started:.3f} s, {copied} bytes")


def _release(pool: AgentPool, name: str, recorder: EntryRecorder) -> None:
    try:
        with measured(recorder, "FINALIZE", only_failures=True):
            pool.release(name)
    except AgentRefusedError as error:
        logger.debug("the agent is gone all the same: %s", error)


@dataclass(slots=True)
class Measured:
    """How a call went; complete when its block has been left."""

    seconds: float = 0.0
    outcome: str = "ok"
    error: str | None = None


@contextmanager
def measured(recorder: EntryRecorder, action: str, *, only_failures: bool = False) -> Iterator[Measured]:
    """Time a block and add the line for ``action``; with ``only_failures`` only if the block raises."""
    result = Measured()
    started = time.monotonic()
    try:
        yield result
    except BaseException as error:
        result.outcome = "cancelled" if isinstance(error, CancelledError) else "failed"
        result.error = error.reason if isinstance(error, AgentError) else reason_of(error)
        raise
    finally:
        result.seconds = time.monotonic() - started
        if result.error is not None or not only_failures:
            recorder.finish(action, result.outcome, result.seconds, result.error)
