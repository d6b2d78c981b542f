"""Language models: a decoder folder and its tokenizer, served by the executor."""

from repoagent_llm.backend.backend import LlmBackend

__all__ = ["LlmBackend"]
