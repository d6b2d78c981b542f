"""Kinds of command-line values as Triton reads them."""

import os
import re
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_origin, get_type_hints

import click

from repoagent.errors import InvalidArgumentError
from repoagent.serving.scheduling.rate_limiter import EVERY_DEVICE, RateLimiterResource
from repoagent_server.handlers.headers import HeaderForwarding
from repoagent_server.shared.setting import SETTING, Setting

_TRUE: Final = frozenset({"true", "on", "1"})
_FALSE: Final = frozenset({"false", "off", "0"})


class _Boolean(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``true``, ``on``, ``1``, ``false``, ``off`` or ``0``, in any case."""

    name = "boolean"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text not in _TRUE | _FALSE:
            self.fail(f"invalid value for bool option: {value}", param, ctx)
        return text in _TRUE


class _Level(click.IntRange):
    """A whole number of at least 0, or ``true`` for 1 and ``false`` for 0."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        words = {"true": 1, "false": 0}
        return super().convert(words.get(str(value).lower(), value), param, ctx)


class _Processes(click.IntRange):
    """A whole number of at least 1, or ``auto`` for one process for each core that this one may use."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).lower() == "auto":
            return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return super().convert(value, param, ctx)


_RESOURCE: Final = re.compile(r"(?P<name>[^:]+):(?P<count>[0-9]+)(?::(?P<device>[0-9]+))?", re.ASCII)


class _HeaderPattern(click.ParamType):  # type: ignore[type-arg]
    """A regular expression for names of headers."""

    name = "regular expression"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            HeaderForwarding(str(value))
        except InvalidArgumentError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class _Resource(click.ParamType):  # type: ignore[type-arg]
    """``NAME:COUNT`` or ``NAME:COUNT:DEVICE``."""

    name = "resource"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> RateLimiterResource:
        if isinstance(value, RateLimiterResource):
            return value
        match = _RESOURCE.fullmatch(str(value))
        if match is None:
            self.fail(f"{value!r} is not of the form <name>:<count> or <name>:<count>:<device>", param, ctx)
        device = int(match["device"]) if match["device"] else EVERY_DEVICE
        return RateLimiterResource(match["name"], int(match["count"]), device)


BOOLEAN: Final = _Boolean()
HEADER_PATTERN: Final = _HeaderPattern()
LEVEL: Final = _Level(0)
RESOURCE: Final = _Resource()
PROCESSES: Final = _Processes(1, 256)


_F = TypeVar("_F", bound=Callable[..., Any] | click.Command)


def boolean(*names: str, default: bool, help: str) -> Callable[[_F], _F]:  # noqa: A002 - click's own word
    """An option that takes a boolean, or none for true: ``--x``, ``--x=false``, ``--x 0``."""
    return click.option(
        *names, type=BOOLEAN, is_flag=False, flag_value="true", default=default, show_default=True, help=help
    )


_PATH: Final = click.Path(path_type=Path)
_O = TypeVar("_O")


def flags_of(options: type) -> Callable[[_F], _F]:
    """Give a command a flag for each field of the dataclass ``options`` that is a ``setting``."""
    hints = get_type_hints(options)

    def decorate(command: _F) -> _F:
        for one in reversed(_settings(options)):
            command = _flag(one, hints[one.name])(command)
        return command

    return decorate


def take(options: type[_O], values: dict[str, Any], **given: Any) -> _O:
    """Take the values of these flags out of ``values`` and make options of them, and of what is ``given``."""
    taken = {
        one.name: values.pop(_spellings(one)[0].removeprefix("--").replace("-", "_")) for one in _settings(options)
    }
    return options(**taken, **given)


def _settings(options: Any) -> list["Field[Any]"]:
    return [one for one in fields(options) if SETTING in one.metadata]


def _spellings(one: "Field[Any]") -> tuple[str, ...]:
    return one.metadata[SETTING].flags or (f"--{one.name.replace('_', '-')}",)


def _flag(one: "Field[Any]", hint: Any) -> Callable[[_F], _F]:
    declared: Setting = one.metadata[SETTING]
    if hint is bool:
        return boolean(*_spellings(one), default=one.default is True, help=declared.text)
    several, required = get_origin(hint) is tuple, one.default is MISSING and one.default_factory is MISSING
    default = one.default_factory if one.default is MISSING else one.default
    return click.option(
        *_spellings(one),
        type=_kind(declared, hint),
        default=None if several or required else default,
        multiple=several,
        required=required,
        show_default=not callable(default) and default not in (None, "", (), MISSING),
        metavar=declared.metavar,
        help=declared.text,
    )


def _kind(declared: Setting, hint: Any) -> Any:
    match declared.kind:
        case None:
            whole = click.IntRange(declared.least, declared.most)
            return whole if hint is int else _PATH if hint == Path | None else None
        case tuple():
            return click.Choice(declared.kind, case_sensitive=False)
        case "pattern":
            return HEADER_PATTERN
        case kind:
            return kind
