"""Triton's former flags for traces, each of which ``--trace-config`` has by another name."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

from repoagent_server.flags.flags import BackendSetting

__all__ = ["former_trace_flags", "take_former_trace_flags"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: Flag -> its mode and setting in ``--trace-config``.
_SETTINGS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "--trace-file": ("triton", "file"),
        "--trace-level": ("", "level"),
        "--trace-rate": ("", "rate"),
        "--trace-count": ("", "count"),
        "--trace-log-frequency": ("triton", "log-frequency"),
    }
)


def former_trace_flags(command: _F) -> _F:
    """Give ``command`` these flags."""
    for flag, (mode, setting) in reversed(list(_SETTINGS.items())):
        new = f"--trace-config={mode}{',' * bool(mode)}{setting}=..."
        command = click.option(flag, multiple=True, hidden=True, help=f"Triton's former name for {new}.")(command)
    return command


def take_former_trace_flags(values: dict[str, Any]) -> list[BackendSetting]:
    """Take the flags' values out of ``values``, as ``--trace-config`` would have them."""
    return [
        (*place, value)
        for flag, place in _SETTINGS.items()
        for value in values.pop(flag.removeprefix("--").replace("-", "_"))
    ]
