"""Flags of Triton that have no effect here, or name something that does not exist here.

A flag without effect is accepted, its value checked, and the log names the reason. A flag that asks for
something that is not here is refused with the reason: a server that started without it would not be what was ordered.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

from repoagent_server.flags.values import BOOLEAN

__all__ = ["INEFFECTIVE", "REFUSED", "ineffective_notes", "triton_flags"]

_F = TypeVar("_F", bound=Callable[..., Any])

_META: Final = "repoagent_server.ineffective"
_NO_GPU_POOL: Final = "no memory pool of CUDA is kept here"


class _Pattern(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """A text of this form."""

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self._pattern = re.compile(pattern)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if self._pattern.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not of the form {self.name}", param, ctx)
        return str(value)


class _HostPolicy(_Pattern):
    """``POLICY,SETTING=VALUE`` with a setting that Triton knows."""

    def __init__(self) -> None:
        super().__init__("<policy_name>,<setting>=<value>", r"[^,=]+,[^,=]+=.+")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        setting = text.partition(",")[2].partition("=")[0]
        if setting not in ("numa-node", "cpu-cores"):
            self.fail(
                f"Unsupported host policy setting '{setting}' is specified, supported settings are "
                "'numa-node', 'cpu-cores'",
                param,
                ctx,
            )
        return text


_COUNT: Final = click.IntRange(0)
_DEVICE_BYTES: Final = _Pattern("<GPU device ID>:<bytes>", r"\d+:\d+")

INEFFECTIVE: Final[Mapping[str, tuple[Any, str]]] = MappingProxyType(
    {
        "--pinned-memory-pool-byte-size": (_COUNT, "no pool of pinned memory is kept here"),
        "--cuda-memory-pool-byte-size": (_DEVICE_BYTES, _NO_GPU_POOL),
        "--cuda-virtual-address-size": (_DEVICE_BYTES, "implicit states of sequences are kept in the CPU's memory"),
        "--min-supported-compute-capability": (click.FLOAT, "no GPU is chosen by it"),
        "--model-load-gpu-limit": (
            _Pattern("<device_id>:<fraction>", r"\d+:\d+(\.\d+)?"),
            "the memory of GPUs is not watched",
        ),
        "--enable-peer-access": (BOOLEAN, "GPUs do not exchange tensors here"),
        "--buffer-manager-thread-count": (_COUNT, "tensors are not copied by threads of their own"),
        "--host-policy": (_HostPolicy(), "instances are not bound to processors or memory nodes; use numactl"),
        "--backend-directory": (
            click.Path(),
            "backends are Python packages here, found when they are installed; no library is loaded from it",
        ),
        "--allow-gpu-metrics": (BOOLEAN, "there are no metrics of GPUs"),
        "--metrics-interval-ms": (click.FLOAT, "metrics are read at the moment when they are asked for"),
        "--grpc-infer-thread-count": (click.IntRange(2, 128), "one event loop serves gRPC"),
        "--grpc-infer-allocation-pool-size": (_COUNT, "requests of gRPC are not pooled"),
        "--grpc-max-response-pool-size": (click.IntRange(1), "responses of gRPC are not pooled"),
    }
)
"""Flag -> the kind of its value, and why it does nothing."""

_SAGEMAKER: Final = (
    "the SageMaker endpoint is not here; put a proxy in front of --http-port that maps /ping, /invocations"
)
_VERTEX: Final = "the Vertex AI endpoint is not here; put a proxy in front of --http-port that maps its routes"

REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "--allow-sagemaker": _SAGEMAKER,
        "--sagemaker-port": _SAGEMAKER,
        "--sagemaker-safe-port-range": _SAGEMAKER,
        "--sagemaker-thread-count": _SAGEMAKER,
        "--allow-vertex-ai": _VERTEX,
        "--vertex-ai-port": _VERTEX,
        "--vertex-ai-thread-count": _VERTEX,
        "--vertex-ai-default-model": _VERTEX,
    }
)
"""Flag -> why it cannot be had. What only switches it off (``--allow-...=false``) is accepted."""


def triton_flags(command: _F) -> _F:
    """Give ``command`` the flags of this page; :func:`ineffective_notes` lists those that were given."""
    for flag, (kind, reason) in reversed(list(INEFFECTIVE.items())):
        command = click.option(
            flag,
            type=kind,
            multiple=True,
            expose_value=False,
            hidden=True,
            help=f"Accepted, and has no effect: {reason}.",
            callback=_note(flag, reason),
        )(command)
    for flag, reason in reversed(list(REFUSED.items())):
        command = click.option(
            flag, expose_value=False, hidden=True, help=f"Refused: {reason}.", callback=partial(_refuse, flag, reason)
        )(command)
    return command


def ineffective_notes() -> tuple[str, ...]:
    """One sentence for each flag that was given and has no effect; inside a command only."""
    notes: list[str] = click.get_current_context().meta.get(_META, [])
    return tuple(notes)


def _note(flag: str, reason: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, _: click.Parameter, values: Any) -> None:
        if values:
            ctx.meta.setdefault(_META, []).append(f"{flag} has no effect: {reason}")

    return note


def _refuse(flag: str, reason: str, ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    switched_off = flag.startswith("--allow-") and value is not None and not BOOLEAN.convert(value, parameter, ctx)
    if value is not None and not switched_off:
        raise click.UsageError(f"{flag}: {reason}", ctx)
