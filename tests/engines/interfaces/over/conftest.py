"""Tests here run in a process in which the packages are imitations; see ``../test_over_interfaces.py``."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.engines.platforms import new_platform, over_interfaces
from tests.serving.backends.tensorrt.kit import close_all


@pytest.fixture(autouse=True)
def only_over_interfaces() -> Iterator[None]:
    if not over_interfaces():
        pytest.skip("tests/engines/interfaces/test_over_interfaces.py runs this")
    yield
    close_all()


@pytest.fixture
def cuda() -> Any:
    from cuda.bindings import runtime

    return runtime


@pytest.fixture
def platform() -> Any:
    return new_platform()
