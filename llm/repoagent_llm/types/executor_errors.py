"""Errors of the executor. Each is a ``RuntimeError``, as callers of TensorRT-LLM's bindings expect."""

import reprlib
from typing import Final

from repoagent.errors import (
    ConfigError,
    InternalError,
    InvalidArgumentError,
    OverloadedError,
    UnavailableError,
    UnsupportedError,
)


class CheckError(InvalidArgumentError, RuntimeError):
    """A value breaks a rule of its class; the text names the field and what it must be."""


class DecoderError(ConfigError, RuntimeError):
    """A folder or an engine buffer is not a decoder that a runner can load. The text names what is wrong, and where."""


class EngineError(InternalError, RuntimeError):
    """The engine or a runner failed. The text names the step."""


class ExecutorStoppedError(UnavailableError, RuntimeError):
    """The executor was shut down; the call can never succeed."""


class QueueFullError(OverloadedError, RuntimeError):
    """The queue limit is reached; the call may succeed later."""


class UnsupportedFeatureError(UnsupportedError, RuntimeError):
    """The feature exists as an object, but no runner here can serve it."""

    def __init__(self, feature: str, reason: str = "no runner here implements it") -> None:
        self.feature = feature
        super().__init__(f"{feature} is not supported: {reason}")


_SHOWN: Final = 60
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = _SHOWN


def shown(value: object) -> str:
    """``value`` for an error text, which must not grow with what a client or a file has, nor be made of all of it."""
    text = _SHORT.repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def text_of(error: BaseException) -> str:
    """The text of an exception, which may come from anyone's code; its name where the text is empty."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
