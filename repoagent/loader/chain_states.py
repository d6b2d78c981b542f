"""The life of one entry of a chain (and of the chain as a whole): the states, and which may follow which."""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from repoagent.api.actions import Action
from repoagent.errors import InvalidTransitionError


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
        """Where it stands."""
        return self._state

    def may(self, to: State) -> bool:
        """Whether ``to`` may come next."""
        return to in TRANSITIONS[self._state]

    def advance(self, to: State) -> None:
        """Go on to ``to``.

        Raises:
            InvalidTransitionError: ``to`` may not follow; nothing changed.
        """
        if not self.may(to):
            raise InvalidTransitionError(
                f"{self._subject}: unexpected lifecycle state transition from {self._state.value} to {to.value}"
            )
        self._state = to
