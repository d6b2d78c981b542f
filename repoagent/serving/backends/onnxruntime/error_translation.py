"""Exceptions of ONNX Runtime as errors of ours."""

import re
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError

__all__ = ["translate"]

_PATTERN: Final = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)$", re.DOTALL)


def translate(error: Exception) -> RepoAgentError:
    """The error to raise for what ONNX Runtime raised; texts as Triton's backend words them."""
    if isinstance(error, RepoAgentError):
        return error
    match = _PATTERN.match(str(error))
    if match:
        return InternalError(f"onnx runtime error {match[1]}: {match[2].strip()}")
    if isinstance(error, ValueError):  # A missing input, or an element that is no text.
        return InvalidArgumentError(f"onnx runtime error: {error}")
    return InternalError(f"onnx runtime error: {type(error).__name__}: {error}")
