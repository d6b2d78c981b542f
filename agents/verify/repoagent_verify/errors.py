"""What a signature that does not hold raises."""

from repoagent.api import InvalidArgumentError

__all__ = ["VerificationError", "printable"]


class VerificationError(InvalidArgumentError):
    """The model is not what its signer signed, or the signer is not trusted. The text names the reason, in one line."""

    def __init__(self, message: str) -> None:
        """Escape what would begin a line or move a cursor: names of files are the owner's of the model."""
        super().__init__(printable(message))


def printable(text: str) -> str:
    """``text`` with every character escaped that a line of a terminal or a log cannot show."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
