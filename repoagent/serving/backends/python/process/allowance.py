"""How much memory one side of a model's process may share with the other."""

import errno
import resource
import sys
from typing import Final, NamedTuple

from repoagent.limits import Limits

__all__ = ["UNLIMITED", "Allowance"]

_SHARE_OF_DESCRIPTORS: Final = 8
"""A segment takes one or two descriptors of the server, which needs others for its clients."""


class Allowance(NamedTuple):
    """Segments, and bytes in all of them."""

    segments: int
    bytes: int

    @classmethod
    def of(cls, limits: Limits) -> "Allowance":
        """What a process may make the server map, or keep."""
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors == resource.RLIM_INFINITY:
            descriptors = sys.maxsize
        segments = max(1, min(limits.python_segments, descriptors // _SHARE_OF_DESCRIPTORS))
        return cls(segments, limits.python_shared_bytes)

    def with_margin(self) -> "Allowance":
        """What a side keeps to by itself. Messages on two sockets overtake each other: the other side may hear of new
        segments before it hears which ones have gone."""
        return Allowance(max(1, self.segments * 3 // 4), max(1, self.bytes * 3 // 4))

    def covers(self, segments: int, size: int) -> bool:
        """Whether there may be so many segments with so many bytes."""
        return segments <= self.segments and size <= self.bytes

    def exceeded(self) -> OSError:
        """The error of who would need more."""
        return OSError(
            errno.ENOMEM,
            f"more than {self.segments} segments or {self.bytes} bytes of shared memory are in use "
            f"({Limits.flag('python_segments')}, {Limits.flag('python_shared_bytes')})",
        )


UNLIMITED: Final = Allowance(sys.maxsize, sys.maxsize)
