"""Parts of the API that only those may use who send a header with a value that the operator chose."""

import enum
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


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
