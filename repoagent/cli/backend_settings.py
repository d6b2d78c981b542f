"""Settings of backends on the command line: ``BACKEND,SETTING=VALUE``."""

import re
from typing import Any, Final

import click

__all__ = ["PAIR", "BackendSetting", "merge_settings"]

BackendSetting = tuple[str, str, str]
"""The name of a backend ("" for all), of a setting, and its value."""

_PAIR: Final = re.compile(r"(?:(?P<backend>[^,=]*),)?(?P<setting>[^,=]+)=(?P<value>.*)", re.DOTALL)


class _Pair(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``BACKEND,SETTING=VALUE``, or ``SETTING=VALUE`` for all backends."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BackendSetting:
        if isinstance(value, tuple):
            return value
        match = _PAIR.fullmatch(str(value))
        if match is None:
            # Not repeated, as it may be a secret.
            self.fail("the value is not of the form <backend>,<setting>=<value>", param, ctx)
        return match["backend"] or "", match["setting"], match["value"]


PAIR: Final = _Pair()


def merge_settings(settings: tuple[BackendSetting, ...]) -> dict[str, dict[str, str]]:
    """Settings by backend and name; the last value wins."""
    merged: dict[str, dict[str, str]] = {}
    for backend, name, value in settings:
        merged.setdefault(backend, {})[name] = value
    return merged
