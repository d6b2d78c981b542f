"""A stand-in for TensorRT on a GPU: ONNX Runtime computes, and memory of the host passes for device memory.

It has the methods of :mod:`repoagent.engines.cuda`, over which the same tests run, and is stricter than a GPU.
Work that was enqueued is done as late as possible, so a missing wait gives wrong numbers. Memory that was not
allocated, or was freed, is an error.
"""

from tests.engines.standin.device import StandInDevice
from tests.engines.standin.engine import StandInEngine
from tests.engines.standin.plan import StandInPlan
from tests.engines.standin.platform import StandInPlatform

__all__ = ["StandInDevice", "StandInEngine", "StandInPlan", "StandInPlatform"]
