"""How much of the same a test does: ``make soak`` has all of it done, other runs as much as shows the same."""

import os
from typing import Final, TypeVar

IN_FULL: Final = os.environ.get("REPOAGENT_TESTS_IN_FULL") == "1"

_T = TypeVar("_T")


def in_full(everything: _T, *, otherwise: _T) -> _T:
    """``everything`` where the environment has ``REPOAGENT_TESTS_IN_FULL=1``, as in ``make soak``."""
    return everything if IN_FULL else otherwise
