"""DecodingMode: how tokens are chosen, as one 32-bit state."""

from typing import ClassVar

from repoagent_llm.types.errors import CheckError

__all__ = ["DecodingMode"]

# Bits 0..11 are options, bits 12..20 the mode itself.
_OPTIONS = {
    name: 1 << bit
    for bit, name in enumerate(
        (
            "repetition",
            "frequency",
            "presence",
            "temperature",
            "min_length",
            "ban_words",
            "stop_words",
            "max_length_stop",
            "explicit_eos",
            "no_repeat_ngram",
            "min_p",
            "variable_beam_width",
        )
    )
}


def _bits(*names: str) -> int:
    return sum(_OPTIONS[name] for name in names)


_PENALTIES = _bits("repetition", "frequency", "presence", "temperature", "min_length")
_STOPS = _bits("stop_words", "max_length_stop")
_BEAM_OPTIONS = _PENALTIES | _bits("ban_words", "no_repeat_ngram") | _STOPS
_USUAL = _BEAM_OPTIONS | _bits("min_p")
_DRAFTING = _STOPS | _bits("explicit_eos")
_AUTO, _TOP_K, _TOP_P, _BEAM, _MEDUSA, _LOOKAHEAD, _EXPLICIT, _EXTERNAL, _EAGLE = (1 << bit for bit in range(12, 21))
_MODES = (1 << 21) - (1 << 12)


class DecodingMode:
    """How tokens are chosen. Made by the static constructors only; other attributes may be set on it."""

    _NAMES: ClassVar[dict[int, str]] = {
        _TOP_K: "TopKorTopP",
        _TOP_P: "TopKorTopP",
        _TOP_K | _TOP_P: "TopKorTopP",
        _BEAM: "BeamSearch",
        _MEDUSA: "Medusa",
        _LOOKAHEAD: "Lookahead",
        _EXPLICIT: "ExplicitDraftTokens",
        _EXTERNAL: "ExternalDraftTokens",
        _EAGLE: "Eagle",
    }

    def __init__(self, state: int) -> None:
        self._state = state

    @staticmethod
    def Auto() -> "DecodingMode":  # noqa: N802
        """Beam search or top-k/top-p, by the beam width."""
        return DecodingMode(_AUTO)

    @staticmethod
    def TopK() -> "DecodingMode":  # noqa: N802
        """Top-k sampling."""
        return DecodingMode(_TOP_K | _USUAL)

    @staticmethod
    def TopP() -> "DecodingMode":  # noqa: N802
        """Top-p sampling."""
        return DecodingMode(_TOP_P | _USUAL)

    @staticmethod
    def TopKTopP() -> "DecodingMode":  # noqa: N802
        """Top-k sampling followed by top-p sampling."""
        return DecodingMode(_TOP_K | _TOP_P | _USUAL)

    @staticmethod
    def BeamSearch() -> "DecodingMode":  # noqa: N802
        """Beam search."""
        return DecodingMode(_BEAM | _BEAM_OPTIONS)

    @staticmethod
    def Medusa() -> "DecodingMode":  # noqa: N802
        """Medusa heads."""
        return DecodingMode(_MEDUSA | _DRAFTING | _bits("min_length"))

    @staticmethod
    def Lookahead() -> "DecodingMode":  # noqa: N802
        """Lookahead decoding."""
        return DecodingMode(_LOOKAHEAD | _DRAFTING | _bits("min_length"))

    @staticmethod
    def ExplicitDraftTokens() -> "DecodingMode":  # noqa: N802
        """Draft tokens from a trained recurrent drafter."""
        return DecodingMode(_EXPLICIT | _DRAFTING)

    @staticmethod
    def Eagle() -> "DecodingMode":  # noqa: N802
        """EAGLE drafting."""
        return DecodingMode(_EAGLE | _DRAFTING)

    def _has(self, bits: int) -> bool:
        return bool(self._state & bits)

    def isAuto(self) -> bool:  # noqa: N802
        """The engine chooses."""
        return self._has(_AUTO)

    def isTopK(self) -> bool:  # noqa: N802
        """Top-k is part of the mode."""
        return self._has(_TOP_K)

    def isTopP(self) -> bool:  # noqa: N802
        """Top-p is part of the mode."""
        return self._has(_TOP_P)

    def isTopKorTopP(self) -> bool:  # noqa: N802
        """Top-k or top-p is part of the mode."""
        return self._has(_TOP_K | _TOP_P)

    def isTopKandTopP(self) -> bool:  # noqa: N802
        """Both are part of the mode."""
        return self._has(_TOP_K) and self._has(_TOP_P)

    def isBeamSearch(self) -> bool:  # noqa: N802
        """Beam search."""
        return self._has(_BEAM)

    def isMedusa(self) -> bool:  # noqa: N802
        """Medusa heads."""
        return self._has(_MEDUSA)

    def isLookahead(self) -> bool:  # noqa: N802
        """Lookahead decoding."""
        return self._has(_LOOKAHEAD)

    def isExplicitDraftTokens(self) -> bool:  # noqa: N802
        """Explicit draft tokens."""
        return self._has(_EXPLICIT)

    def isEagle(self) -> bool:  # noqa: N802
        """EAGLE drafting."""
        return self._has(_EAGLE)

    def useVariableBeamWidthSearch(self, enabled: bool) -> "DecodingMode":  # noqa: N802
        """Set or clear the option; returns the mode itself."""
        bit = _OPTIONS["variable_beam_width"]
        self._state = self._state | bit if enabled else self._state & ~bit
        return self

    @property
    def name(self) -> str:
        """The name of the mode, "Unknown" for Auto."""
        return self._NAMES.get(self._state & _MODES, "Unknown")

    def __getstate__(self) -> int:
        return self._state

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, int) or not 0 <= state < 2**32:
            raise CheckError("Invalid DecodingMode state!")
        self._state = state

    def __reduce__(self) -> tuple[object, ...]:
        return (DecodingMode, (self._state,))
