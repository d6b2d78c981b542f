"""The signature's own file, opened beneath the model's root, up to a limit."""

from pathlib import Path

from repoagent.api import InvalidArgumentError, read_beneath
from repoagent_verify.errors import VerificationError
from repoagent_verify.limited_json import LARGEST_SIGNATURE

__all__ = ["read_signature"]


def read_signature(root: Path, path: str) -> bytes:
    """The bundle at ``path`` below ``root``.

    Raises:
        VerificationError: there is none, it is not a regular file, a link is in the way, or it is too large.
    """
    try:
        return read_beneath(root, path, limit=LARGEST_SIGNATURE, follow=False)
    except FileNotFoundError:
        raise VerificationError(f"the model is not signed: there is no {path}") from None
    except OSError as error:
        raise VerificationError(f"the signature {path} cannot be read: {error.strerror}") from None
    except InvalidArgumentError as error:  # UnsafePathError is one
        raise VerificationError(f"the signature cannot be read: {error}") from None
