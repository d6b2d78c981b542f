"""Where tests run plans: on the stand-in, or on the module that calls CUDA and TensorRT, over imitations of both.

``tests/engines/interfaces`` starts tests that ask here a second time, with the imitations in the place of the packages.
"""

import os
from typing import Any, Final

from repoagent.engines.probe import Findings, Gpu
from tests.engines.standin import StandInPlan, StandInPlatform

INTERFACES: Final = "REPOAGENT_TESTS_INTERFACES"
_MEMORY: Final = 1 << 28


def over_interfaces() -> bool:
    """Whether plans run on the module that calls CUDA and TensorRT."""
    return INTERFACES in os.environ


def new_platform(memory_bytes: int = _MEMORY) -> Any:
    """A new platform with two GPUs, of which the second is for those who ask for it."""
    if not over_interfaces():
        return StandInPlatform(memory_bytes=memory_bytes)
    from cuda.bindings import runtime

    from repoagent.engines.cuda.platform import CudaPlatform

    for device in runtime.DEVICES:
        assert device.allocations == 0, "a test before this one has left memory"
        device._left = memory_bytes
    gpus = tuple(Gpu(index, f"imitation {index}", (8, 9), memory_bytes) for index in range(2))
    return CudaPlatform(Findings("tensorrt", "11.4.0.106", gpus))


def content_of(plan: StandInPlan) -> bytes:
    """A plan's file as :func:`new_platform` opens it."""
    if not over_interfaces():
        return plan.to_bytes()
    import tensorrt

    content: bytes = tensorrt.HEAD + plan.to_bytes()
    return content


def plan_of(content: bytes) -> StandInPlan:
    """The inverse of :func:`content_of`."""
    return StandInPlan.of(content[64:] if over_interfaces() else content)


def allocations(platform: Any, index: int = 0) -> int:
    """How many pieces of memory of a device are in use."""
    if not over_interfaces():
        found: int = platform.device(index).allocations
        return found
    from cuda.bindings import runtime

    return int(runtime.DEVICES[index].allocations)
