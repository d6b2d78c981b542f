"""What a client can have a right to, what an operation needs, and the errors of requests that are not let in."""

import enum
from dataclasses import dataclass
from typing import ClassVar, Final

from repoagent.errors import ErrorCode, RepoAgentError


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


_SHOWN: Final = 200
"""Characters of a model's name that are repeated to its sender."""
_REALM: Final = 'Bearer realm="repoagent"'


class Cause(enum.StrEnum):
    """Why, as metrics count it."""

    NO_KEY = "no_key"
    """It has no key, token or certificate."""
    INVALID_KEY = "invalid_key"
    """That belongs to no client, or not any more."""
    NO_RIGHT = "no_right"
    """The client lacks a right."""
    RESTRICTED = "restricted_part"
    """The header of a restricted part is missing."""
    FOREIGN = "foreign_page"
    """A page of another site sends it."""


class AccessError(RepoAgentError):
    """A client may not do what it asks for. Raised by the front ends alone."""

    code = ErrorCode.UNAVAILABLE
    """Of Triton's codes the one that it has for restricted parts; front ends use ``status`` and ``grpc_status``."""
    status: ClassVar[int]
    """Of HTTP."""
    grpc_status: ClassVar[int]
    cause: Cause
    reported: bool = False
    """Whether its observers know of it: one request is denied once, wherever that is noticed."""

    def __init__(self, message: str, *, client: str = "", right: str = "", model: str = "") -> None:
        super().__init__(message)
        self.client = client
        """Empty if the client is not known."""
        self.right = right
        self.model = model
        """As the client wrote it, shortened; empty where no model is named."""

    @property
    def challenge(self) -> str:
        """The value of ``WWW-Authenticate``; empty for none."""
        return ""


class NotAuthenticatedError(AccessError):
    """The request has no key, token or certificate of a client."""

    status = 401
    grpc_status = 16

    def __init__(self, message: str, *, given: bool = True) -> None:
        """``given``: there was one, and it is not valid."""
        super().__init__(message)
        self._given = given
        self.cause = Cause.INVALID_KEY if given else Cause.NO_KEY

    @property
    def challenge(self) -> str:
        return f'{_REALM}, error="invalid_token"' if self._given else _REALM


class NotPermittedError(AccessError):
    """The client is known, and lacks a right."""

    status = 403
    grpc_status = 7
    cause = Cause.NO_RIGHT

    @classmethod
    def lacks(cls, client: str, right: Right, model: str | None) -> "NotPermittedError":
        """``client`` lacks ``right`` for ``model``; None: for all models."""
        shown = "" if model is None else model if len(model) <= _SHOWN else f"{model[:_SHOWN]}..."
        what = 'all models (models = ["*"])' if model is None else f"model '{shown}'"
        text = f"client '{client}' lacks the right '{right}' for {what}; the operator gives it in the access file"
        return cls(text, client=client, right=right.value, model=shown)
