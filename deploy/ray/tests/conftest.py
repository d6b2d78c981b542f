"""The fixtures of :mod:`deploy.ray.tests.kit`, where Ray is installed. Elsewhere each module is skipped."""

import logging
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

if find_spec("ray") is not None:
    from deploy.ray.tests.kit import cluster, world
    from tests.waiting import in_background

    __all__ = ["cluster", "in_background", "world"]


@pytest.fixture(autouse=True)
def log_level_stays() -> Iterator[None]:
    """A server sets the log of its process for good, and that of a replica has one of its own."""
    logger = logging.getLogger("repoagent")
    level = logger.level
    yield
    logger.setLevel(level)
