"""Whether a file is a SentencePiece model, the usual ``tokenizer.model``: a vocabulary, no code."""

from typing import Final

from repoagent_scan.formats.content import Buffer
from repoagent_scan.formats.errors import MalformedError
from repoagent_scan.formats.wire import BYTES, Fields

__all__ = ["is_sentencepiece"]

_PIECES, _TRAINER = 1, 2
_KNOWN: Final = frozenset({1, 2, 3, 4, 5})


def is_sentencepiece(data: Buffer) -> bool:
    """Whether ``data`` reads as a ``ModelProto`` of SentencePiece: pieces and how they were trained, nothing else."""
    seen = set()
    try:
        for number, kind, _, _ in Fields(data, most=2_000_000).of(0, len(data)):
            if number not in _KNOWN or kind != BYTES:
                return False
            seen.add(number)
    except MalformedError:
        return False
    return {_PIECES, _TRAINER} <= seen
