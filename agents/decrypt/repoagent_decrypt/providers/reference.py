"""Taking references apart, and the ciphertext that some of them carry or point to."""

import base64
import binascii
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from repoagent.api import InvalidArgumentError, NotFoundError, UnavailableError

__all__ = ["CIPHERTEXT_OPTIONS", "Reference", "ciphertext_bytes", "ciphertext_text", "parse_reference"]

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

    def parts(self) -> list[str]:
        """The segments of the path, decoded.

        Raises:
            InvalidArgumentError: one is empty, ``.`` or ``..``.
        """
        parts = [unquote(part) for part in self.path.removeprefix("/").split("/")]
        if any(part in {"", ".", ".."} for part in parts):
            raise InvalidArgumentError(f"the key reference {self} has an empty or relative part in its path")
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


def ciphertext_text(reference: Reference) -> str:
    """The text given by the option ``ciphertext``, or in the file of ``ciphertext-file``.

    Raises:
        InvalidArgumentError: not exactly one of the two, or no text.
    """
    _check_one(reference)
    if "ciphertext" in reference.options:
        return reference.options["ciphertext"]
    try:
        return _read(reference).decode("ascii").strip()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"the ciphertext file of the key reference {reference} is not text") from None


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
    path = Path(reference.options["ciphertext-file"])
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except FileNotFoundError:
        raise NotFoundError(f"there is no ciphertext file {path} for the key reference {reference}") from None
    except OSError as error:
        raise UnavailableError(f"cannot read the ciphertext file {path}: {error.strerror}") from None
