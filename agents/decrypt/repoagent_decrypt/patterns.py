"""Globs over the relative paths of a model's files."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError

__all__ = ["Patterns"]

_TOKEN: Final = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^]]*\]|.", re.DOTALL)
_MEMBER: Final = re.compile(r"(.)(?:-(.))?", re.DOTALL)
_WILD: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True, slots=True)
class Patterns:
    """Some globs; a path matches if one of them does.

    A glob without ``/`` is matched against the file's name at any depth, one with ``/`` against the whole path.
    ``*`` and ``?`` stop at ``/``, ``**/`` stands for any number of directories.
    """

    globs: tuple[str, ...]
    compiled: tuple[re.Pattern[str], ...]

    @classmethod
    def of(cls, globs: Iterable[str]) -> "Patterns":
        """Compile ``globs``.

        Raises:
            InvalidArgumentError: one is empty, absolute, has ``..`` in it, or a range such as ``[z-a]``.
        """
        kept = tuple(globs)
        return cls(kept, tuple(_compile(glob) for glob in kept))

    def match(self, path: str) -> bool:
        """Whether the relative ``path`` matches."""
        return any(pattern.fullmatch(path) for pattern in self.compiled)

    def __str__(self) -> str:
        return ", ".join(f"'{glob}'" for glob in self.globs)


def _compile(glob: str) -> re.Pattern[str]:
    parts = glob.split("/")
    if not glob or "" in parts or ".." in parts:
        raise InvalidArgumentError(f"the pattern '{glob}' must be a relative path inside the model, such as '1/*.age'")
    tokens = _TOKEN.findall(glob if "/" in glob else f"**/{glob}")
    try:
        return re.compile("".join(_WILD.get(token) or _literal(token) for token in tokens), re.DOTALL)
    except re.error:
        raise InvalidArgumentError(f"the pattern '{glob}' has a range in [...] that runs backwards") from None


def _literal(token: str) -> str:
    if len(token) < 3 or not token.startswith("["):
        return re.escape(token)
    negate = token.startswith("[!")
    members = _MEMBER.findall(token[2 if negate else 1 : -1])
    inner = "".join("-".join(re.escape(end) for end in member if end) for member in members)
    return f"(?!/)[{'^' if negate else ''}{inner}]"
