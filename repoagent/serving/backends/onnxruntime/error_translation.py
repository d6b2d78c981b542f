"""Exceptions of ONNX Runtime as errors of ours."""

import re
from typing import Final

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError

__all__ = ["translate"]

_PATTERN: Final = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)$", re.DOTALL)


def translate(error: Exception, name: str = "") -> RepoAgentError:
    """The error to raise for what ONNX Runtime raised; texts as Triton's backend words them.

    ``name`` is the file in the model that could not be read, if it was reading one.
    """
    if isinstance(error, RepoAgentError):
        return error
    where = f"'{name}': " if name else ""
    match = _PATTERN.match(str(error))
    if match:
        return InternalError(f"onnx runtime error {match[1]}: {where}{match[2].strip()}")
    if isinstance(error, ValueError):  # A missing input, or an element that is not text.
        return InvalidArgumentError(f"onnx runtime error: {where}{error}")
    return InternalError(f"onnx runtime error: {where}{type(error).__name__}: {error}")
