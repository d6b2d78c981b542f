"""Flags of Triton that have no effect here: each is accepted, its value checked, and a warning names the reason.

Also the one that Triton has replaced and that works, with a warning.
"""

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from repoagent.cli.flags import BOOLEAN

_F = TypeVar("_F", bound=Callable[..., Any])

_META: Final = "repoagent_server.ineffective"
_NO_GPU_POOL: Final = "no memory pool of CUDA is kept here"
_ONE_LOOP: Final = "one event loop serves each endpoint"


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
        "--pinned-memory-pool-byte-size": (_COUNT, "there is no pool of pinned memory"),
        "--cuda-memory-pool-byte-size": (_DEVICE_BYTES, _NO_GPU_POOL),
        "--cuda-virtual-address-size": (_DEVICE_BYTES, "implicit states of sequences are kept in the CPU's memory"),
        "--min-supported-compute-capability": (click.FLOAT, "the server does not choose GPUs by capability"),
        "--model-load-gpu-limit": (
            _Pattern("<device_id>:<fraction>", r"\d+:\d+(\.\d+)?"),
            "the server does not limit the memory of GPUs",
        ),
        "--enable-peer-access": (BOOLEAN, "GPUs do not exchange tensors"),
        "--buffer-manager-thread-count": (_COUNT, "there are no threads that copy tensors"),
        "--host-policy": (_HostPolicy(), "instances are not bound to processors or memory nodes; use numactl"),
        "--backend-directory": (
            click.Path(),
            "backends are Python packages, found once they are installed",
        ),
        "--allow-gpu-metrics": (BOOLEAN, "there are no GPU metrics"),
        "--metrics-interval-ms": (click.FLOAT, "metrics are read on request"),
        "--grpc-infer-thread-count": (click.IntRange(2, 128), "one event loop serves gRPC"),
        "--grpc-infer-allocation-pool-size": (_COUNT, "gRPC requests are not pooled"),
        "--grpc-max-response-pool-size": (click.IntRange(1), "gRPC responses are not pooled"),
        "--sagemaker-thread-count": (click.IntRange(1), _ONE_LOOP),
        "--vertex-ai-thread-count": (click.IntRange(1), _ONE_LOOP),
    }
)
"""Flag -> the kind of its value, and why it does nothing."""


def ineffective_flags(command: _F) -> _F:
    """Give ``command`` the flags of this page; :func:`ineffective_warnings` lists those that were given."""
    for flag, (kind, reason) in reversed(list(INEFFECTIVE.items())):
        command = click.option(
            flag,
            type=kind,
            multiple=True,
            expose_value=False,
            hidden=True,
            help=f"Accepted, without effect: {reason}.",
            callback=_warn(flag, reason),
        )(command)
    return command


def ineffective_warnings() -> tuple[str, ...]:
    """One sentence for each flag that was given and has no effect; inside a command only."""
    warnings: list[str] = click.get_current_context().meta.get(_META, [])
    return tuple(warnings)


def _warn(flag: str, reason: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def warn(ctx: click.Context, _: click.Parameter, values: Any) -> None:
        if values:
            ctx.meta.setdefault(_META, []).append(f"{flag} has no effect: {reason}")

    return warn


def take_strictness(strict: bool, disable: bool) -> tuple[bool, tuple[str, ...]]:
    """Whether configurations must be complete, and what to warn of; inside a command only.

    Args:
        strict: ``--strict-model-config``, which is deprecated.
        disable: ``--disable-auto-complete-config``, which overrules it.
    """
    source = click.get_current_context().get_parameter_source("strict_model_config")
    if source in (None, ParameterSource.DEFAULT):
        return disable, ()
    warnings = ["'--strict-model-config' has been deprecated! Please use '--disable-auto-complete-config' instead."]
    if disable and not strict:
        warnings.append(
            "Overriding deprecated '--strict-model-config' from False to True in favor of "
            "'--disable-auto-complete-config'!"
        )
    return strict or disable, tuple(warnings)
