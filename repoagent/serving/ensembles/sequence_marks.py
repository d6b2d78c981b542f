"""Which sequence a tensor inside an ensemble belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferRequest, ParameterValue

__all__ = ["SequenceMarks"]

_SIGN_BIT = 1 << 63


@dataclass(frozen=True, slots=True)
class SequenceMarks:
    """A request's place in its sequence. A step has that of the request, or what an earlier step's answer names."""

    correlation_id: int | str = 0
    start: bool = False
    end: bool = False

    @classmethod
    def of(cls, request: InferRequest) -> "SequenceMarks":
        """Those of ``request``."""
        return cls(request.asked.correlation_id, request.asked.sequence_start, request.asked.sequence_end)

    def after(self, parameters: Mapping[str, ParameterValue]) -> "SequenceMarks":
        """These, or those in the parameters of a response: what it leaves out of the flags is then not set.

        Raises:
            InvalidArgumentError: one of them has a type that means nothing; the texts are Triton's.
        """
        if not any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
            return self
        number = parameters.get("sequence_id", self.correlation_id)
        if isinstance(number, bool | float):
            raise InvalidArgumentError(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            )
        return SequenceMarks(number, _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end"))

    def parameters(self) -> dict[str, ParameterValue]:
        """What an ensemble's answer says of them."""
        number = self.correlation_id
        if isinstance(number, int):
            number = (number + _SIGN_BIT) % (2 * _SIGN_BIT) - _SIGN_BIT  # Parameters are signed, IDs are not.
        return {"sequence_id": number, "sequence_start": self.start, "sequence_end": self.end}


def _flag(parameters: Mapping[str, ParameterValue], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
    return value
