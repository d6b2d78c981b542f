"""Audit logs in a directory of each test."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from repoagent.audit.log import AuditLog

NewLog = Callable[..., AuditLog]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def new_log(path: Path) -> Iterator[NewLog]:
    """Opens the log, and closes it at the end."""
    with ExitStack() as stack:

        def make(**options: Any) -> AuditLog:
            log = AuditLog(path, **{"sync": False} | options)
            stack.callback(log.close)
            return log

        yield make


def documents(path: Path) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text().splitlines()]
