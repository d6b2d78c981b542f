"""Decrypt a whole tree with a set of keys; the agent and ``repoagent decrypt`` both do this."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError, NotFoundError
from repoagent_decrypt.files.errors import DecryptError
from repoagent_decrypt.files.positional import Progress, Sizes, Workers
from repoagent_decrypt.formats import SUFFIXES, Keys, decrypt_file, plain_size
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.tree import Transform, Tree, scan_tree

DEFAULT_FILES: Final = tuple(f"*{suffix}" for suffix in SUFFIXES)
_PUBLIC: Final = frozenset(
    {"config.pbtxt", "README.md", "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.txt", ".gitattributes"}
    | {"SHA256SUMS", "model.sig"}
)
"""Files outside of version directories that hold no weights, and nothing that a backend reads."""
_LABELS: Final = (".csv", ".pbtxt", ".txt")
_SAMPLES: Final = ("initial_state", "warmup")
"""Directories beside version directories with data for requests."""


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


def wants_encryption(names: Iterable[str]) -> Callable[[str], bool]:
    """Which files of a model with the relative paths ``names`` are to be encrypted.

    All but a few known names. Beside version directories labels and samples are plain, too: a server other than ours
    may read what is there, and a version directory, once it is there, must not make it accept the owner's weights.
    """
    versioned = any(_is_version(name) for name in names)
    return lambda name: not (_is_public(name) or (versioned and _is_aside(name)))


def _is_public(name: str) -> bool:
    return name in _PUBLIC or (name.startswith("configs/") and name.endswith(".pbtxt"))


def _is_aside(name: str) -> bool:
    """Whether the file, beside version directories, is a list of labels or a sample."""
    directory, slash, _ = name.partition("/")
    return directory in _SAMPLES if slash else name.endswith(_LABELS)


def _is_version(name: str) -> bool:
    """Whether the file belongs to what a server takes for a version."""
    directory, slash, _ = name.partition("/")
    return bool(slash) and directory.isascii() and directory.isdigit() and not directory.startswith("0")


def _in_numbered_directory(name: str) -> bool:
    return "/" in name and name.partition("/")[0].isdecimal()


def refuse_unencrypted(tree: Tree) -> None:
    """Refuse a model that brings plain files where its weights are, be there encrypted ones beside them or not.

    Raises:
        InvalidArgumentError: there is such a file.
    """
    wanted = wants_encryption(item.name for item in tree.items)
    plain = [item.name for item in tree.items if not item.chosen and wanted(item.name)]
    if plain:
        more = f" and {len(plain) - 1} more" if len(plain) > 1 else ""
        where = "in a version directory" if _in_numbered_directory(plain[0]) else "outside of version directories"
        raise InvalidArgumentError(
            f"'{plain[0]}'{more} {where} is not encrypted: encrypt it (the operator's policy may allow "
            "plain ones with the parameter unencrypted = 'copy')"
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
