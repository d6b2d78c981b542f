"""The terms of a license: which models, on which machines, with which content, from when, until when."""

from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from repoagent.api import InvalidArgumentError


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


@dataclass(frozen=True, slots=True)
class Terms:
    """What a license allows.

    Attributes:
        models: Shell patterns for names of models, case-sensitive.
        not_before: When it begins, with a time zone.
        expires: When it ends.
        hosts: Identifiers of machines (``repoagent license host``); empty: any machine.
        digest: The digest of the model's version directories, ``sha256:...``; empty: any content.
        licensee: For people: whom the license was issued to.
    """

    models: tuple[str, ...]
    not_before: datetime
    expires: datetime
    hosts: tuple[str, ...] = ()
    digest: str = ""
    licensee: str = ""

    def check(self, model: str, moment: datetime) -> None:
        """Refuse another model, or one at another time.

        Raises:
            InvalidArgumentError: the license is not for ``model``, or has not begun at ``moment``.
        """
        if not any(fnmatchcase(model, pattern) for pattern in self.models):
            raise InvalidArgumentError(f"the license is not for the model '{model}'")
        if moment < self.not_before:
            raise InvalidArgumentError(f"the license begins only at {self.not_before.isoformat()}")

    def check_host(self, here: str) -> None:
        """Refuse another machine than those of the license.

        Raises:
            InvalidArgumentError: the license names machines, and ``here`` is none of them.
        """
        if self.hosts and here not in self.hosts:
            raise InvalidArgumentError(f"the license is for {len(self.hosts)} other machines; this one is {here}")

    def check_content(self, digest: str) -> None:
        """Refuse other content.

        Raises:
            InvalidArgumentError: the license is for one digest, and ``digest`` is another.
        """
        if self.digest and digest != self.digest:
            raise InvalidArgumentError(
                f"the license is for other content: expected {self.digest}, the model has {digest}"
            )
