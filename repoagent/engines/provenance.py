"""The statement beside a plan: the digest that the plan had when it was built.

It shows that a plan has changed by accident. It protects against nobody, as it can be changed as well: that is what
signatures are for.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.nested_text import read_json

__all__ = ["MOST_BYTES", "STATEMENT_SUFFIX", "check_digest", "read_subject"]

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
    stated = str(read_subject(statement, name)["digest"]["sha256"]).lower()
    found = hashlib.sha256(plan).hexdigest()
    if stated != found:
        raise InvalidArgumentError(
            f"{name} has changed since it was built: its digest is sha256:{found}, and {name}{STATEMENT_SUFFIX} states "
            f"sha256:{stated}; copy it again, or build it again"
        )


def read_subject(statement: bytes, name: str) -> Mapping[str, Any]:
    """What ``statement`` has of the file ``name``: at least a digest.

    Raises:
        InvalidArgumentError: it is not a statement, or not one of this file.
    """
    try:
        if len(statement) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        subjects = read_json(statement)["subject"]
        found = [one for one in subjects if one["name"] == name and one["digest"]["sha256"]]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgumentError(f"{name}{STATEMENT_SUFFIX} is not a valid statement: {error}") from error
    if len(found) != 1:
        raise InvalidArgumentError(f"{name}{STATEMENT_SUFFIX} states {len(found)} digests of {name}, expected one")
    subject: Mapping[str, Any] = found[0]
    return subject
