"""The values of a JSON array that is too long to be read in one go."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Values:
    """An array in pieces, each a list without lists in it. No one holds the interpreter for longer than one takes."""

    pieces: list[list[Any]] = field(default_factory=list)
    nested: bool = False
    """Whether it was written with arrays in it; only their values are here."""

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def add(self, piece: list[Any]) -> None:
        """Append values."""
        self.pieces.append(piece)

    def taken(self) -> Iterator[list[Any]]:
        """The pieces, each forgotten here once the next is asked for."""
        self.pieces.reverse()
        while self.pieces:
            yield self.pieces.pop()

    def __del__(self) -> None:
        """Of a request that is refused: ten million values freed in one go would keep the interpreter from others."""
        while self.pieces:
            self.pieces.pop()
