"""``x-request-id``: the name that a client, or a proxy before the server, gives to one call."""

import re
from collections.abc import Iterable
from typing import Final

NAME: Final = "x-request-id"
RECEIPT: Final = b"repoagent-attestation"
"""The header of an answer that names the receipt of what answered."""
_VALID: Final = re.compile(rb"[\x21-\x7e]{1,128}")


def is_valid(value: bytes) -> bool:
    """Up to 128 visible characters of ASCII. Any other value is ignored: it must not cost a client its answer."""
    return _VALID.fullmatch(value) is not None


def found_in(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The first one in the metadata of a call of gRPC, if it is valid, else ""."""
    for name, value in metadata or ():
        if name == NAME:
            text = value if isinstance(value, bytes) else value.encode(errors="replace")
            return text.decode() if is_valid(text) else ""
    return ""
