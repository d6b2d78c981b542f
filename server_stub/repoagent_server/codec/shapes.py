"""How many dimensions a tensor can have."""

from typing import Final

from repoagent.errors import InvalidArgumentError

__all__ = ["MAX_DIMENSIONS", "too_many_dimensions"]

MAX_DIMENSIONS: Final = 64
"""NumPy's. The product of thousands of large numbers takes longer than the request it came in."""


def too_many_dimensions(name: str, count: int) -> InvalidArgumentError:
    """The error for input ``name``."""
    return InvalidArgumentError(f"input '{name}' has {count} dimensions, and at most {MAX_DIMENSIONS} are possible")
