"""Calling an agent's code: whatever it raises becomes one error that names the agent, logged once."""

import inspect
import logging
import os
import re
from collections.abc import Callable
from subprocess import SubprocessError
from typing import Final

from repoagent.errors import AgentRefusedError, CancelledError, InvalidArgumentError, RepoAgentError

logger = logging.getLogger("repoagent.loader")


_PATH: Final = re.compile(r"(?:^|[\s'\"(\[=:])/[^\s/]")
_LONGEST_REASON: Final = 4000
"""Characters of an exception's text that are passed on: it goes into replies, the index, reports and logs."""


def reason_of(error: BaseException) -> str:
    """What a client may read of an exception: its text, or the name of its class if it has no text.

    Of an error that no one worded for clients, such as one of the system, it has no path of this machine.
    """
    name, text = type(error).__name__, _text(error)
    if len(text) > _LONGEST_REASON:
        text = f"{text[:_LONGEST_REASON]} ... (cut)"
    # The text of a KeyError is the key, that of a SystemExit a number.
    bare = isinstance(error, KeyError) and not isinstance(error, RepoAgentError)
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
