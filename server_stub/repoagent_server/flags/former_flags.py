"""Flags that Triton has replaced: those for traces, which ``--trace-config`` has by other names, and
``--strict-model-config``. They work; the log names what takes the place of a deprecated one."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from repoagent_server.flags.values import BackendSetting

__all__ = ["former_trace_flags", "take_former_trace_flags", "take_strictness"]

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
