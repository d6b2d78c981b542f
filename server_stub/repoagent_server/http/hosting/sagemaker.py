"""Amazon SageMaker: ``GET /ping`` and ``POST /invocations``, for one model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from repoagent.errors import InvalidArgumentError
from repoagent_server.http.hosting.service import UNKNOWN, Target
from repoagent_server.http.messages import Request, Response

_PREFIX: Final = "SAGEMAKER_TRITON_"
_INFERENCES: Final = ("infer", "generate", "generate_stream")
_PINGS: Final = ("ready", "live")


@dataclass(frozen=True, slots=True)
class SageMakerOptions:
    """What the operator chose."""

    port: int = 8080
    safe_ports: tuple[int, int] | None = None
    """The lowest and the highest port that the other endpoints may have."""
    model: str = ""
    """The model of ``/invocations``; empty for the only one that is loaded."""
    inference: str = "infer"
    """The operation of ``/invocations``: infer, generate or generate_stream."""
    ping: str = "ready"
    """What ``/ping`` reports: ready or live."""

    @classmethod
    def of(
        cls, environment: Mapping[str, str], port: int = 8080, safe_ports: tuple[int, int] | None = None
    ) -> "SageMakerOptions":
        """Options with what the variables of Triton's image choose.

        Raises:
            InvalidArgumentError: one of them has a value without a meaning.
        """
        return cls(
            port=port,
            safe_ports=safe_ports,
            model=environment.get(f"{_PREFIX}DEFAULT_MODEL_NAME", ""),
            inference=_one_of(_INFERENCES, environment, "INFERENCE_TYPE"),
            ping=_one_of(_PINGS, environment, "PING_MODE"),
        )


def _one_of(known: tuple[str, ...], environment: Mapping[str, str], name: str) -> str:
    value = environment.get(_PREFIX + name, known[0])
    if value not in known:
        raise InvalidArgumentError(f"environment variable {_PREFIX}{name} is '{value}'; use {', '.join(known)}")
    return value


class SageMaker:
    """The platform, for one model."""

    binary_type = b"application/vnd.sagemaker-triton.binary+json;json-header-size="

    def __init__(self, options: SageMakerOptions, model: str) -> None:
        self._paths = {
            b"/ping": f"/v2/health/{options.ping}",
            b"/invocations": f"/v2/models/{quote(model, safe='')}/{options.inference}",
        }

    def target(self, request: Request) -> Target | Response:
        """Where ``request`` belongs, with its own method: the route refuses another one."""
        path = self._paths.get(request.target.partition(b"?")[0])
        return UNKNOWN if path is None else Target(path, request.method)
