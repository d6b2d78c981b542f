"""What a client can have a right to, and what an operation of the server needs."""

import enum
from dataclasses import dataclass
from typing import Final


class Right(enum.StrEnum):
    """What the operator gives a client, for the models that patterns name. No right contains another one."""

    INFER = "infer"
    """Run a model."""
    METADATA = "metadata"
    """See that a model exists, and what it is: metadata, configuration, readiness, statistics, reports."""
    MANAGE = "manage"
    """Load and unload a model, and change how it is traced."""


class Scope(enum.Enum):
    """Which models a right must cover."""

    OPEN = "open"
    """None, and no key is needed."""
    KNOWN = "known"
    """None, but the client must be one of the access file."""
    MODEL = "model"
    """The model that the path, or the message, names."""
    BODY = "body"
    """The model that the body names. The front end only finds out who asks: the handler checks the right."""
    LISTED = "listed"
    """None: the answer leaves out the models that the client has no right for."""
    SERVER = "server"
    """All models: the operation is about the whole server."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a client needs for an operation."""

    scope: Scope
    right: Right | None = None
    unnamed: Scope | None = None
    """The scope of a request that could name a model and names none."""
    opened_by: str = ""
    """The entry of ``open`` in the access file that lets everybody in."""

    def scope_for(self, model: str) -> Scope:
        """The scope of a request about ``model``."""
        return self.scope if model or self.unnamed is None else self.unnamed


def for_model(right: Right, *, unnamed: Scope | None = None) -> Need:
    """``right`` for the model that a request names."""
    return Need(Scope.MODEL, right, unnamed)


def for_all(right: Right, *, opened_by: str = "") -> Need:
    """``right`` for all models."""
    return Need(Scope.SERVER, right, opened_by=opened_by)


def listed(right: Right) -> Need:
    """Nothing, as the answer shows only models that the client has ``right`` for."""
    return Need(Scope.LISTED, right)


OPEN: Final = Need(Scope.OPEN)
KNOWN: Final = Need(Scope.KNOWN)
