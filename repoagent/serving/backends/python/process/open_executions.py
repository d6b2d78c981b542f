"""In the server: executions that a process has been given and not yet answered, and how many that may be."""

from collections.abc import Callable, Sequence
from typing import Final

from repoagent.serving.backends.python.process.memory import ProtocolError

__all__ = ["Executed", "Outstanding", "RequestsAhead", "Returned"]

Executed = Callable[[int, int, int], None]
"""Called with the place of an execution among those given, and when it began and ended, before it is answered."""
Returned = Callable[[Sequence[int]], None]
"""Called with the places of executions that were not begun and are not going to be."""

_AHEAD_NS: Final = 2_000_000


class RequestsAhead:
    """How many executions a process is given at once: as many as are usually over in two milliseconds, up to ``most``.

    So nothing waits long where neither its timeout nor its cancellation is looked at, nor another instance takes it.
    What is usual rises at once and falls slowly: a model that is slow now and then is given one at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._usual_ns = _AHEAD_NS

    @property
    def limit(self) -> int:
        return max(1, min(self._most, _AHEAD_NS // max(1, self._usual_ns)))

    def note(self, duration_ns: int) -> None:
        """An execution took so long."""
        self._usual_ns = max(duration_ns, self._usual_ns - (self._usual_ns >> 3))


class Outstanding:
    """The executions of one message. Each is known by the number of its first request."""

    def __init__(self, executions: Sequence[Sequence[int]], executed: Executed, returned: Returned | None) -> None:
        self.numbers: Final = [number for execution in executions for number in execution]
        self._left = {execution[0]: place for place, execution in enumerate(executions)}
        self._first = self.numbers[0]
        self._executed = executed
        self._returned = returned

    @property
    def over(self) -> bool:
        """Whether something is known of every execution."""
        return not self._left

    @property
    def divisible(self) -> bool:
        """Whether executions of it may come back."""
        return self._returned is not None and len(self._left) > 1

    def note(self, number: int, begin_ns: int, end_ns: int) -> None:
        """That execution has ended.

        Raises:
            LookupError: it was not given, or had been heard of.
            TypeError: these are no moments.
        """
        if type(begin_ns) is not int or type(end_ns) is not int:
            raise TypeError("moments are whole numbers")
        self._executed(self._left.pop(number), begin_ns, end_ns)

    def unbegun(self, begun: int) -> list[int]:
        """What another process may do, if this one had begun number ``begun``, or noted nothing.

        The first one counts as begun. What comes back is next time the first one of its message, so no request
        comes back twice, whatever a process notes.
        """
        if self._returned is None:
            return []
        return [number for number in self._left if number > max(begun, self._first)]

    def give_all_back(self) -> None:
        """Nothing was sent of it."""
        assert self._returned is not None
        places, self._left = list(self._left.values()), {}
        self._returned(places)

    def give_back(self, numbers: Sequence[int]) -> None:
        """These have not been begun and are not going to be.

        Raises:
            ProtocolError: they were not given, or had been heard of.
        """
        if self._returned is None or len(set(numbers)) < len(numbers) or not self._sent_ahead(numbers):
            raise ProtocolError("requests come back that were not sent ahead")
        self._returned([self._left.pop(number) for number in numbers])

    def _sent_ahead(self, numbers: Sequence[int]) -> bool:
        return all(number in self._left and number != self._first for number in numbers)
