"""The guides of an executor: llguidance's, whichever backend is named."""

from collections.abc import Sequence
from importlib.util import find_spec

from repoagent.installing import install_hint
from repoagent_llm.engine.guide import GuideFactory
from repoagent_llm.guidance.vocabulary import Vocabulary
from repoagent_llm.types.errors import CheckError, UnsupportedFeatureError
from repoagent_llm.types.guidance import GuidedDecodingConfig

__all__ = ["create_guides"]


def create_guides(config: GuidedDecodingConfig | None, vocab_size: int, end_ids: Sequence[int]) -> GuideFactory | None:
    """The guides of an executor, or None when it has no guided decoding.

    Raises ``UnsupportedFeatureError`` when the backend is not there, ``CheckError`` for a vocabulary that cannot be.
    """
    if config is None:
        return None
    if find_spec("llguidance") is None:
        raise UnsupportedFeatureError(
            f"GuidedDecodingBackend.{config.backend.name}",
            f"llguidance is not installed; {install_hint('repoagent-core', 'llm')}",
        )
    if config.encoded_vocab is None or not any(config.encoded_vocab):
        raise CheckError("GuidedDecodingConfig.encoded_vocab is needed: the text of every token, by id")
    stop_ids = config.stop_token_ids if config.stop_token_ids is not None else list(end_ids)
    vocabulary = Vocabulary.of(config.encoded_vocab, config.tokenizer_str, stop_ids, vocab_size)
    from repoagent_llm.guidance.llguidance_backend import LlguidanceFactory  # a base install has it not

    return LlguidanceFactory(vocabulary)
