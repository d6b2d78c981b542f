"""What someone may have meant by a name that does not exist."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the name of ``known`` closest to ``name``, or nothing if none is close."""
    matches = get_close_matches(name, list(known), n=1)
    return f"; did you mean '{matches[0]}'?" if matches else ""
