"""Globs over the relative paths of a model's files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError

_TOKEN: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]|.", re.DOTALL)
_MEMBER: Final = re.compile(r"(.)(?:-(.))?", re.DOTALL)
_LONGEST: Final = 4096
"""Characters of a glob: no path is longer."""

_Token = str | re.Pattern[str]
"""``**/``, ``**``, ``*``, ``?``, a character, or a set of characters."""


@dataclass(frozen=True, slots=True)
class Patterns:
    """Some globs; a path matches if one of them does.

    A glob without ``/`` is matched against the file's name at any depth, one with ``/`` against the whole path.
    ``*`` and ``?`` stop at ``/``, ``**/`` stands for any number of directories.
    """

    globs: tuple[str, ...]
    tokens: tuple[tuple[_Token, ...], ...]

    @classmethod
    def of(cls, globs: Iterable[str]) -> "Patterns":
        """Take ``globs`` apart.

        Raises:
            InvalidArgumentError: one is empty, absolute, too long, has ``..`` in it, or a range such as ``[z-a]``.
        """
        kept = tuple(globs)
        return cls(kept, tuple(_tokens(glob) for glob in kept))

    def match(self, path: str) -> bool:
        """Whether the relative ``path`` matches."""
        text = _Text(path)
        return any(text.matches(tokens) for tokens in self.tokens)

    def __str__(self) -> str:
        return ", ".join(f"'{glob}'" for glob in self.globs)


def _tokens(glob: str) -> tuple[_Token, ...]:
    if len(glob) > _LONGEST:
        raise InvalidArgumentError(f"the pattern '{glob[:100]}...' has {len(glob)} characters, more than {_LONGEST}")
    parts = glob.split("/")
    if not glob or "" in parts or ".." in parts:
        raise InvalidArgumentError(f"the pattern '{glob}' must be a relative path inside the model, such as '1/*.age'")
    tokens = _TOKEN.findall(glob if "/" in glob else f"**/{glob}")
    try:
        return tuple(part for token in tokens for part in _parts(token))
    except re.error:
        raise InvalidArgumentError(f"the pattern '{glob}' has a range in [...] that runs backwards") from None


def _parts(token: str) -> Iterable[_Token]:
    if token.startswith("*"):
        return (token,)
    if len(token) < 3 or not token.startswith("["):
        return token
    negate = token.startswith("[!")
    members = _MEMBER.findall(token[2 if negate else 1 : -1])
    inner = "".join("-".join(re.escape(end) for end in member if end) for member in members)
    return (re.compile(f"[{'^' if negate else ''}{inner}]"),)


class _Text:
    """A path that globs are matched against, all ways of matching at once: an expression with several ``*`` would try
    one after the other, and a glob of a stranger has them take forever.

    Sets of places in the path are bits of a number: bit 0 before its first character, the last one behind its end.
    """

    def __init__(self, path: str) -> None:
        self._characters: dict[str, int] = {}
        for place, character in enumerate(path):
            self._characters[character] = self._characters.get(character, 0) | 1 << place
        self._end = 1 << len(path)
        self._slashes = self._characters.get("/", 0)
        self._others = (self._end - 1) ^ self._slashes

    def matches(self, tokens: Iterable[_Token]) -> bool:
        """Whether ``tokens`` match from the beginning to the end."""
        places = 1
        for token in tokens:
            places = self._behind(token, places)
            if not places:
                return False
        return bool(places & self._end)

    def _behind(self, token: _Token, places: int) -> int:
        """Where a match of ``token`` may end that begins at one of ``places``."""
        if not isinstance(token, str):
            found = (bits for one, bits in self._characters.items() if one != "/" and token.match(one))
            return (places & sum(found)) << 1
        from_the_first = -(places & -places)
        match token:
            case "**/":
                return places | (self._slashes & from_the_first) << 1
            case "**":
                return (2 * self._end - 1) & from_the_first
            case "*":
                # The sum carries each place to the end of its name.
                return places | (((places & self._others) + self._others) ^ self._others)
            case "?":
                return (places & self._others) << 1
            case _:
                return (places & self._characters.get(token, 0)) << 1
