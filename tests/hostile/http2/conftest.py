"""gRPC over the core of the front ends' hostile tests."""

from tests.hostile.front_ends.conftest import core

__all__ = ["core"]
