"""``--trace-config``, as Triton reads it."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import click

from repoagent.errors import RepoAgentError
from repoagent.serving.tracing.settings import SpanSettings, TraceSettings, changed
from repoagent_server.flags.values import BackendSetting

__all__ = ["trace_settings"]

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
_LEVELS: Final = MappingProxyType(
    {"FALSE": "OFF", **dict.fromkeys(("TRUE", "ON", "MIN", "MAX"), "TIMESTAMPS")},
)
_SPANS: Final = "opentelemetry"
_SPAN_SETTINGS: Final = ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size")


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
    if "OFF" in levels:  # said once, it is meant, whatever stands beside it
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
