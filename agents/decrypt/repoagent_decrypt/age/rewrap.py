"""Give a file new recipients without encrypting its payload again."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from repoagent_decrypt.age.armor import looks_armored
from repoagent_decrypt.age.header import make_header, open_header, read_header
from repoagent_decrypt.age.primitives.errors import HeaderError
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.age.stanzas import Identity, Recipient
from repoagent_decrypt.files.new_file import Sizes, new_file

__all__ = ["rewrap_file"]

_BLOCK = 1 << 20


def rewrap_file(source: Path, target: Path, identities: Sequence[Identity], recipients: Sequence[Recipient]) -> Sizes:
    """Write ``source`` to the new file ``target`` with a header for ``recipients`` only; the payload is copied.

    The file key stays the same. Whoever could open the old file and kept it, or its file key, can open the payload
    still: to shut somebody out for good, decrypt and encrypt anew.

    Raises:
        AgeError: the header is bad or no identity fits; an armored file is a ``HeaderError``. The payload is not
            looked at: damage to it stays, and is found when it is decrypted.
    """
    with source.open("rb", buffering=0) as stream:
        reader = PeekReader(stream)
        if looks_armored(reader):
            raise HeaderError("an armored file cannot be given new recipients: decrypt and encrypt it")
        header = read_header(reader)
        key = open_header(header, identities)
        try:
            start = make_header(key, recipients)
        finally:
            key.wipe()
        with new_file(target) as fd, open(fd, "wb", closefd=False) as out:
            out.write(start)
            stream.seek(header.size)
            shutil.copyfileobj(stream, out, _BLOCK)
        return Sizes(os.fstat(stream.fileno()).st_size, target.stat().st_size)
