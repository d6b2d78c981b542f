"""What the output of a guided request must match, and the vocabulary for that."""

import enum
from dataclasses import dataclass
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.record import Record


@dataclass(eq=False)
class GuidedDecodingParams(Record, readonly=True, pickled=2):
    """The grammar of one request's output."""

    class GuideType(enum.IntEnum):
        """The form of ``guide``; JSON needs none."""

        JSON = 0
        JSON_SCHEMA = 1
        REGEX = 2
        EBNF_GRAMMAR = 3
        STRUCTURAL_TAG = 4

    guide_type: Annotated[GuideType, rules.instance(GuideType)]
    guide: Annotated[str | None, rules.maybe(rules.text)] = None

    def _check_together(self) -> None:
        if self.guide is None and self.guide_type is not self.GuideType.JSON:
            raise CheckError("The guide string must be provided unless using GuideType::kJSON.")


@dataclass(eq=False)
class GuidedDecodingConfig(Record, pickled=4):
    """The backend, and the vocabulary: token texts by id, the tokenizer's JSON, and the ids that end a text."""

    class GuidedDecodingBackend(enum.IntEnum):
        """Names of TensorRT-LLM: llguidance computes which tokens are allowed, whichever is given."""

        XGRAMMAR = 0
        LLGUIDANCE = 1

    backend: Annotated[GuidedDecodingBackend, rules.instance(GuidedDecodingBackend)]
    encoded_vocab: Annotated[list[str] | None, rules.maybe(rules.list_of(rules.text))] = None
    tokenizer_str: Annotated[str | None, rules.maybe(rules.text)] = None
    stop_token_ids: Annotated[list[int] | None, rules.maybe(rules.tokens)] = None
