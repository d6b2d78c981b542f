"""Checks of the values of options, before anything is started with them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

from repoagent.errors import InvalidArgumentError

__all__ = ["check_ranges", "check_types"]

_SHOWN: Final = (str, int, float, bool, type(None))
"""Types whose values a message can show: others may be long, or have secrets in them."""
_NOT_NEGATIVE: Final = (
    "exit_timeout",
    "drain_timeout",
    "model_load_thread_count",
    "model_load_retry_count",
    "memory_budget",
    "agent_cache_quota",
    "log_verbose",
)


def check_types(options: Any) -> None:
    """Refuse values that can never work.

    Raises:
        TypeError: a field has a value of another type than its own.
    """
    hints = get_type_hints(type(options))
    for item in fields(options):
        value, hint = getattr(options, item.name), hints[item.name]
        if not _fits(value, hint):
            shown = f": {value!r}" if isinstance(value, _SHOWN) else ""
            raise TypeError(f"Options.{item.name} must be {_text(hint)}, not {type(value).__name__}{shown}")


def check_ranges(options: Any) -> None:
    """Refuse numbers that mean nothing.

    Raises:
        InvalidArgumentError: a number is too small.
    """
    for name in _NOT_NEGATIVE:
        value = getattr(options, name)
        if value is not None and value < 0:
            raise InvalidArgumentError(f"Options.{name} must be at least 0, not {value}")
    for name in ("poll_interval", "repository_timeout"):
        if not (seconds := getattr(options, name)) > 0:
            raise InvalidArgumentError(f"Options.{name} must be a positive number of seconds, not {seconds}")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin in (list, tuple, Sequence):
        return (
            isinstance(value, Sequence)
            and not isinstance(value, str | bytes)
            and all(_fits(item, arguments[0]) for item in value)
        )
    if origin in (dict, Mapping):
        key, item = arguments
        return isinstance(value, Mapping) and all(_fits(k, key) and _fits(v, item) for k, v in value.items())
    if origin is Callable:
        return callable(value)
    return isinstance(value, (int, float) if hint is float else hint)


def _text(hint: Any) -> str:
    """``list[str]``: a type as a program would write it."""
    return (
        hint.__name__
        if isinstance(hint, type) and not get_args(hint)
        else re.sub(r"(?<!\w)(?:\w++\.)++", "", str(hint))
    )
