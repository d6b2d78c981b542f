"""The agent: a model with encrypted files in, a confidential directory with their plaintext out."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from repoagent.api import (
    Agent,
    AgentModel,
    CancelledError,
    InvalidArgumentError,
    Parameters,
    UnavailableError,
    read_key,
)
from repoagent_decrypt.age.keys import Identities, holds_secret_key
from repoagent_decrypt.age.stanzas.scrypt import MAX_WORK_FACTOR, ScryptIdentity
from repoagent_decrypt.decryption import DEFAULT_FILES, decrypting, refuse_unencrypted, scan_encrypted
from repoagent_decrypt.files.errors import DecryptError
from repoagent_decrypt.files.positional import Progress, Sizes, Workers
from repoagent_decrypt.formats import KEY_PARAMETERS, Keys
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.tree import Totals, build_tree

PARAMETERS: Final = ("files", *sorted(KEY_PARAMETERS), "max_work_factor", "passphrase", "unencrypted")
_REFERENCES: Final = frozenset({*KEY_PARAMETERS, "passphrase"})
_REFERENCE: Final = re.compile(r"[a-z][a-z0-9+.-]*:.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Options:
    """What the configuration asks for. Keys are references, never keys."""

    files: Patterns
    keys: tuple[tuple[str, str], ...]
    """Parameter and reference of every key but passphrases."""
    passphrases: tuple[str, ...]
    max_work_factor: int
    copy_unencrypted: bool
    """Whether a version directory may hold files that are not encrypted."""


def parse_parameters(parameters: Parameters, *, demanded: bool = False, most_work: int = MAX_WORK_FACTOR) -> Options:
    """Check the parameters of one chain entry; ``demanded`` are those of the operator's policy.

    ``most_work`` is the largest scrypt work factor that the operator allows.

    Raises:
        InvalidArgumentError: an unknown one, a bad value, no key at all, or a key instead of a reference to one. A
            value that may be a secret is never repeated.
    """
    parameters.check(PARAMETERS)
    for key, value in parameters.items():
        if holds_secret_key(value) or (key in _REFERENCES and not _REFERENCE.fullmatch(value)):
            raise InvalidArgumentError(
                f"the parameter '{key}' must be a reference to a key, such as 'file:/run/secrets/age.key', and never a "
                "key itself (its value is not repeated here)"
            )
    options = Options(
        files=Patterns.of(parameters.get_all("files") or DEFAULT_FILES),
        keys=tuple((name, uri) for name in KEY_PARAMETERS for uri in parameters.get_all(name)),
        passphrases=tuple(parameters.get_all("passphrase")),
        max_work_factor=_work_factor(parameters.get("max_work_factor"), most_work),
        copy_unencrypted=_copies_unencrypted(parameters.get("unencrypted"), demanded),
    )
    if not options.keys and not options.passphrases:
        names = ", ".join(f"'{name}'" for name in KEY_PARAMETERS)
        raise InvalidArgumentError(f"no key: give one of the parameters {names} or 'passphrase'")
    return options


def load_keys(options: Options, key: Callable[[str], bytes]) -> Keys:
    """Follow the references with ``key`` and read what is there.

    Raises:
        InvalidArgumentError: what a reference leads to is not a key of its kind; plus whatever ``key`` raises.
    """
    try:
        found = Keys()
        for number, (name, uri) in enumerate(options.keys, 1):
            found += read_key(key, uri, partial(_read, name, f"{name} {number} ({_shown(uri)})"))
        words = [passphrase_of(key(uri)) for uri in options.passphrases]
        limit = options.max_work_factor
        return found + Keys(age=Identities(tuple(ScryptIdentity(word, max_work_factor=limit) for word in words)))
    except DecryptError as error:
        raise InvalidArgumentError(str(error)) from error


def _read(name: str, source: str, secret: bytes) -> Keys:
    try:
        keys = KEY_PARAMETERS[name](secret, source)
        for identity in keys.age.foreign:
            identity.load()  # with a file to decrypt, its text would differ from that of a file that is not there
    except DecryptError as error:
        raise InvalidArgumentError(str(error)) from error
    return keys


def _shown(uri: str) -> str:
    """The arguments of a program, and what follows a plug-in's scheme, may hold a secret."""
    return uri if uri.startswith(("env:", "file:")) else f"{uri.partition(':')[0]}:..."


def passphrase_of(data: bytes) -> bytes:
    """The passphrase in a secret as it is stored: without the one newline that editors put at the end."""
    return data.removesuffix(b"\n").removesuffix(b"\r")


def _work_factor(text: str | None, most: int) -> int:
    if text is None:
        return most
    if not re.fullmatch(r"[1-9][0-9]?", text) or int(text) > most:
        raise InvalidArgumentError(
            f"max_work_factor must be a number from 1 to {most}, not '{text}'; only the operator can allow more "
            "(--limit-scrypt-work-factor)"
        )
    return int(text)


def _copies_unencrypted(text: str | None, demanded: bool) -> bool:
    """An operator who demands decryption wants encrypted models; a model that names the agent knows what it holds."""
    if text not in (None, "copy", "refuse"):
        raise InvalidArgumentError(f"unencrypted must be 'copy' or 'refuse', not '{text}'")
    return not demanded if text is None else text == "copy"


class DecryptAgent(Agent):
    """Decrypts at LOAD and does nothing else: the loader removes the plaintext. Its README has the parameters."""

    api_version = 1
    reads_once = True

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:
        """What the owner of a model could still do if the operator demanded the agent with ``parameters``."""
        if not parse_parameters(parameters, demanded=True).copy_unencrypted:
            return []
        return ["files that are not encrypted are accepted; leave out unencrypted = 'copy'"]

    def load(self, model: AgentModel) -> None:
        """Decrypt the files of ``model.location`` into a new confidential location."""
        options = parse_parameters(model.parameters, demanded=model.demanded, most_work=model.limits.scrypt_work_factor)
        keys = load_keys(options, model.key)
        try:
            tree = scan_encrypted(model.localize(), options.files, keys)
            if not options.copy_unencrypted:
                refuse_unencrypted(tree)
            target = model.acquire_location(confidential=True, size_hint=tree.room)
            hashing = ("sha256",) if model.digests_wanted else ()
            with Workers(hashing=hashing, reading=model.read_digests_wanted) as workers:
                totals = build_tree(
                    tree,
                    target,
                    decrypting(keys, workers),
                    _progress(model, tree.size),
                    partial(_keep, model),
                    workers.reading,
                )
        finally:
            keys.wipe()
        model.update_location(target)
        model.report(bytes_read=totals.bytes_read, bytes_written=totals.bytes_written, note=_note(totals))


def _progress(model: AgentModel, total: int) -> Progress:
    def tell(done: int) -> None:
        if model.cancelled:
            raise CancelledError("the load was cancelled while files were decrypted")
        if done > total:  # room was made for that, and a file that grows and grows would take all memory
            raise UnavailableError("the model became larger while it was decrypted; load it again")
        model.progress(done, total)

    return tell


def _keep(model: AgentModel, name: str, path: Path, sizes: Sizes) -> None:
    if sizes.digests and sizes.status is not None:
        model.keep_digests(path, sizes.status, sizes.digests)
    if sizes.read_digests:
        model.keep_read_digests(name, sizes.read_digests)


def _note(totals: Totals) -> str:
    return f"{totals.transformed} decrypted, {totals.copied} copied"
