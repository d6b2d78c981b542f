"""Headers with a meaning here: those that reach the model as parameters, and those that parts of the API need."""

import enum
import hmac
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from repoagent.errors import InvalidArgumentError

_RESERVED: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)
_EXACT: Final = "(?-i)"
_RESERVED_PREFIX: Final = "triton_"


class HeaderForwarding:
    """Chooses headers by a regular expression, which may match any part of a name; "" chooses none.

    The case of letters means nothing, unless the expression begins with ``(?-i)``.

    Raises:
        InvalidArgumentError: it is not a regular expression.
    """

    def __init__(self, pattern: str = "", *, without: Collection[str] = ()) -> None:
        # RE2, which Triton uses, takes a flag back in the middle of an expression; Python does not.
        exact = pattern.startswith(_EXACT)
        try:
            self._search = re.compile(pattern.removeprefix(_EXACT), 0 if exact else re.IGNORECASE).search
        except re.error as error:
            raise InvalidArgumentError(
                f"'{pattern}' is not a regular expression for names of headers: {error}"
            ) from None
        self._pattern = pattern
        self._without = frozenset(without)
        self.enabled = bool(pattern)
        """Whether any header may be chosen: look here first, it costs nothing."""

    def without(self, names: Collection[str]) -> "HeaderForwarding":
        """The same, but never a header with one of ``names`` (in lower case), whatever the expression is."""
        return HeaderForwarding(self._pattern, without=names)

    def _hides(self, name: str) -> bool:
        return bool(self._without) and name.lower() in self._without

    def chosen(self, headers: Iterable[tuple[str | bytes, str | bytes]]) -> dict[str, str]:
        """The headers that are chosen, under their names; of several values the last counts.

        Raises:
            InvalidArgumentError: one of them has the name of a parameter with a meaning of its own.
        """
        if not self.enabled:
            return {}
        named = ((_text(name), value) for name, value in headers)
        chosen = {name: _text(value) for name, value in named if self._search(name) and not self._hides(name)}
        for name in chosen:
            if name.lower() in _RESERVED or name.lower().startswith(_RESERVED_PREFIX):
                raise InvalidArgumentError(
                    f"the header '{name}' cannot become a parameter of the request: the name is reserved"
                )
        return chosen


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="surrogateescape")


class Api(enum.StrEnum):
    """The parts that can be restricted, under Triton's names."""

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"


@dataclass(frozen=True, slots=True)
class Restriction:
    """The header that a request must have, and its value, which is a secret."""

    header: str
    value: bytes = field(repr=False)

    def admits(self, given: bytes | None) -> bool:
        """Whether the header has the value. The time that this takes does not depend on the value."""
        return given is not None and hmac.compare_digest(given, self.value)


Restrictions: TypeAlias = Mapping[Api, Restriction]
"""What is restricted; the rest is open."""
