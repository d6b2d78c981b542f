"""Kinds of command-line values as Triton reads them."""

import os
import re
from typing import Any, Final

import click

from repoagent.errors import InvalidArgumentError
from repoagent.serving.scheduling.rate_limiter import EVERY_DEVICE, RateLimiterResource
from repoagent_server.handlers.headers import HeaderForwarding


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


HEADER_PATTERN: Final = _HeaderPattern()
LEVEL: Final = _Level(0)
RESOURCE: Final = _Resource()
PROCESSES: Final = _Processes(1, 256)
