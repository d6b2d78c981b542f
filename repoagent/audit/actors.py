"""Who acts: set where a request or a timer comes in, asked for where a line of the audit log is written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

__all__ = ["OPERATOR", "Actor", "acting_as", "current_actor"]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts.

    ``by`` is "client", "operator" (flags, signals, the program that embeds the server), "poll", "on-demand", "idle" or
    "agent". ``client`` is the name that access control knows a client by, empty without access control. ``via`` is the
    protocol; ``request`` the id that the client gave its request; ``address`` where its connection comes from.
    ``manages`` states for which models a client has the right to load them; None is any.
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
