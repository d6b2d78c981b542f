"""What goes wrong below us, as the errors of the project."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from repoagent.errors import NotFoundError, RepoAgentError, StoreUnavailableError, UnavailableError, described

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def storage_faults(what: str, where: str) -> Iterator[None]:
    """Turn whatever a filesystem raises into ``NotFoundError`` or ``UnavailableError``, with the cause attached."""
    try:
        yield
    except RepoAgentError:
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"cannot {what} {where}: it does not exist") from error
    except NotADirectoryError as error:
        raise NotFoundError(f"cannot {what} {where}: it is not a directory") from error
    except PermissionError as error:
        raise UnavailableError(f"cannot {what} {where}: {described(error)}") from error
    except Exception as error:  # filesystem packages have no common base for "the server did not answer"
        raise StoreUnavailableError(f"cannot {what} {where}: {described(error)}") from error


@contextmanager
def full_disk(where: str, needed: int) -> Iterator[None]:
    """Turn "no space left" into ``UnavailableError``; ``needed`` is the size of all that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise UnavailableError(f"no space left on {where} while writing {needed} bytes") from error
