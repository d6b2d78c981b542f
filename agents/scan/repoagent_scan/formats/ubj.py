"""XGBoost's models in Universal Binary JSON: numbers, texts, lists and objects, and nothing that runs."""

from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.format import MalformedError

_SIZES: Final = {ord(mark): size for mark, size in {"i": 1, "U": 1, "I": 2, "l": 4, "L": 8, "d": 4, "D": 8}.items()}
_CONSTANTS: Final = frozenset(b"TFZ")
_DEEPEST: Final = 32
_MOST_VALUES: Final = 1 << 24
_KEYS: Final = (b"learner", b"version")


def is_ubj(data: Buffer) -> bool:
    """Whether ``data`` begins as XGBoost's files do: an object whose first member is one of theirs."""
    head = data[:32]
    return head[:1] == b"{" and any(
        head[1:2] == mark and head[2 : 2 + size] == len(key).to_bytes(size, "big") and head[2 + size :].startswith(key)
        for mark, size in ((b"L", 8), (b"l", 4), (b"I", 2), (b"U", 1), (b"i", 1))
        for key in _KEYS
    )


def check_ubj(data: Buffer) -> None:
    """Check that ``data`` is one object from its begin to its end.

    Raises:
        MalformedError: it is not, is nested too deeply, or has more values than are looked at.
    """
    walk = _Walk(data)
    try:
        walk.run()
    except (IndexError, KeyError):
        raise MalformedError(f"it begins as a model of XGBoost, and byte {walk.place} is of none") from None
    if walk.place != len(data):
        raise MalformedError(f"{len(data) - walk.place} bytes follow the model of XGBoost")


class _Walk:
    """Goes over the values without keeping them; ``open`` has what is left to close."""

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self.place = 0

    def run(self) -> None:
        """Go to the end of the first value.

        Raises:
            IndexError, KeyError: it has none.
        """
        # For each open list or object: whether it is an object, and how many values are left, or None up to its end.
        open_: list[tuple[bool, int | None]] = [(False, 1)]
        for _ in range(_MOST_VALUES):
            while open_ and self._ended(*open_[-1]):
                open_.pop()
            if not open_:
                return
            is_object, left = open_[-1]
            open_[-1] = (is_object, None if left is None else left - 1)
            if is_object:
                self._skip(self._size())
            self._value(open_)
            if len(open_) > _DEEPEST:
                break
        raise MalformedError(f"it has over {_MOST_VALUES} values, or more than {_DEEPEST} in one another")

    def _ended(self, is_object: bool, left: int | None) -> bool:
        if left is not None:
            return left == 0
        if self._data[self.place] != (b"}" if is_object else b"]")[0]:
            return False
        self.place += 1
        return True

    def _value(self, open_: list[tuple[bool, int | None]]) -> None:
        mark = self._byte()
        if mark in _SIZES:
            self._skip(_SIZES[mark])
        elif mark == ord("S"):
            self._skip(self._size())
        elif mark == ord("{"):
            open_.append((True, None))
        elif mark == ord("["):
            self._list(open_)
        elif mark not in _CONSTANTS:
            raise KeyError(mark)

    def _list(self, open_: list[tuple[bool, int | None]]) -> None:
        if self._data[self.place] == ord("$"):
            self.place += 1
            each = _SIZES[self._byte()]
            if self._byte() != ord("#"):
                raise KeyError
            self._skip(each * self._size())
        elif self._data[self.place] == ord("#"):
            self.place += 1
            open_.append((False, self._size()))
        else:
            open_.append((False, None))

    def _byte(self) -> int:
        self.place += 1
        return self._data[self.place - 1]

    def _size(self) -> int:
        width = _SIZES[self._byte()]
        if self._data[self.place - 1] in b"dD":
            raise KeyError
        start = self.place
        self._skip(width)
        return int.from_bytes(self._data[start : self.place], "big")

    def _skip(self, count: int) -> None:
        if count > len(self._data) - self.place:
            raise IndexError(count)
        self.place += count
