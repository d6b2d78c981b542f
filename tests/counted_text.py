"""Text that counts what is copied to add it to another text."""


class CountedText(str):
    """``copied``: characters before it that were copied, of all texts of this class since it was set to 0."""

    __slots__ = ()
    copied = 0

    def __radd__(self, before: str) -> "CountedText":
        """Of the right operand's class, so Python asks it first, also for ``before += text``."""
        CountedText.copied += len(before)
        return CountedText(str(before) + str(self))

    def __add__(self, behind: str) -> "CountedText":
        """The same for a text that has grown so."""
        CountedText.copied += len(self)
        return CountedText(str(self) + str(behind))
