"""What a signature that does not hold raises."""

from repoagent.api import InvalidArgumentError

__all__ = ["VerificationError"]


class VerificationError(InvalidArgumentError):
    """The model is not what its signer signed, or the signer is not trusted. The text names the reason."""
