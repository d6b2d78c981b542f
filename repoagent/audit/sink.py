"""What the loader, the core and the front ends record through. They know nothing of files."""

from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from repoagent.audit.actors import Actor
from repoagent.errors import UnavailableError

__all__ = ["NO_AUDIT", "Audit", "AuditError", "What"]

What = Mapping[str, Any]
"""The details of an event: texts, whole numbers, booleans, None, and lists and mappings of these. Never a secret."""


class AuditError(UnavailableError):
    """An event that must be recorded cannot be: what it would have recorded does not happen."""


@runtime_checkable
class Audit(Protocol):
    """Takes events. ``event`` is what kind of thing happened, ``result`` how it went, ``actor`` who did it.

    Without an ``actor`` it is :func:`~repoagent.audit.actors.current_actor`. Every method may be called from any
    thread.
    """

    def demand(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """Record what is about to happen; returns when the line is written.

        Raises:
            AuditError: the line cannot be written, and the operator wants nothing done without one.
        """

    def record(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """Record what has happened; returns when the line is written, or was counted as lost. Never raises."""

    def note(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """Record soon, from another thread: for an event loop, and for what strangers can cause. Never waits."""


class _NoAudit:
    """Records nothing."""

    def demand(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        pass

    def record(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        pass

    def note(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        pass


NO_AUDIT: Final[Audit] = _NoAudit()
