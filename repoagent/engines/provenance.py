"""The statement beside a plan: the digest that the plan had when it was built.

It shows that a plan has changed by accident. It protects against nobody, as it can be changed as well: that is what
signatures are for.
"""

import hashlib
import json
from typing import Any, Final

from repoagent.errors import InvalidArgumentError

__all__ = ["MOST_BYTES", "STATEMENT_SUFFIX", "check_digest"]

STATEMENT_SUFFIX: Final = ".intoto.json"
"""Behind the name of the plan's file: an in-toto statement."""
MOST_BYTES: Final = 16 << 20
"""Of a statement."""


def check_digest(plan: Any, name: str, statement: bytes) -> None:
    """Refuse a plan that is not the one that was built.

    Args:
        plan: Its contents, a buffer.
        name: The name of its file.
        statement: The contents of the statement.

    Raises:
        InvalidArgumentError: the digests differ, or the statement has none for the plan.
    """
    stated = _stated(statement, name)
    found = hashlib.sha256(plan).hexdigest()
    if stated != found:
        raise InvalidArgumentError(
            f"{name} has changed since it was built: its digest is sha256:{found}, and {name}{STATEMENT_SUFFIX} states "
            f"sha256:{stated}; copy it again, or build it again"
        )


def _stated(statement: bytes, name: str) -> str:
    try:
        if len(statement) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        subjects = json.loads(statement)["subject"]
        digests = [str(one["digest"]["sha256"]) for one in subjects if one["name"] == name]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidArgumentError(f"{name}{STATEMENT_SUFFIX} is not a valid statement: {error}") from error
    if len(digests) != 1:
        raise InvalidArgumentError(f"{name}{STATEMENT_SUFFIX} states {len(digests)} digests of {name}, expected one")
    return digests[0].lower()
