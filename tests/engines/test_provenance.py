"""The digest of a plan against the statement beside it."""

import hashlib
import json

import pytest

from repoagent.engines.provenance import MOST_BYTES, check_digest
from repoagent.errors import InvalidArgumentError

PLAN = b"vtrt" + bytes(100)
DIGEST = hashlib.sha256(PLAN).hexdigest()


def _statement(*subjects: tuple[str, str]) -> bytes:
    return json.dumps({"subject": [{"name": name, "digest": {"sha256": one}} for name, one in subjects]}).encode()


def test_the_plan_that_was_built_passes() -> None:
    check_digest(PLAN, "model.plan", _statement(("other", "00"), ("model.plan", DIGEST.upper())))


def test_a_flipped_byte_is_refused_with_both_digests() -> None:
    changed = PLAN[:-1] + b"\x01"
    with pytest.raises(InvalidArgumentError, match=rf"model\.plan has changed since .*states sha256:{DIGEST}; copy"):
        check_digest(changed, "model.plan", _statement(("model.plan", DIGEST)))


@pytest.mark.parametrize(
    "statement",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"subject": 1}',
        b'{"subject": [1]}',
        b'{"subject": [{"name": "model.plan"}]}',
        b"[" * 100_000,
        b"\xff\xfe",
        bytes(MOST_BYTES + 1),
    ],
    ids=range(10),
)
def test_a_statement_that_is_none_is_refused(statement: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"model\.plan\.intoto\.json is not a valid statement: "):
        check_digest(PLAN, "model.plan", statement)


@pytest.mark.parametrize("count", [0, 2])
def test_a_statement_of_other_plans_or_of_two_is_refused(count: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"states {count} digests of model.plan, expected one"):
        check_digest(PLAN, "model.plan", _statement(*[("model.plan", DIGEST)] * count))
