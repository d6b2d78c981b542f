"""What the code of an agent is: the files of its package by RECORD, or of its directory, with one digest of all."""

import base64
import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, FileHash, PackagePath, distribution
from pathlib import Path, PurePosixPath
from typing import Final

from repoagent.loader.agent_directory import Code, module_name
from repoagent.loader.discovery import AgentInfo
from repoagent.nested_text import read_json

_CACHE: Final = "__pycache__"
_SIGNATURES: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""Files of a distribution that cannot be in its RECORD with a digest."""


def code_of(info: AgentInfo) -> Code:
    """The agent's code: of a package, what RECORD lists, each file compared; of a directory, everything in it.

    Compiled files in ``__pycache__`` are neither: they are never read for pinned code. Raises ``ValueError`` if there
    is nothing to compare with, or a file was changed after it was installed or has no digest.
    """
    return _of_directory(info) if info.distribution is None else _of_package(distribution(info.distribution))


def _of_package(installed: Distribution) -> Code:
    recorded = _recorded(installed)
    record = _record(installed, recorded)
    files: dict[str, str] = {}
    tops: set[str] = set()
    owned: set[str] = set()
    for path in recorded:
        if path.hash is None:
            _check_needs_no_digest(path)
            continue
        files[os.path.realpath(str(path.locate()))] = _verified(path)
        if path.suffix in (".py", ".so", ".pyd", ".pyc") and ".." not in path.parts:
            tops.add(path.parts[0].partition(".")[0])
            if len(path.parts) == 1 or path.parts[1:] == ("__init__.py",):
                owned.add(path.parts[0].partition(".")[0])
    return Code(hashlib.sha256(record).hexdigest(), files, frozenset(owned), frozenset(tops - owned))


def _recorded(installed: Distribution) -> Sequence[PackagePath]:
    """What RECORD lists. ``Distribution.files`` does not: from Python 3.12 on, it leaves out what is missing."""
    paths = []
    for name, digest, *_ in csv.reader((installed.read_text("RECORD") or "").splitlines()):
        path = PackagePath(name)
        path.hash, path.dist = FileHash(digest) if digest else None, installed
        paths.append(path)
    return paths


def _record(installed: Distribution, recorded: Sequence[PackagePath]) -> bytes:
    if read_json(installed.read_text("direct_url.json") or "{}").get("dir_info", {}).get("editable"):
        raise ValueError("it is an editable installation, whose code RECORD does not cover; install it as a wheel")
    for path in recorded:
        if path.match("*.dist-info/RECORD"):
            return Path(str(path.locate())).read_bytes()
    raise ValueError("its distribution has no RECORD; install it as a wheel")


def _check_needs_no_digest(path: PackagePath) -> None:
    compiled = path.suffix == ".pyc" and path.parent.name == _CACHE
    signature = path.name in _SIGNATURES and path.parent.name.endswith(".dist-info")
    if not compiled and not signature:
        raise ValueError(f"its RECORD has no digest of {path}")


def _verified(path: PackagePath) -> str:
    assert path.hash is not None
    try:
        content = Path(str(path.locate())).read_bytes()
    except OSError:
        raise ValueError(f"its file {path} is missing") from None
    digest = hashlib.new(path.hash.mode, content).digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != path.hash.value:
        raise ValueError(f"its file {path} was changed after it was installed")
    return hashlib.sha256(content).hexdigest()


def _of_directory(info: AgentInfo) -> Code:
    """The digest is what ``sha256sum`` prints for the lines that it prints for all files, sorted by name."""
    root = Path(info.target).parent
    digests = {name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in _files(root, PurePosixPath())}
    lines = [f"{digests[name]}  ./{name}\n" for name in sorted(digests, key=os.fsencode)]
    files = {os.path.realpath(root / name): digest for name, digest in digests.items()}
    whole = hashlib.sha256(os.fsencode("".join(lines))).hexdigest()
    return Code(whole, files, frozenset({module_name(info.name)}))


def _files(root: Path, below: PurePosixPath) -> Iterator[str]:
    with os.scandir(root / below) as listing:
        entries = list(listing)
    for entry in entries:
        name = below / entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from () if entry.name == _CACHE else _files(root, name)
        elif not entry.is_file(follow_symlinks=False) or set("\\\n\r") & set(entry.name):
            raise ValueError(f"its file {str(name)!r} is a link or has a name that cannot be pinned; remove it")
        else:
            yield str(name)
