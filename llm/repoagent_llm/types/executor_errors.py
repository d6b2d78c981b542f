"""Errors of the executor. Each is a ``RuntimeError``, as callers of TensorRT-LLM's bindings expect."""

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


def text_of(error: BaseException) -> str:
    """The text of an exception, which may come from anyone's code; its name where the text is empty."""
    try:
        return str(error) or type(error).__name__
    except Exception:
        return type(error).__name__
