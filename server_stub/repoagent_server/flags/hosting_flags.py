"""The flags of ``repoagent serve`` for SageMaker and Vertex AI, by Triton's names."""

import os
import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from repoagent.errors import InvalidArgumentError
from repoagent_server.flags.values import boolean
from repoagent_server.http.hosting.sagemaker import SageMakerOptions
from repoagent_server.http.hosting.vertex import VertexOptions

_F = TypeVar("_F", bound=Callable[..., Any])
_RANGE: Final = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)


class _PortRange(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``LOWEST-HIGHEST``."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = _RANGE.fullmatch(str(value))
        if match is None or int(match[1]) > int(match[2]):
            self.fail(f"{value!r} is not of the form <lowest port>-<highest port>", param, ctx)
        return int(match[1]), int(match[2])


_DECORATORS: Final = (
    boolean("--allow-sagemaker", default=False, help="Serve SageMaker's routes /ping and /invocations."),
    click.option(
        "--sagemaker-port",
        type=click.IntRange(0, 65535),
        default=8080,
        show_default=True,
        help="Port for SageMaker; 0 takes a free one.",
    ),
    click.option(
        "--sagemaker-safe-port-range",
        type=_PortRange(),
        metavar="LOWEST-HIGHEST",
        help="Refuse to start with another endpoint on a port outside this range.",
    ),
    boolean(
        "--allow-vertex-ai",
        default=False,
        help="Serve the routes of Vertex AI that AIP_..._ROUTE name.",
    ),
    click.option(
        "--vertex-ai-port",
        type=click.IntRange(0, 65535),
        default=8080,
        envvar="AIP_HTTP_PORT",
        show_default=True,
        help="Port for Vertex AI; 0 takes a free one. AIP_HTTP_PORT sets it, too.",
    ),
    click.option(
        "--vertex-ai-default-model",
        default="",
        metavar="MODEL",
        help="The model of Vertex AI's predictions; not needed if only one is loaded.",
    ),
)


def hosting_flags(command: _F) -> _F:
    """Give ``command`` the flags of both platforms."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def take_sagemaker(values: dict[str, Any]) -> SageMakerOptions | None:
    """Take the flags for SageMaker out of ``values``; None if it is not served.

    Raises:
        click.UsageError: a variable of the environment has a value without a meaning.
    """
    allowed, port = values.pop("allow_sagemaker"), values.pop("sagemaker_port")
    safe_ports = values.pop("sagemaker_safe_port_range")
    try:
        return SageMakerOptions.of(os.environ, port, safe_ports) if allowed else None
    except InvalidArgumentError as error:
        raise click.UsageError(f"--allow-sagemaker: {error}") from error


def take_vertex(values: dict[str, Any]) -> VertexOptions | None:
    """Take the flags for Vertex AI out of ``values``; None if it is not served.

    Raises:
        click.UsageError: the environment has no routes.
    """
    allowed, port = values.pop("allow_vertex_ai"), values.pop("vertex_ai_port")
    model = values.pop("vertex_ai_default_model")
    try:
        return VertexOptions.of(os.environ, port, model) if allowed else None
    except InvalidArgumentError as error:
        raise click.UsageError(f"--allow-vertex-ai: {error}") from error
