"""Errors in OpenAI's form."""

from typing import Any, Final

from repoagent.errors import (
    ErrorCode,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    PromptTooLongError,
    RepoAgentError,
)
from repoagent_server.access import AccessError
from repoagent_server.shared.client_text import client_text

_STATUS: Final[dict[ErrorCode, int]] = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 400,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
}
_BUSY: Final = 429
_TYPES: Final[dict[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


_CODES: Final[dict[int, str]] = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


_LONGEST_FIELD: Final = 256
_LONGEST_TEXT: Final = 1024
"""Characters of names and texts of a client in an error, and in the log."""


class FieldError(InvalidArgumentError):
    """A field of the request makes no sense, or cannot be honoured."""

    def __init__(self, field: str, text: str, code: str = "invalid_value") -> None:
        super().__init__(f"'{field[:_LONGEST_FIELD]}' {text}"[:_LONGEST_TEXT])
        self.field = field[:_LONGEST_FIELD]
        self.openai_code = code


class ModelNotFoundError(NotFoundError):
    """The model that a request names is not there."""


def status_of(error: RepoAgentError) -> int:
    """The HTTP status of ``error``; a full queue is 429."""
    if isinstance(error, AccessError):
        return error.status
    return _BUSY if isinstance(error, OverloadedError) else _STATUS[error.code]


def error_object(error: RepoAgentError | str, status: int) -> dict[str, Any]:
    """What a response of ``status``, or an event, has of ``error``."""
    field = error.field if isinstance(error, FieldError) else None
    text = error if isinstance(error, str) else client_text(error)
    return {
        "error": {
            "message": text,
            "type": _TYPES.get(status, "server_error"),
            "param": field,
            "code": _code(error, status),
        }
    }


def _code(error: RepoAgentError | str, status: int) -> str | None:
    """OpenAI's own, where it has one."""
    if isinstance(error, FieldError):
        return error.openai_code
    if isinstance(error, ModelNotFoundError):
        return "model_not_found"
    if isinstance(error, PromptTooLongError):
        return "context_length_exceeded"
    return _CODES.get(status)
