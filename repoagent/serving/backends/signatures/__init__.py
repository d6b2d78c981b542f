"""What a model's file states about its tensors, and what follows for its configuration."""

from repoagent.serving.backends.signatures.completion import Signature, TensorInfo, complete, validate

__all__ = ["Signature", "TensorInfo", "complete", "validate"]
