"""Cutting files into pieces that can be fetched at the same time, and again one by one when a read fails."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from repoagent.storage.repositories.fingerprint import FileEntry

__all__ = ["PART_SIZE", "Part", "parts_of"]

PART_SIZE: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``start`` to ``end`` (not included) of one file; ``end`` is None for a file that comes in one go."""

    entry: FileEntry
    start: int
    end: int | None


def parts_of(entries: Iterable[FileEntry], *, ranges: bool, part_size: int = PART_SIZE) -> Iterator[Part]:
    """The parts of all files; an empty file has none. Without ``ranges`` every file is one part with an open end."""
    for entry in entries:
        if not ranges or entry.size is None:
            yield Part(entry, 0, None)
            continue
        for start in range(0, entry.size, part_size):
            yield Part(entry, start, min(start + part_size, entry.size))
