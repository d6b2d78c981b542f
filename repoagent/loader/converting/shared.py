"""Conversions that are made once: signed by builders, at any fsspec URL, and taken by those whose policy names them.

Below the URL lie ``KEY/blobs/SHA256`` and ``KEY/statements/KEYID.dsse.json``, the statement last. The reader computes
the key and what it expects by itself, asks for the statements of the builders that it trusts by the names of their
keys, and compares every field. So nothing depends on who else can write there, but for what is missing.
"""

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import CancelledError, NotFoundError, RepoAgentError, UnavailableError, storage_faults
from repoagent.loader.converting.provenance import PREDICATE, STATEMENT, SUFFIX
from repoagent.nested_text import read_json
from repoagent.storage.paths.names import check_tree
from repoagent.storage.repositories.filesystems import TIMEOUT, is_local, open_patiently
from repoagent.storage.repositories.url import parse_url

if TYPE_CHECKING:
    from repoagent.api.envelopes import PrivateKey, PublicKey

logger = logging.getLogger("repoagent.loader")

_WHERE: Final = "the shared cache of conversions"
_LARGEST_STATEMENT: Final = 24 << 20
_PIECE: Final = 8 << 20
_Subjects = list[dict[str, Any]]


class BuildersDisagreeError(UnavailableError):
    """Trusted builders made different results of the same: one of them is wrong, or lies."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Whose results are taken for a model, by the files of their public keys: ``needed`` of them, or ``only`` those."""

    builders: Mapping[str, Path] = field(default_factory=dict)
    needed: int = 1
    only: bool = False

    @property
    def name(self) -> str:
        """What distinguishes results that this trust admits from those of another."""
        keys = sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in self.builders.values())
        return hashlib.sha256(f"{self.needed} {self.only} {keys}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Wanted:
    """A result as the reader would make it: its key, the file that it must have, and what its statement must have."""

    key: str
    output: str
    definition: Mapping[str, Any]
    tools: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedConversions:
    """The shared cache at ``root`` of the fsspec filesystem ``fs``, if there is one; a blob has ``most`` bytes."""

    trust: Callable[[str], Trust] = lambda _model: Trust()
    fs: Any = None
    root: str = ""
    signer: "PrivateKey | None" = None
    most: int = 0

    def fetch(self, wanted: Wanted, directory: Path, trust: Trust, cancelled: Callable[[], bool]) -> tuple[str, ...]:
        """Put the result into the empty ``directory``; the names of those who built it.

        Raises:
            BuildersDisagreeError: builders signed different results; none is taken, however many agree.
            RepoAgentError: it is not there, not signed by enough builders, or not what they signed.
        """
        from repoagent.api.envelopes import key_id, read_public_key

        if self.fs is None:
            raise UnavailableError("there is none (--conversion-cache)")
        keys = {name: read_public_key(path.read_bytes()) for name, path in trust.builders.items()}
        if len({key_id(key) for key in keys.values()}) < len(keys):
            raise UnavailableError("the policy names one builder's key twice")
        found: dict[str, tuple[bytes, _Subjects]] = {}
        for name, key in keys.items():
            try:
                found[name] = self._statement(wanted, key)
            except (RepoAgentError, LookupError, TypeError, AttributeError, ValueError) as error:
                logger.debug("%s of builder '%s' is not taken: %r", wanted.key, name, error)
        if len({json.dumps(subjects, sort_keys=True) for _, subjects in found.values()}) > 1:
            raise BuildersDisagreeError(f"the builders {', '.join(found)} made different results")
        if len(found) < trust.needed:
            raise NotFoundError(f"{len(found)} of {trust.needed} builders that are needed have signed a result")
        payload, subjects = next(iter(found.values()))
        for subject in subjects:
            self._blob(wanted.key, subject["digest"]["sha256"], directory / subject["name"], cancelled)
        (directory / f"{wanted.output}{SUFFIX}").write_bytes(payload)
        return tuple(found)

    def publish(self, wanted: Wanted, directory: Path) -> None:
        """Sign what was made in ``directory``, and put it where others find it, or raise; nothing without a key."""
        if self.signer is None:
            return
        from repoagent.api.envelopes import sign

        payload = (directory / f"{wanted.output}{SUFFIX}").read_bytes()
        with storage_faults("write to", _WHERE):
            for subject in read_json(payload)["subject"]:
                self._put(f"{wanted.key}/blobs/{subject['digest']['sha256']}", directory / subject["name"])
            envelope = json.dumps(sign(payload, self.signer)["dsseEnvelope"]).encode()
            self._write(self._statement_path(wanted.key, self.signer.public_key()), envelope)

    def signed(self, key: str, by: "PublicKey") -> tuple[bytes, dict[str, Any], dict[str, Any]]:
        """The payload that the holder of the key ``by`` signed as the result ``key``: its bytes, the statement in it,
        and the tools of the build as they are in a key.

        Raises ``LookupError``, ``TypeError`` or ``ValueError`` if what is signed is no statement of a conversion.
        """
        from repoagent.api.envelopes import MOST_VALUES, read_document, verify

        with storage_faults("read", _WHERE):
            data = self.fs.cat_file(self._statement_path(key, by), start=0, end=_LARGEST_STATEMENT)
        payload = verify(read_document(data, "the statement", most_values=MOST_VALUES), by)
        statement = read_document(payload, "the payload of the statement")
        if [statement["_type"], statement["predicateType"]] != [STATEMENT, PREDICATE]:
            raise ValueError("it is about something else")
        tools = dict(statement["predicate"]["runDetails"]["builder"]["version"])
        tools.pop("repoagent-core", None)  # What a release of ours changes shows in the converter's version.
        return payload, statement, tools

    def _statement(self, wanted: Wanted, key: "PublicKey") -> tuple[bytes, _Subjects]:
        """The payload that the holder of ``key`` signed, and the files in it."""
        payload, statement, tools = self.signed(wanted.key, key)
        expected = read_json(json.dumps([wanted.definition, wanted.tools]))
        if [statement["predicate"]["buildDefinition"], tools] != expected:
            raise ValueError("it is about something else")
        subjects = sorted(statement["subject"], key=lambda one: str(one["name"]))
        names = [one["name"] for one in subjects]
        check_tree([*names, f"{wanted.output}{SUFFIX}"])
        if wanted.output not in names or not all(_is_digest(one["digest"]["sha256"]) for one in subjects):
            raise ValueError("it lacks the result")
        return payload, subjects

    def _blob(self, key: str, digest: str, target: Path, cancelled: Callable[[], bool]) -> None:
        path, hasher, done = f"{self.root}/{key}/blobs/{digest}", hashlib.sha256(), 0
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with target.open("xb") as file, storage_faults("read", _WHERE):
            size = self.fs.info(path)["size"]
            if size > self.most:
                raise UnavailableError(f"a file has more than {self.most} bytes (--limit-download-bytes)")
            while done < size:
                if cancelled():
                    raise CancelledError("cancelled while a shared conversion was read")
                piece = self.fs.cat_file(path, start=done, end=min(done + _PIECE, size))
                if not piece or len(piece) > _PIECE:
                    break
                hasher.update(piece)
                done += file.write(piece)
        if hasher.hexdigest() != digest:
            raise UnavailableError("a file has other bytes than its builders signed")

    def _statement_path(self, key: str, by: "PublicKey") -> str:
        from repoagent.api.envelopes import key_id

        return f"{self.root}/{key}/statements/{key_id(by)}.dsse.json"

    def _put(self, name: str, source: Path) -> None:
        path, size = f"{self.root}/{name}", source.stat().st_size
        if not self.fs.exists(path) or self.fs.info(path)["size"] != size:
            self._write(path, source)

    def _write(self, path: str, content: bytes | Path) -> None:
        """All of it or nothing: object stores do that by themselves."""
        beside = f"{path}.{secrets.token_hex(8)}" if is_local(self.fs) else path
        self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        if isinstance(content, bytes):
            self.fs.pipe_file(beside, content)
        else:
            self.fs.put_file(str(content), beside)
        if beside != path:
            self.fs.mv(beside, path)


def open_shared(
    url: str | None,
    key: bytes | None,
    trust: Callable[[str], Trust],
    *,
    filesystems: Mapping[str, str],
    timeout: float = TIMEOUT,
    most: int,
) -> SharedConversions:
    """The shared cache at ``url``; results that are built here are signed with ``key``, if there is one. Raises if
    there is no filesystem for ``url``, or ``key`` is not one."""
    if url is None:
        return SharedConversions(trust=trust)
    place = parse_url(url)
    fs, _ = open_patiently(place, None, filesystems, timeout)
    signer = None
    if key is not None:
        from repoagent.api.envelopes import read_private_key

        signer = read_private_key(key)
    return SharedConversions(trust=trust, fs=fs, root=place.path.rstrip("/"), signer=signer, most=most)


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and not set(text) - set("0123456789abcdef")
