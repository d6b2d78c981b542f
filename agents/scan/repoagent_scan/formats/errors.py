"""What a file raises that is not what its first bytes claim."""

__all__ = ["MalformedError"]


class MalformedError(ValueError):
    """The file is damaged, or made to mislead. The text says where."""
