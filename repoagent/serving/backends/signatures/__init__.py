"""What a model's file states about its tensors, and what follows for its configuration."""

from repoagent.serving.backends.signatures.completion import complete, validate
from repoagent.serving.backends.signatures.signature import Signature, TensorInfo

__all__ = ["Signature", "TensorInfo", "complete", "validate"]
