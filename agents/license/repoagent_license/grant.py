"""What an authorization says."""

from dataclasses import dataclass
from datetime import UTC, datetime

from repoagent.api import InvalidArgumentError

__all__ = ["Grant", "now", "parse_time"]


@dataclass(frozen=True, slots=True)
class Grant:
    """The model may be loaded. ``until`` is when that ends, None for never; ``by`` is for the load report."""

    by: str
    until: datetime | None = None

    def check(self, moment: datetime) -> None:
        """Refuse a grant that is over at ``moment``.

        Raises:
            InvalidArgumentError: it is.
        """
        if self.until is not None and moment >= self.until:
            raise InvalidArgumentError(f"{self.by} ended at {self.until.isoformat()}")


def now() -> datetime:
    """The time of this machine's clock."""
    return datetime.now(UTC)


def parse_time(text: object, what: str) -> datetime:
    """Read an ISO 8601 time with a time zone, such as ``2027-01-31T00:00:00Z``; ``what`` is for the message.

    Raises:
        InvalidArgumentError: it is not.
    """
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgumentError(f"{what} is not a time with a time zone; expected the form 2027-01-31T00:00:00Z")
    return moment
