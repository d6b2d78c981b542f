"""Guide: what the engine asks of a grammar while it writes one sequence."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from repoagent_llm.types.guidance import GuidedDecodingParams


class Guide(Protocol):
    """The state of one grammar in one sequence. Any method may raise; that fails the request it belongs to."""

    def mask(self, row: npt.NDArray[np.float32]) -> None:
        """Set the logits of tokens that may not come next to minus infinity."""

    def accept(self, token: int) -> None:
        """Move on over a token that was chosen."""

    def is_end(self, token: int) -> bool:
        """Whether a token ends the text rather than being part of it."""

    def forced(self) -> Sequence[int]:
        """Tokens that very likely come next, whatever the model prefers; it changes nothing."""

    def fork(self) -> "Guide":
        """An independent copy in the same state."""


class GuideFactory(Protocol):
    """Makes guides; belongs to one vocabulary. ``stop_ids``: the tokens that end a guided text."""

    @property
    def stop_ids(self) -> frozenset[int]: ...

    def create(self, params: GuidedDecodingParams) -> Guide:
        """A guide at the start of a text; raises ``CheckError`` for a grammar that cannot be compiled."""
