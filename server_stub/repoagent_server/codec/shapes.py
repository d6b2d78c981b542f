"""How many dimensions and elements a tensor can have."""

from typing import Final

from repoagent.errors import InvalidArgumentError

__all__ = ["MAX_DIMENSIONS", "MAX_ELEMENTS", "too_many_dimensions", "too_many_elements"]

MAX_DIMENSIONS: Final = 64
"""NumPy's. The product of thousands of large numbers takes longer than the request it came in."""

MAX_ELEMENTS: Final = 2**63 - 1


def too_many_dimensions(name: str, count: int) -> InvalidArgumentError:
    """The error for input ``name``."""
    return InvalidArgumentError(f"input '{name}' has {count} dimensions, and at most {MAX_DIMENSIONS} are possible")


def too_many_elements(name: str) -> InvalidArgumentError:
    """The error for input ``name``."""
    return InvalidArgumentError(f"the shape of input '{name}' has more elements than 64 bits can count")
