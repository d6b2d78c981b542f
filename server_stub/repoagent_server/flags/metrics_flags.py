"""The flags of ``repoagent serve`` for metrics, by Triton's names."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from repoagent.errors import InvalidArgumentError
from repoagent.server.exposition.page import MetricsSettings, read_metrics_settings

_F = TypeVar("_F", bound=Callable[..., Any])


class _MetricsSetting(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``SETTING=VALUE`` with Triton's settings."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        setting, _, text = str(value).partition("=")
        if not setting or not text or "," in setting:
            self.fail(f"--metrics-config option format is <setting>=<value>. Got {value}", param, ctx)
        try:
            read_metrics_settings({setting: text})
        except InvalidArgumentError as error:
            self.fail(str(error), param, ctx)
        return setting, text


_DECORATORS: Final = (
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Port for metrics; 0 takes a free one.  [default: 8002, or a free one beside --http-port=0]",
    ),
    click.option(
        "--metrics-config",
        type=_MetricsSetting(),
        multiple=True,
        metavar="SETTING=VALUE",
        help="counter_latencies, summary_latencies or histogram_latencies=BOOLEAN, "
        "summary_quantiles=QUANTILE:ERROR,...; repeat for more.",
    ),
)


def metrics_flags(command: _F) -> _F:
    """Give ``command`` the flags for metrics."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def take_metrics_settings(values: dict[str, Any]) -> MetricsSettings:
    """Take ``metrics_config`` out of ``values``: what the metrics show of latencies."""
    return read_metrics_settings(dict(values.pop("metrics_config")))


def take_port(values: dict[str, Any], name: str, default: int) -> int:
    """Take the port ``name`` out of ``values``; ``default`` where it is not given."""
    port: int | None = values.pop(name)
    return default if port is None else port
