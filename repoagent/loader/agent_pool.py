"""One object per agent in use, shared by all models that name it."""

import inspect
import logging
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from subprocess import SubprocessError
from typing import Final

from repoagent.api.agent import Agent
from repoagent.errors import AgentError, AgentRefusedError, CancelledError, InvalidArgumentError, RepoAgentError
from repoagent.loader.candidates import LoadedAgent

logger = logging.getLogger("repoagent.loader")


_PATH: Final = re.compile(r"(?:^|[\s'\"(\[=:])/[^\s/]")
_MISTAKES: Final = (ArithmeticError, AttributeError, LookupError, NameError, TypeError)
"""What code raises that is wrong, rather than refuses."""
_LONGEST_REASON: Final = 4000
"""Characters of an exception's text that are passed on: it goes into replies, the index, reports and logs."""


def reason_of(error: BaseException) -> str:
    """What a client may read of an exception: its text, or the name of its class if it has no text.

    Of an error that no one worded for clients, such as one of the system, it has no path of this machine.
    """
    name, text = type(error).__name__, _text(error)
    if len(text) > _LONGEST_REASON:
        text = f"{text[:_LONGEST_REASON]} ... (cut)"
    # Their texts are for who knows the class: a KeyError's is the key, a SystemExit's a number.
    bare = isinstance(error, _MISTAKES) and not isinstance(error, RepoAgentError)
    if text and (bare or not isinstance(error, Exception)):
        return f"{name}: {text}"
    return text or name


def _text(error: BaseException) -> str:
    if isinstance(error, RepoAgentError):
        return str(error)
    if isinstance(error, OSError) and error.strerror is not None:
        names = (os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes)))
        return ": ".join([error.strerror, *(name for name in names if not name.startswith("/"))])
    # With a path in its arguments: a command that failed, a module that cannot be imported.
    if isinstance(error, (OSError, ImportError, SubprocessError)) and _PATH.search(str(error)):
        return ""
    return str(error)


def call_agent(
    agent: str,
    what: str,
    call: Callable[[], object],
    cancelled: Callable[[], bool] | None = None,
    *,
    refuses: bool = False,
) -> None:
    """Run ``call``, a piece of the code of ``agent``; ``what`` states which for the log.

    Also an exception that is meant to end the program (``SystemExit``, ``KeyboardInterrupt``) ends only this call:
    an agent decides about a model, never about the server. A result is an error: who writes ``return False`` or
    ``async def`` means to refuse a model, and would have accepted it.

    A failure is logged here, unless it ``refuses`` a load on purpose: the end of that load logs it, once.

    Raises:
        AgentRefusedError: it raised, or returned something. The error has only the text; the log has the traceback,
            too, if the exception is not one of ours.
        CancelledError: it raised this because ``cancelled`` became true.
    """
    try:
        _check_nothing(call())
    except BaseException as error:
        if isinstance(error, CancelledError) and cancelled is not None and cancelled():
            raise
        # What an agent raises on purpose needs no traceback; what surprised it does.
        surprise = error if not isinstance(error, RepoAgentError) else None
        level = logging.DEBUG if refuses and surprise is None else logging.ERROR
        logger.log(level, "agent '%s' raised in %s: %s", agent, what, reason_of(error), exc_info=surprise)
        raise AgentRefusedError(agent, reason_of(error)) from error


def _check_nothing(returned: object) -> None:
    if returned is None:
        return
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns that no one awaited it
        raise InvalidArgumentError("the method is 'async def' and has not run; agents run on threads: write 'def'")
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise InvalidArgumentError("the method has a 'yield' and has not run")
    kind = type(returned).__name__
    raise InvalidArgumentError(
        f"the method returned an object of type {kind}; agents refuse models by raising, and return nothing"
    )


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

        Raises the ``AgentError`` of an attempt to everybody who waited for it; a later call tries again.
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
        """The class, or the object, of the agent called ``name``, or ``AgentError``; nothing is made or initialised."""
        return self._load(name)

    def release(self, name: str) -> None:
        """One user less; the last one finalises the agent, which is gone even if that raises ``AgentRefusedError``."""
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
            with suppress(AgentRefusedError):  # it is logged; the first failure is what counts
                call_agent(name, "finalize", agent.finalize)
            raise
        return agent


def _construct(name: str, kind: type[Agent]) -> Agent:
    made: list[Agent] = []
    call_agent(name, "its constructor", lambda: made.append(kind()), refuses=True)
    return made[0]
