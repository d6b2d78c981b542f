"""Python objects that C knows by number."""

import itertools
from typing import Generic, TypeVar

from repoagent.errors import UnavailableError

Kind = TypeVar("Kind")


class Objects(Generic[Kind]):
    """Objects of one kind, each under a number that is never given again. Safe to use from any thread."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._numbers = itertools.count(1)
        self._objects: dict[int, Kind] = {}

    def add(self, item: Kind) -> int:
        """Keep ``item``; its number."""
        number = next(self._numbers)
        self._objects[number] = item
        return number

    def __getitem__(self, number: int) -> Kind:
        """The object with that number.

        Raises:
            UnavailableError: it was removed.
        """
        found = self._objects.get(number)
        if found is None:
            raise UnavailableError(f"the {self._what} has been deleted")
        return found

    def find(self, number: int) -> Kind | None:
        """The same, None if it was removed."""
        return self._objects.get(number)

    def remove(self, number: int) -> Kind | None:
        """Forget an object."""
        return self._objects.pop(number, None)

    def all(self) -> list[Kind]:
        """Every object."""
        return list(self._objects.values())
