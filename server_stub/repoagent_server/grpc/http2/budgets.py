"""What clients may cost: frames that bring nothing, headers, resets and pings."""

from typing import Final

__all__ = ["Bucket", "PingGuard"]

_LONG: Final = 7200.0
"""Seconds between pings of a connection without calls, where these are not permitted: gRPC's number."""


class Bucket:
    """Tokens, of which a frame takes one. They come back with time, and with the answers that the connection gives."""

    __slots__ = ("_answers", "_at", "_most", "_per_answer", "_rate", "_tokens")

    def __init__(self, most: int, rate: float, per_answer: int) -> None:
        self._most = self._tokens = float(most)
        self._rate = rate
        self._per_answer = per_answer
        self._at = 0.0
        self._answers = 0

    def take(self, now: float, answers: int, count: int = 1) -> bool:
        """Take ``count`` tokens; False if there are too few. ``answers`` counts those given so far."""
        earned = (now - self._at) * self._rate + (answers - self._answers) * self._per_answer
        self._tokens = min(self._most, self._tokens + earned) - count
        self._at, self._answers = now, answers
        return self._tokens >= 0


class PingGuard:
    """gRPC's rule for pings of clients: without an answer in between, they must leave a time between them."""

    __slots__ = ("_answers", "_last", "_seconds", "_strikes", "_strikes_allowed", "_without_calls")

    def __init__(self, seconds: float, strikes: int, without_calls: bool) -> None:
        """``strikes``: how many pings may come too early; 0 is no limit."""
        self._seconds = seconds
        self._strikes_allowed = strikes
        self._without_calls = without_calls
        self._strikes = 0
        self._answers = -1
        self._last = 0.0

    def came(self, now: float, answers: int, has_calls: bool) -> bool:
        """Whether the client may go on after this ping."""
        if answers != self._answers:
            self._answers, self._strikes, self._last = answers, 0, now
            return True
        seconds = self._seconds if has_calls or self._without_calls else max(self._seconds, _LONG)
        early = now < self._last + seconds
        self._last = now
        self._strikes += early
        return not self._strikes_allowed or self._strikes <= self._strikes_allowed
