"""What tests of the backend have loaded is closed, and has left nothing."""

from collections.abc import Iterator

import pytest

from tests.engines.platforms import over_interfaces
from tests.serving.backends.tensorrt.kit import close_all


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    close_all()
    if over_interfaces():
        from cuda.bindings import runtime

        assert not any(runtime.live().values()), runtime.live()
