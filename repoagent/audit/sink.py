"""What the loader, the core and the front ends record through. They know nothing of files."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts.

    ``by`` is "client", "operator" (flags, signals, the program that embeds the server), "poll", "on-demand", "idle" or
    "agent". ``client`` is the name that access control knows a client by, empty without access control. ``via`` is the
    protocol; ``request`` the id that the client gave its request; ``address`` where its connection comes from.
    ``manages`` states which models a client has the right to bring into service; None is any.
    """

    by: str
    client: str = ""
    via: str = ""
    request: str = ""
    address: str = ""
    manages: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, str]:
        """The fields that are not empty."""
        texts = {name: getattr(self, name) for name in ("by", "client", "via", "request", "address")}
        return {name: value for name, value in texts.items() if value}


OPERATOR: Final = Actor("operator")
_current: Final[ContextVar[Actor]] = ContextVar("repoagent_actor", default=OPERATOR)


def current_actor() -> Actor:
    """Who acts on this thread, or in this task; the operator unless someone else was named."""
    return _current.get()


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """What happens in the block is done by ``actor``."""
    token = _current.set(actor)
    try:
        yield
    finally:
        _current.reset(token)


What = Mapping[str, Any]
"""The details of an event: texts, whole numbers, booleans, None, and lists and mappings of these. Never a secret."""


class AuditError(UnavailableError):
    """An event that must be recorded cannot be: what it would have recorded does not happen."""


class Audit:
    """Takes events, and records none of them: a log does. ``event`` is what kind of thing happened, ``result`` how it
    went, ``actor`` who did it.

    Without an ``actor`` it is :func:`~repoagent.audit.sink.current_actor`. Every method may be called from any
    thread. One that is not overridden goes to ``record``, so that nothing is lost in a log that only has that.
    """

    def demand(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """Record what is about to happen; returns when the line is written.

        Raises:
            AuditError: the line cannot be written, and the operator wants nothing done without one.
        """
        self.record(event, result, what, actor)

    def record(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """Record what has happened; returns when the line is written, or was counted as lost. Never raises."""

    def note(self, event: str, result: str, what: What, actor: Actor | None = None) -> None:
        """Record soon, from another thread: for an event loop, and for what strangers can cause. Never waits."""
        self.record(event, result, what, actor)


NO_AUDIT: Final = Audit()
