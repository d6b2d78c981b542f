"""The first bytes of a plan: for which flavour, which version and which GPUs it was built.

What stands where was found out with plans of TensorRT for RTX 1.7. Of a plan of TensorRT itself only the first bytes
are relied on, as none could be made where this was written: its library judges the rest.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from repoagent.engines.flavours import Flavour
from repoagent.errors import InvalidArgumentError, UnsupportedError

HEADER_SIZE: Final = 64
_MAGIC: Final = {b"vtrt": Flavour.RTX, b"ftrt": Flavour.TENSORRT}
_LIST_OF_MAGIC: Final = ", ".join(sorted(repr(magic.decode()) for magic in _MAGIC))

Capability = tuple[int, int]
"""A GPU's compute capability, such as (8, 9)."""

# The bits of the set of GPUs in a plan's header, from the lowest. A plan for all has one more, whose GPUs the interface
# does not name.
_CAPABILITIES: Final[tuple[Capability, ...]] = ((7, 5), (8, 0), (8, 6), (8, 9), (12, 0), (12, 1))


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """What a plan states about itself."""

    flavour: Flavour
    size: int
    version: tuple[int, ...] | None
    """Major, minor, patch, build; None where the place is not known."""
    capabilities: frozenset[Capability] | None
    others: bool = False
    """Whether it was built for further GPUs, whose compute capabilities are not known."""

    @classmethod
    def of(cls, plan: Any) -> "PlanHeader":
        """Read the header of ``plan``, a buffer; ``InvalidArgumentError`` if it is not a plan, or not all of one."""
        view = memoryview(plan).cast("B")
        flavour = _MAGIC.get(bytes(view[:4]))
        if flavour is None:
            start = bytes(view[:4]).hex(" ") or "nothing"
            raise InvalidArgumentError(f"not a TensorRT plan: it begins with {start}, not with {_LIST_OF_MAGIC}")
        if len(view) < HEADER_SIZE:
            raise InvalidArgumentError(f"the plan is cut off: {len(view)} bytes are less than its header")
        if flavour is Flavour.TENSORRT:
            return cls(flavour, len(view), None, None)
        size = int.from_bytes(view[16:24], "little")
        if size != len(view):
            how = "cut off" if size > len(view) else "followed by something else"
            raise InvalidArgumentError(f"the plan is {how}: it has {len(view)} bytes, and its header states {size}")
        bits = int.from_bytes(view[32:36], "little")
        named = frozenset(one for place, one in enumerate(_CAPABILITIES) if bits >> place & 1)
        return cls(flavour, size, tuple(view[24:28]), named, bits >> len(_CAPABILITIES) != 0)

    def __str__(self) -> str:
        version = "" if self.version is None else f" {_dotted(self.version)}"
        gpus = "" if not self.capabilities else f" for compute capability {_listed(self.capabilities)}"
        return f"{self.flavour.title}{version}{gpus}"


def judge(header: PlanHeader, *, flavour: Flavour, version: str, capabilities: Iterable[Capability]) -> None:
    """Raise ``UnsupportedError`` for a plan that this library cannot run on these GPUs: what it was built for, and what
    is here.

    ``flavour`` and ``version``, such as ``1.7.1.116``, are the library's, ``capabilities`` those of the GPUs.
    """
    here = set(capabilities)
    if header.flavour is not flavour:
        raise UnsupportedError(f"the plan was built with {header}, and here is {flavour.title} {version}: {_REMEDY}")
    if header.version is not None and _numbers(version) != header.version:
        raise UnsupportedError(
            f"the plan was built with {flavour.title} {_dotted(header.version)}, and here is version {version}; a plan "
            f"runs with the version that built it: {_REMEDY}"
        )
    # Of GPUs that are not known here, a plan for further ones may run on them: then the library decides.
    judged = here & set(_CAPABILITIES) if header.others else here
    if header.capabilities is not None and not judged <= header.capabilities:
        lacking = _listed(judged - header.capabilities)
        raise UnsupportedError(
            f"the plan was built for GPUs of compute capability {_listed(header.capabilities)}, and here is one of "
            f"{lacking}: {_REMEDY}"
        )


_REMEDY: Final = "build it again from the original model, for example with the agent 'convert'"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:4] if part.isdigit())


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _listed(capabilities: Iterable[Capability]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in sorted(capabilities)) or "none"
