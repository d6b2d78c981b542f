"""Tests that need a GPU: skipped with the reason, or failed where they have to run."""

import os
from functools import cache
from typing import Final

import pytest

from repoagent.engines.probing import Findings, probe

__all__ = ["MUST_RUN", "need_gpu"]

MUST_RUN: Final = "REPOAGENT_TESTS_NEED_GPU"
"""The environment variable that makes a failure of what is skipped where no plan can run."""


@cache
def _findings() -> Findings:
    return probe()


def need_gpu() -> Findings:
    """What the probe found. Skip the test where no plan can run; fail it where it has to."""
    found = _findings()
    if not found.usable:
        if os.environ.get(MUST_RUN, "") not in ("", "0"):
            pytest.fail(f"{MUST_RUN} is set, but {found.problem}")
        pytest.skip(found.problem)
    return found
