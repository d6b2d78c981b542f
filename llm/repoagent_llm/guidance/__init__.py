"""Guided decoding: output that follows a grammar. By llguidance, made by ``create_guides``."""

from repoagent_llm.guidance.llguidance_backend import create_guides

__all__ = ["create_guides"]
