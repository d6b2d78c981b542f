"""Taking references apart, and the ciphertext that some of them carry or point to."""

import base64
import binascii
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from repoagent.api import InvalidArgumentError, NotFoundError, read_small_file

logger = logging.getLogger("repoagent.agents.decrypt")

CIPHERTEXT_OPTIONS: Final = frozenset({"ciphertext", "ciphertext-file"})
_LARGEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Reference:
    """``scheme:[//host/]path[?options][#field]``; everything percent-decoded except ``path``."""

    scheme: str
    host: str
    path: str
    options: Mapping[str, str]
    field: str

    def __str__(self) -> str:
        return f"{self.scheme}:{'//' + self.host if self.host or self.path.startswith('/') else ''}{self.path}"

    def parts(self, *, slashes: bool = False) -> list[str]:
        """The segments of the path, decoded; with ``slashes`` they may hold slashes, which were written ``%2F``.

        Raises:
            InvalidArgumentError: one is empty, ``.`` or ``..``, before it was decoded or after.
        """
        parts = [unquote(part) for part in self.path.removeprefix("/").split("/")]
        if any(segment in {"", ".", ".."} for part in parts for segment in part.split("/")):
            raise InvalidArgumentError(f"the key reference {self} has an empty or relative part in its path")
        if not slashes and any("/" in part for part in parts):
            raise InvalidArgumentError(f"the key reference {self} has a part with a slash (%2F) in it")
        return parts


def parse_reference(uri: str, *, options: Collection[str] = (), prefixes: Collection[str] = ()) -> Reference:
    """Split ``uri``; only the named options, and those that begin with one of ``prefixes``, may occur, once each.

    Raises:
        InvalidArgumentError: malformed, or an unknown or repeated option; its value is not shown.
    """
    try:
        split = urlsplit(uri)
    except ValueError:
        raise InvalidArgumentError(f"a {uri.partition(':')[0]}: key reference is malformed") from None
    found: dict[str, str] = {}
    for pair in filter(None, split.query.split("&")):
        name, _, value = pair.partition("=")
        known = name in options or any(name.startswith(prefix) for prefix in prefixes)
        if not known or name in found:
            raise InvalidArgumentError(
                f"a {split.scheme}: key reference has an unknown or repeated option '{name[:40]}'; "
                f"known are {', '.join(sorted([*options, *(f'{prefix}NAME' for prefix in prefixes)])) or 'none'}"
            )
        # Not parse_qsl: it would turn the "+" of base64 into a space.
        found[name] = unquote(value)
    return Reference(split.scheme, unquote(split.netloc), split.path, found, unquote(split.fragment))


def ciphertext_text(reference: Reference, form: re.Pattern[str]) -> str:
    """The text given by the option ``ciphertext``, or in the file of ``ciphertext-file``; all of it is of ``form``.

    A model may name any file of the machine: what is not a ciphertext is neither sent anywhere nor described.

    Raises:
        InvalidArgumentError: not exactly one of the two, or a text of another form.
        NotFoundError: the file cannot be read, or has another form.
    """
    _check_one(reference)
    if "ciphertext" in reference.options:
        if not form.fullmatch(text := reference.options["ciphertext"]):
            raise InvalidArgumentError(f"the ciphertext of the key reference {reference} has not the form of one")
        return text
    content = _read(reference)
    try:
        text = content.decode("ascii").strip()
    except UnicodeDecodeError:
        raise _unusable(reference, "it is not text") from None
    if not form.fullmatch(text):
        raise _unusable(reference, "it is not a ciphertext")
    return text


def ciphertext_bytes(reference: Reference) -> bytes:
    """The bytes: ``ciphertext`` in base64, or the file of ``ciphertext-file`` as it is.

    Raises:
        InvalidArgumentError: not exactly one of the two, or not base64.
    """
    _check_one(reference)
    if "ciphertext" not in reference.options:
        return _read(reference)
    try:
        return base64.b64decode(reference.options["ciphertext"], validate=True)
    except binascii.Error:
        raise InvalidArgumentError(f"the ciphertext of the key reference {reference} is not base64") from None


def _check_one(reference: Reference) -> None:
    if len(CIPHERTEXT_OPTIONS & reference.options.keys()) != 1:
        raise InvalidArgumentError(
            f"the key reference {reference} needs either ?ciphertext-file=/path or ?ciphertext=... with the wrapped key"
        )


def _read(reference: Reference) -> bytes:
    try:
        return read_small_file(reference.options["ciphertext-file"], limit=_LARGEST)
    except (OSError, ValueError, InvalidArgumentError) as error:
        raise _unusable(reference, getattr(error, "strerror", None) or str(error)) from None


def _unusable(reference: Reference, reason: str) -> NotFoundError:
    """One text, whatever is wrong: it goes to those who may have written the reference. The log has the reason."""
    path = reference.options["ciphertext-file"]
    logger.warning("the ciphertext file %r of the key reference %s cannot be used: %s", path, reference, reason)
    return NotFoundError(
        f"there is no usable ciphertext file for the key reference {reference}; the log has the reason"
    )
