"""``--trace-config``, as Triton reads it, and the flags that it has replaced: hidden, and weaker than it."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

from repoagent.cli.flags import PAIR, BackendSetting
from repoagent.errors import RepoAgentError
from repoagent.serving.tracing.trace_settings import SpanSettings, TraceSettings, changed

_F = TypeVar("_F", bound=Callable[..., Any])

#: (mode, setting) on the command line -> the name in the trace extension.
_NAMES: Final = MappingProxyType(
    {
        ("", "rate"): "trace_rate",
        ("", "count"): "trace_count",
        ("", "mode"): "trace_mode",
        ("", "level"): "trace_level",
        ("triton", "file"): "trace_file",
        ("triton", "log-frequency"): "log_frequency",
    }
)
#: Former flag -> its mode and setting in ``--trace-config``.
_FORMER: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "--trace-file": ("triton", "file"),
        "--trace-level": ("", "level"),
        "--trace-rate": ("", "rate"),
        "--trace-count": ("", "count"),
        "--trace-log-frequency": ("triton", "log-frequency"),
    }
)
_LEVELS: Final = MappingProxyType(
    {"FALSE": "OFF", **dict.fromkeys(("TRUE", "ON", "MIN", "MAX"), "TIMESTAMPS")},
)
_SPANS: Final = "opentelemetry"
_SPAN_SETTINGS: Final = ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")


def trace_flags(command: _F) -> _F:
    """Give ``command`` ``--trace-config`` and, hidden, the flags that it has replaced."""
    for flag, (mode, setting) in reversed(list(_FORMER.items())):
        new = f"--trace-config={mode}{',' * bool(mode)}{setting}=..."
        command = click.option(flag, multiple=True, hidden=True, help=f"Triton's former name for {new}.")(command)
    return click.option(
        "--trace-config",
        type=PAIR,
        multiple=True,
        metavar="[MODE,]SETTING=VALUE",
        help="Which requests are traced, and where to: level=TIMESTAMPS or TENSORS, rate, count, mode=triton or "
        "opentelemetry, 'triton,file', 'triton,log-frequency', 'opentelemetry,url' and others; repeat for more.",
    )(command)


def take_trace_settings(values: dict[str, Any]) -> TraceSettings:
    """Take the flags' values out of ``values``; of two for one setting, that of ``--trace-config`` counts.

    Raises:
        click.UsageError: see :func:`trace_settings`.
    """
    former = [
        (*place, value)
        for flag, place in _FORMER.items()
        for value in values.pop(flag.removeprefix("--").replace("-", "_"))
    ]
    return trace_settings([*former, *values.pop("trace_config")])


def trace_settings(pairs: Sequence[BackendSetting]) -> TraceSettings:
    """The settings that ``MODE,SETTING=VALUE`` and ``SETTING=VALUE`` give; of ``level`` there may be several.

    Raises:
        click.UsageError: one is not known, or they ask for traces that cannot be made.
    """
    values: dict[str, str | Sequence[str]] = {}
    levels: list[str] = []
    of_spans = [(setting, value) for mode, setting, value in pairs if mode == _SPANS and setting in _SPAN_SETTINGS]
    chosen = [value for mode, setting, value in pairs if (mode, setting) == ("", "mode")]
    for mode, setting, value in pairs:
        if mode == _SPANS and setting in _SPAN_SETTINGS:
            continue
        name = _NAMES.get((mode, setting))
        if name is None:
            known = ", ".join(
                ",".join(filter(None, key)) for key in (*_NAMES, *((_SPANS, setting) for setting in _SPAN_SETTINGS))
            )
            raise click.UsageError(f"--trace-config: unknown setting '{mode}{',' * bool(mode)}{setting}'; use {known}")
        if name == "trace_level":
            levels.append(_level(value))
        elif name != "trace_mode":
            values[name] = value
    if "OFF" in levels:  # given once, it overrides the levels beside it
        levels = ["OFF"]
    try:
        start = TraceSettings(mode=chosen[-1] if chosen else "triton", spans=_span_settings(of_spans))
        return changed(start, start, {**values, **({"trace_level": levels} if levels else {})})
    except RepoAgentError as error:
        raise click.UsageError(f"--trace-config: {error}") from error


def _level(text: str) -> str:
    """The level as the trace extension writes it, from one of the ways in which Triton's flag takes it."""
    return _LEVELS.get(text.upper(), text.upper())


def _span_settings(pairs: Sequence[tuple[str, str]]) -> SpanSettings:
    """The settings of the mode ``opentelemetry``; there may be several of ``resource``, each ``KEY=VALUE``."""
    resource = [_attribute(value) for setting, value in pairs if setting == "resource"]
    numbers = {setting: _number(setting, value) for setting, value in pairs if setting.startswith("bsp_")}
    url = [value for setting, value in pairs if setting == "url"]
    return SpanSettings(url=url[-1] if url else "", resource=tuple(resource), **numbers)


def _attribute(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise click.UsageError(f"--trace-config: {_SPANS},resource must be <key>=<value>, not '{text}'")
    return key, value


def _number(setting: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise click.UsageError(f"--trace-config: {_SPANS},{setting} must be a whole number above 0, not '{text}'")
    return int(text)
