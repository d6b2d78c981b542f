"""Adds the backend and the converters. Imported at every start of the program, so it imports nothing itself."""

from collections.abc import Mapping

from repoagent.api.hooks import hookimpl


@hookimpl
def register_backends() -> Mapping[str, str]:
    """What serves language models."""
    return {"llm": "repoagent_llm.backend.backend:LlmBackend"}


@hookimpl
def register_converters() -> Mapping[tuple[str, str], str]:
    """What makes decoder folders, and plans of them."""
    return {
        ("decoder", "tensorrt"): "repoagent_llm.converters.decoder:DecoderConverter",
        ("safetensors", "decoder"): "repoagent_llm.converters.checkpoint:CheckpointConverter",
    }
