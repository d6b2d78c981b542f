"""What a signer signed: the files of a model, or ranges of them, with their digests."""

from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError


class VerificationError(InvalidArgumentError):
    """The model is not what its signer signed, or the signer is not trusted. The text names the reason, in one line."""

    def __init__(self, message: str) -> None:
        """Escape what would begin a line or move a cursor: names of files are the owner's of the model."""
        super().__init__(printable(message))


def printable(text: str) -> str:
    """``text`` with every character escaped that a line of a terminal or a log cannot show."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


DEFAULT_IGNORED: Final = (".git", ".gitignore", ".gitattributes", ".github")
"""Names in the root of a model that no signature covers (specification, section 6.2)."""

DIGEST_SIZES: Final = {"sha256": 32, "blake2b": 64, "blake3": 32}
"""The algorithms of the specification's registry, and the bytes of their digests."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A file below the model's root, or the bytes from ``start`` to ``end`` of it, and their digest."""

    path: str
    digest: bytes
    start: int = 0
    end: int | None = None
    """None: the end of the file."""

    @property
    def whole(self) -> bool:
        """Whether it is a file, not a range."""
        return self.start == 0 and self.end is None

    @property
    def name(self) -> str:
        """As the statement names it."""
        if self.end is not None:
            return f"{self.path}:{self.start}:{self.end}"
        return f"{self.path}:{self.start}" if self.start else self.path


@dataclass(frozen=True, slots=True)
class Serialization:
    """How the signer enumerated and hashed the files."""

    hash_type: str = "sha256"
    shard_size: int | None = None
    """Bytes of a range; None: files are hashed whole."""
    numbered: bool = False
    """Ranges are ``PATH:shard-NUMBER``, as the specification has them, not ``PATH:START:END`` as the reference tool."""
    allow_symlinks: bool = False
    ignore_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A signed model: its ``name`` (informational), its resources in the order of the statement, its root digest."""

    name: str
    serialization: Serialization
    resources: tuple[Resource, ...]
    root_digest: str
    """Hexadecimal SHA-256 over the digests of the resources, in order; it identifies the model."""
