"""Language models: a decoder folder and its tokenizer, served by the executor."""

from repoagent.serving.backends.llm.backend import LlmBackend

__all__ = ["LlmBackend"]
