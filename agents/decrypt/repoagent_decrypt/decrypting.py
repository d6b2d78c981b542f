"""Decrypt a whole tree with a set of keys; the agent and ``repoagent decrypt`` both do this."""

from functools import partial
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError, NotFoundError
from repoagent_decrypt.build import Transform
from repoagent_decrypt.files.errors import DecryptError
from repoagent_decrypt.files.new_file import Sizes
from repoagent_decrypt.files.positional import Progress, Workers
from repoagent_decrypt.formats import SUFFIXES, Keys, decrypt_file, plain_size
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.tree import Tree, scan_tree

__all__ = ["DEFAULT_FILES", "decrypting", "in_version_directory", "refuse_unencrypted", "scan_encrypted"]

DEFAULT_FILES: Final = tuple(f"*{suffix}" for suffix in SUFFIXES)


def scan_encrypted(root: Path, patterns: Patterns, keys: Keys) -> Tree:
    """Find the encrypted files below ``root`` and look at their headers.

    Raises:
        NotFoundError: there is none. A model that should be encrypted and is not must not pass for one that was.
        InvalidArgumentError: one has no known format, is too short, or is for a kind of key that is not given.
    """
    tree = scan_tree(root, patterns.match, _without_suffix, partial(_plain_size, keys))
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


def decrypting(keys: Keys, workers: Workers) -> Transform:
    """A transform that decrypts files of any format with ``keys``."""

    def transform(source: Path, target: Path, progress: Progress) -> Sizes:
        return decrypt_file(source, target, keys, workers=workers, progress=progress)

    return transform


def _without_suffix(name: str) -> str:
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    short = name.removesuffix(suffix)
    if not short or short.endswith("/"):
        raise InvalidArgumentError(f"'{name}' has no name but its ending; nothing would be left of it")
    return short


def _plain_size(keys: Keys, path: Path, name: str) -> int:
    try:
        return plain_size(path, keys)
    except DecryptError as error:
        raise InvalidArgumentError(f"{name}: {error}") from error
