"""Kinds of command-line values as Triton reads them."""

import re
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from repoagent.cli.flags import PAIR, BackendSetting, merge_settings
from repoagent.errors import InvalidArgumentError
from repoagent.serving.scheduling.rate_limiter import EVERY_DEVICE, RateLimiterResource
from repoagent_server.handlers.forwarding import HeaderForwarding

__all__ = [
    "BOOLEAN",
    "HEADER_PATTERN",
    "LEVEL",
    "PAIR",
    "RESOURCE",
    "BackendSetting",
    "boolean",
    "merge_settings",
    "number",
]

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


_F = TypeVar("_F", bound=Callable[..., Any] | click.Command)


def boolean(*names: str, default: bool, help: str) -> Callable[[_F], _F]:  # noqa: A002 - click's own word
    """An option that takes a boolean, or none for true: ``--x``, ``--x=false``, ``--x 0``."""
    return click.option(
        *names, type=BOOLEAN, is_flag=False, flag_value="true", default=default, show_default=True, help=help
    )


def number(
    *names: str,
    default: int,
    low: int,
    high: int | None = None,
    help: str,  # noqa: A002
) -> Callable[[_F], _F]:
    """An option that takes a whole number from ``low`` to ``high``."""
    return click.option(*names, type=click.IntRange(low, high), default=default, show_default=True, help=help)
