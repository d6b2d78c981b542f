"""How long, and with which priority, the blocks of a request stay in the KV cache."""

from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.enums import KvCacheTransferMode
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.record import Record

__all__ = ["KvCacheRetentionConfig"]

DEFAULT_PRIORITY = 35


def _priority(value: object, where: str) -> int:
    number: int = rules.integer()(value, where)
    if not 0 <= number <= 100:
        raise CheckError("Invalid priority value. Must be between 0 and 100")
    return number


@dataclass
class KvCacheRetentionConfig(Record, readonly=True, pickled=5):
    """Priorities of a prompt's ranges, and of the tokens generated after it. Ranges are kept sorted by their start."""

    @dataclass
    class TokenRangeRetentionConfig(Record, pickled=4):
        """Tokens [token_start, token_end) (None: to the prompt's end) keep ``priority`` for ``duration_ms``."""

        token_start: Annotated[int, rules.integer()]
        token_end: Annotated[int | None, rules.maybe(rules.integer())]
        priority: Annotated[int, _priority]
        duration_ms: Annotated[timedelta | None, rules.maybe(rules.duration)] = None

    token_range_retention_configs: Annotated[
        list[TokenRangeRetentionConfig], rules.list_of(rules.instance(TokenRangeRetentionConfig))
    ]
    decode_retention_priority: Annotated[int, _priority] = DEFAULT_PRIORITY
    decode_duration_ms: Annotated[timedelta | None, rules.maybe(rules.duration)] = None
    transfer_mode: Annotated[KvCacheTransferMode, rules.instance(KvCacheTransferMode)] = KvCacheTransferMode.DRAM
    directory: Annotated[str, rules.text] = ""

    def _check_together(self) -> None:
        ranges = self.token_range_retention_configs
        ranges.sort(key=lambda item: item.token_start)
        for item in ranges:
            if item.token_start < 0:
                raise CheckError("Token indices must be non-negative.")
            if item.token_end is not None and item.token_end <= item.token_start:
                raise CheckError("Range must have a positive, non-zero length.")
        for before, after in pairwise(ranges):
            if before.token_end is None:
                raise CheckError("Invalid use of end indicator.")
            if before.token_end > after.token_start:
                raise CheckError("Token ranges must be non-overlapping.")
