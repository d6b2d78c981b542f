"""A request on its way in: which request and model an error is about, and how many texts it has."""

from dataclasses import dataclass

from repoagent.errors import InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits


def too_many_texts(most: int) -> InvalidArgumentError:
    """The error for a request of more than ``most`` elements of BYTES."""
    return InvalidArgumentError(
        f"the request has more than {most} elements of BYTES; send them in several requests, or raise "
        f"{Limits.flag('request_texts')}"
    )


@dataclass(slots=True)
class RequestLabel:
    """A request on its way in: the model it names, and its id once that is known."""

    model: str
    request_id: str = ""
    limits: Limits = DEFAULT_LIMITS
    texts: int = 0
    """Elements of BYTES that it has, so far."""

    def count_texts(self, count: int) -> None:
        """Count ``count`` more elements of BYTES.

        Raises:
            InvalidArgumentError: they are too many.
        """
        self.texts += count
        if self.texts > self.limits.request_texts:
            raise too_many_texts(self.limits.request_texts)

    def error(self, text: str) -> InvalidArgumentError:
        """``text`` with the request's id in front, as Triton's core words what is wrong with an inference request."""
        return InvalidArgumentError(f"[request id: {self.request_id or '<id_unknown>'}] {text}")

    def wrong_count(self, name: str, expected: int, found: int) -> InvalidArgumentError:
        """BYTES input ``name`` has ``found`` elements where its shape has ``expected``."""
        where = f"inference input '{name}' for model '{self.model}'"
        if found < expected:
            return self.error(f"expected {expected} string elements for {where}, got {found}")
        return self.error(f"unexpected number of string elements {expected + 1} for {where}, expecting {expected}")

    def wrong_size(self, name: str, expected: int, found: int) -> InvalidArgumentError:
        """Input ``name`` has ``found`` bytes where its type and shape need ``expected``."""
        return self.error(
            f"input byte size mismatch for input '{name}' for model '{self.model}'. Expected {expected}, got {found}"
        )
