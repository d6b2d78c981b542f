"""Decrypt a whole tree with a set of keys; the agent and ``repoagent decrypt`` both do this."""

import io
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError, NotFoundError
from repoagent_decrypt.age.armor import looks_armored
from repoagent_decrypt.age.files import Sizes, decrypt_file
from repoagent_decrypt.age.foreign import decrypt_file_foreign
from repoagent_decrypt.age.header import read_header
from repoagent_decrypt.age.keys import Identities
from repoagent_decrypt.age.positional import Progress, Workers
from repoagent_decrypt.age.primitives.errors import AgeError, NoMatchError
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.age.stream import NONCE, sealed_shape
from repoagent_decrypt.build import Transform
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.tree import Tree, scan_tree

__all__ = ["DEFAULT_FILES", "SUFFIX", "decrypting", "in_version_directory", "refuse_unencrypted", "scan_encrypted"]

SUFFIX: Final = ".age"
DEFAULT_FILES: Final = (f"*{SUFFIX}",)


def scan_encrypted(root: Path, patterns: Patterns) -> Tree:
    """Find the encrypted files below ``root`` and look at their headers.

    Raises:
        NotFoundError: there is none. A model that should be encrypted and is not must not pass for one that was.
        InvalidArgumentError: one is no age file, or too short to be one.
    """
    tree = scan_tree(root, patterns.match, _without_suffix, _plain_size)
    if not tree.chosen:
        raise NotFoundError(f"no file of the model matches {patterns}: there is nothing to decrypt")
    return tree


def in_version_directory(name: str) -> bool:
    """Whether a file of this relative path belongs to a version, and not to the model as a whole."""
    return "/" in name and name.partition("/")[0].isdecimal()


def refuse_unencrypted(tree: Tree) -> None:
    """Refuse a model that brings plain files in its version directories, be there encrypted ones beside them or not.

    Raises:
        InvalidArgumentError: there is such a file.
    """
    plain = [item.name for item in tree.items if not item.chosen and in_version_directory(item.name)]
    if plain:
        more = f" and {len(plain) - 1} more" if len(plain) > 1 else ""
        raise InvalidArgumentError(
            f"'{plain[0]}'{more} in a version directory is not encrypted: encrypt all files there (the operator's "
            "policy may allow plain ones with the parameter unencrypted = 'copy')"
        )


def decrypting(identities: Identities, workers: Workers) -> Transform:
    """A transform that decrypts with the first identity that fits, our own kinds first."""

    def transform(source: Path, target: Path, progress: Progress) -> Sizes:
        try:
            return decrypt_file(source, target, identities.native, workers=workers, progress=progress)
        except NoMatchError:
            if not identities.foreign:
                raise
        return decrypt_file_foreign(source, target, identities)

    return transform


def _without_suffix(name: str) -> str:
    short = name.removesuffix(SUFFIX)
    if not short or short.endswith("/"):
        raise InvalidArgumentError(f"'{name}' has no name but its ending; nothing would be left of it")
    return short


def _plain_size(path: Path, name: str) -> int:
    """Exact for a binary file; for an armored one its own size, which is more."""
    try:
        with path.open("rb", buffering=0) as stream:
            reader = PeekReader(stream)
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            if looks_armored(reader):
                return size
            return sealed_shape(size - read_header(reader).size - NONCE).plain
    except AgeError as error:
        raise InvalidArgumentError(f"{name}: {error}") from error
