"""Small files, opened below the model's root without following links, up to a limit."""

import os
import stat
from pathlib import Path

from repoagent_verify.errors import VerificationError
from repoagent_verify.limited_json import LARGEST_SIGNATURE

__all__ = ["read_signature"]


def read_signature(root: Path, path: str) -> bytes:
    """The bundle at ``path`` below ``root``.

    Raises:
        VerificationError: there is none, it is not a regular file, a link is in the way, or it is too large.
    """
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, name = path.split("/")
        for parent in parents:
            inner = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            os.close(directory)
            directory = inner
        handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        raise VerificationError(f"the model is not signed: there is no {path}") from None
    except OSError as error:
        raise VerificationError(f"the signature {path} cannot be read: {error.strerror}") from None
    finally:
        os.close(directory)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise VerificationError(f"the signature {path} is not a regular file")
        if status.st_size > LARGEST_SIGNATURE:
            raise VerificationError(f"the signature {path} has more than {LARGEST_SIGNATURE} bytes")
        with open(handle, "rb", closefd=False) as stream:
            return stream.read(LARGEST_SIGNATURE)
    finally:
        os.close(handle)
