"""The error for a guide that cannot be followed."""

from typing import Final

from repoagent.executor.types.errors import CheckError
from repoagent.executor.types.guidance import GuidedDecodingParams

__all__ = ["refusal"]

_LONGEST: Final = 400
"""Characters of what a compiler writes about a guide: it may repeat all of it."""


def refusal(kind: GuidedDecodingParams.GuideType, verb: str, reason: object) -> CheckError:
    """``verb``: what cannot be done with it, ``read`` or ``compiled``; ``reason``: in the words of the compiler."""
    text = str(reason)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return CheckError(f"the guide cannot be {verb} as {kind.name}: {text}")
