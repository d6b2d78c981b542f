"""Calling an agent's code: whatever it raises becomes one error that names the agent, logged once."""

import logging
from collections.abc import Callable

from repoagent.errors import AgentRefusedError, CancelledError, RepoAgentError

__all__ = ["call_agent", "reason_of"]

logger = logging.getLogger("repoagent.loader")


def reason_of(error: BaseException) -> str:
    """What a client may read of an exception: its text, or the name of its class if it has none."""
    return str(error) or type(error).__name__


def call_agent(agent: str, what: str, call: Callable[[], object], cancelled: Callable[[], bool] | None = None) -> None:
    """Run ``call``, a piece of the code of ``agent``; ``what`` says which for the log.

    Also an exception that is meant to end the program (``SystemExit``, ``KeyboardInterrupt``) ends only this call:
    an agent decides about a model, never about the server.

    Raises:
        AgentRefusedError: it raised. The error has only the text; the log has the traceback, too, if the exception is
            not one of ours.
        CancelledError: it raised this because ``cancelled`` says that nobody waits any more.
    """
    try:
        call()
    except BaseException as error:
        if isinstance(error, CancelledError) and cancelled is not None and cancelled():
            raise
        # What an agent says on purpose needs no traceback; what surprised it does.
        surprise = error if not isinstance(error, RepoAgentError) else None
        logger.error("agent '%s' raised in %s: %s", agent, what, reason_of(error), exc_info=surprise)
        raise AgentRefusedError(agent, reason_of(error)) from error
