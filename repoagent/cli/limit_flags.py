"""``--limit-...``: one flag for each field of :class:`repoagent.limits.Limits`."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import click

from repoagent.limits import Limits

__all__ = ["limit_flags", "take_limits"]

_F = TypeVar("_F", bound=Callable[..., Any])


def limit_flags(command: _F) -> _F:
    """Give ``command`` the flags."""
    for one in reversed(fields(Limits)):
        kind = click.IntRange(one.metadata["least"], None)
        command = click.option(
            Limits.flag(one.name), type=kind, default=one.default, show_default=True, help=one.metadata["help"]
        )(command)
    return command


def take_limits(values: dict[str, Any]) -> Limits:
    """Take the values of the flags out of ``values``."""
    return Limits(**{one.name: values.pop(f"limit_{one.name}") for one in fields(Limits)})
