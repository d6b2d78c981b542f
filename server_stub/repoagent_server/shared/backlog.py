"""How much of streamed answers may wait in memory for clients that read slowly."""

from typing import Final

__all__ = ["Backlog"]

_ONE: Final = 1 << 25
_ALL: Final = 1 << 27
_FAIR: Final = 1 << 18


class Backlog:
    """The bytes that wait, over all streams of one front end. Belongs to the thread of its event loop.

    A stream may run ahead of its client by 32 MiB, so that a burst of a quick model harms no one who reads.
    When the streams of all clients together are ahead by 128 MiB, those that are ahead by more than 256 KiB are given
    up.
    """

    def __init__(self) -> None:
        self.total = 0

    def change(self, before: int, now: int) -> None:
        """Of one stream, ``now`` bytes wait and ``before`` did at the last report."""
        self.total += now - before

    def allows(self, own: int) -> bool:
        """Whether a stream of which ``own`` bytes wait may go on."""
        return own <= _FAIR or (own <= _ONE and self.total <= _ALL)
