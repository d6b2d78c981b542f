"""What someone may have meant by a name that does not exist."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from typing import Final

_CLOSE: Final = 0.7
_AS_CLOSE: Final = 0.06
"""By how much a name may be less like the one asked for than the closest, and still be what was meant."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x' or 'y'?"`` for the names of ``known`` closest to ``name``, or nothing if none is close."""
    matches = get_close_matches(name, list(known), n=3, cutoff=_CLOSE)
    if not matches:
        return ""
    likeness = [SequenceMatcher(None, match, name).ratio() for match in matches]
    meant = [f"'{match}'" for match, ratio in zip(matches, likeness, strict=True) if ratio >= likeness[0] - _AS_CLOSE]
    return f"; did you mean {' or '.join(meant)}?"
