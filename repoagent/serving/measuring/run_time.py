"""How long the executions of a model take."""

from collections.abc import Iterable
from typing import Final

_QUICK_NS: Final = 100_000
"""A run that takes less than this is over sooner than another thread is awake."""
_QUICK_DEBT_NS: Final = 5_000_000
"""How much longer than that runs may have taken together, lately: about one slice of another process's time."""
_LARGER: Final = 4
"""How many times larger than one that was quick an input may be that is expected to be quick."""
_MOST_DEBT_NS: Final = 1_000_000_000
_MOST_WAIT_NS: Final = 100_000_000
_UNKNOWN_NS: Final = 10_000_000
_FOR_EVER_NS: Final = 1 << 62


class RunTime:
    """How long the runs of one version of a model take, on whichever of its instances.

    The instances write it from their threads without a lock: a run that is lost now and then changes nothing.
    """

    __slots__ = ("_debt_ns", "quick", "quick_bytes", "usual_ns")

    def __init__(self, usual_ns: int = _UNKNOWN_NS) -> None:
        """``usual_ns`` is what is assumed before the first run."""
        self._debt_ns = _QUICK_DEBT_NS
        self.quick = False
        """Lately every request took less time than it takes to wake another thread up for it."""
        self.quick_bytes = 0
        """Up to so many bytes of inputs that holds: a few times as many as were quick. Beyond, it is unknown."""
        self.usual_ns = usual_ns
        """How long most runs take; large if that means nothing for the next one. Unlike :attr:`quick` it tolerates
        a slow run now and then."""

    def note(self, duration_ns: int, cpu_ns: int = 0, size: int = 0) -> None:
        """A run took ``duration_ns`` for inputs of ``size`` bytes; what a processor did for it meanwhile, if it is
        known, does not matter.

        What it took beyond the limit is a debt, which the next quick runs pay back. So a run that the machine
        interrupted now and then is forgiven, one that took a second is held against the model for ten thousand runs,
        and a model that is slow on average is never quick. No debt is longer than that: a model may change its ways.
        """
        debt = self._debt_ns + duration_ns - _QUICK_NS
        self._debt_ns = debt = 0 if debt < 0 else debt if debt < _MOST_DEBT_NS else _MOST_DEBT_NS
        self.quick = debt < _QUICK_DEBT_NS
        if duration_ns < _QUICK_NS and size * _LARGER > self.quick_bytes:
            self.quick_bytes = size * _LARGER
        # What is usual falls fast and rises slowly, so that it stays low as long as every tenth run is short.
        usual = self.usual_ns
        self.usual_ns = (usual + duration_ns) >> 1 if duration_ns < usual else min(duration_ns, usual + (usual >> 4))

    def note_computing(self, duration_ns: int, cpu_ns: int = 0, size: int = 0) -> None:
        """As :meth:`note`: in ``duration_ns`` a run only computed on its thread, for ``cpu_ns`` unless that is 0.

        The rest it waited for a processor or for the interpreter, which is not held against the model: a crowd of
        threads would make it look slow forever. Asking for the processor's time is slow, and not needed while the
        model is quick: a slow run is then held against it as far as it could have been a wait. Once it is not quick
        any more, only the processor's time counts.
        """
        if cpu_ns:
            self.note(cpu_ns, 0, size)
        elif self.quick:
            self.note(duration_ns if duration_ns < _MOST_WAIT_NS else _MOST_WAIT_NS, 0, size)


def common_run_time(paces: Iterable[RunTime]) -> RunTime:
    """The run_time that all instances of a model share; if they do not share one, a run_time that promises nothing."""
    different = set(paces)
    return different.pop() if len(different) == 1 else unpredictable()


def unpredictable() -> RunTime:
    """The run_time of what may take any time: nothing should be noted in it."""
    return RunTime(_FOR_EVER_NS)
