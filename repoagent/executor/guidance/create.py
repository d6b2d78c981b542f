"""Which backend an executor's guided decoding uses."""

from collections.abc import Sequence
from importlib.util import find_spec

from repoagent.executor.engine.guide import GuideFactory
from repoagent.executor.guidance.vocabulary import Vocabulary
from repoagent.executor.guidance.xgrammar_core import core
from repoagent.executor.types.errors import CheckError, UnsupportedFeatureError
from repoagent.executor.types.guidance import GuidedDecodingConfig
from repoagent.installing import install_hint

__all__ = ["create_guides"]


def create_guides(config: GuidedDecodingConfig | None, vocab_size: int, end_ids: Sequence[int]) -> GuideFactory | None:
    """The guides of an executor, or None when it has no guided decoding.

    Raises ``UnsupportedFeatureError`` when the backend is not there, ``CheckError`` for a vocabulary that cannot be.
    """
    if config is None:
        return None
    _check_installed(config.backend)
    if config.encoded_vocab is None or not any(config.encoded_vocab):
        raise CheckError("GuidedDecodingConfig.encoded_vocab is needed: the text of every token, by id")
    stop_ids = config.stop_token_ids if config.stop_token_ids is not None else list(end_ids)
    vocabulary = Vocabulary.of(config.encoded_vocab, config.tokenizer_str, stop_ids, vocab_size)
    return _factory(config.backend, vocabulary)


def _factory(backend: GuidedDecodingConfig.GuidedDecodingBackend, vocabulary: Vocabulary) -> GuideFactory:
    # Imported here: a base install has neither.
    if backend is GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR:
        from repoagent.executor.guidance.xgrammar_backend import XgrammarFactory

        return XgrammarFactory(vocabulary)
    from repoagent.executor.guidance.llguidance_backend import LlguidanceFactory

    return LlguidanceFactory(vocabulary)


def _check_installed(backend: GuidedDecodingConfig.GuidedDecodingBackend) -> None:
    if backend is GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR:
        core()
    elif find_spec("llguidance") is None:
        raise UnsupportedFeatureError(
            "GuidedDecodingBackend.LLGUIDANCE",
            f"llguidance is not installed; {install_hint('repoagent-core', 'llm')}",
        )
