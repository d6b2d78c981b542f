"""Which directories of a model are versions."""

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["version_numbers"]

_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}")
_LARGEST: Final = 2**63 - 1


def version_numbers(directories: Iterable[str]) -> list[int]:
    """The versions among the names of a model's directories, ascending. Names with leading zeros are none."""
    numbers = (int(name) for name in directories if _VERSION.fullmatch(name))
    return sorted(number for number in numbers if number <= _LARGEST)
