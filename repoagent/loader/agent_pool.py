"""One object per agent in use, shared by all models that name it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from repoagent.api.agent import Agent
from repoagent.errors import AgentError, AgentRefusedError
from repoagent.loader.agent_calls import call_agent
from repoagent.loader.candidates import LoadedAgent


@dataclass(slots=True)
class _Slot:
    """The place of one name. ``lock`` is held while the agent initialises or finalises, so others wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    agent: Agent | None = None
    users: int = 0
    failures: int = 0
    error: AgentError | None = None


class AgentPool:
    """Counts the users of every agent: the first makes and initialises the object, the last finalises it.

    ``load`` gives the class (or object) for a name and may raise ``AgentError``. Safe to use from any thread;
    different names do not wait for each other.
    """

    def __init__(self, load: Callable[[str], LoadedAgent]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}

    def acquire(self, name: str) -> Agent:
        """Return the agent called ``name`` for one more user; pair it with :meth:`release`.

        Raises:
            AgentError: it cannot be found, imported, made or initialised. Everybody who waited for that attempt gets
                this error too; a later call tries again.
        """
        slot = self._slot(name)
        failures = slot.failures
        with slot.lock:
            if slot.agent is None:
                if slot.error is not None and slot.failures != failures:
                    raise type(slot.error)(name, slot.error.reason) from slot.error
                slot.agent = self._start(name, slot)
            slot.users += 1
            return slot.agent

    def find(self, name: str) -> LoadedAgent:
        """The class, or the object, of the agent called ``name``; nothing is made or initialised.

        Raises:
            AgentError: it cannot be found or imported.
        """
        return self._load(name)

    def release(self, name: str) -> None:
        """One user less; the last one finalises the agent.

        Raises:
            AgentRefusedError: ``finalize`` raised. The agent is gone all the same.
        """
        slot = self._slot(name)
        with slot.lock:
            slot.users -= 1
            if slot.users > 0 or slot.agent is None:
                return
            agent, slot.agent = slot.agent, None
            call_agent(name, "finalize", agent.finalize)

    def in_use(self) -> dict[str, int]:
        """How many users each agent has that is alive now."""
        with self._lock:
            return {name: slot.users for name, slot in sorted(self._slots.items()) if slot.users > 0}

    def _slot(self, name: str) -> _Slot:
        with self._lock:
            return self._slots.setdefault(name, _Slot())

    def _start(self, name: str, slot: _Slot) -> Agent:
        try:
            agent = self._make(name)
            slot.error = None
        except AgentError as error:
            slot.error = error
            slot.failures += 1
            raise
        return agent

    def _make(self, name: str) -> Agent:
        found = self._load(name)
        agent = found if isinstance(found, Agent) else _construct(name, found)
        try:
            call_agent(name, "initialize", agent.initialize, refuses=True)
        except AgentRefusedError:
            self._finalize_quietly(name, agent)
            raise
        return agent

    @staticmethod
    def _finalize_quietly(name: str, agent: Agent) -> None:
        """After a failed ``initialize``: the failure is what counts, a second one is only logged."""
        try:
            call_agent(name, "finalize", agent.finalize)
        except AgentRefusedError:
            return


def _construct(name: str, kind: type[Agent]) -> Agent:
    made: list[Agent] = []
    call_agent(name, "its constructor", lambda: made.append(kind()), refuses=True)
    return made[0]
