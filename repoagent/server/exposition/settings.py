"""What the metrics page shows of latencies, in the form of Triton's ``metrics_config``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent.serving.measuring.latencies import LatencyOptions

_BOOLEANS: Final = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_FLAGS: Final = ("counter_latencies", "summary_latencies", "histogram_latencies")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The counters are shown unless they are switched off; summaries and histograms cost a little, and are off."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)

    @property
    def kept(self) -> LatencyOptions:
        """What a serving core has to keep for it."""
        return LatencyOptions(summaries=self.summary_latencies, histograms=self.histogram_latencies)


def read_metrics_settings(settings: Mapping[str, str]) -> MetricsSettings:
    """The settings by their names in Triton, each with the text that gives its value.

    Raises:
        InvalidArgumentError: a name or a value is not known.
    """
    values: dict[str, object] = {}
    for name, text in settings.items():
        if name == "summary_quantiles":
            values[name] = tuple(_quantile(pair) for pair in text.split(","))
        elif name in _FLAGS:
            values[name] = _boolean(name, text)
        else:
            raise InvalidArgumentError(f"unknown setting '{name}'; there are {', '.join(_FLAGS)}, summary_quantiles")
    return MetricsSettings(**values)  # type: ignore[arg-type]


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InvalidArgumentError(f"{name}: invalid value for bool option: {text}")
    return _BOOLEANS[text.lower()]


def _quantile(pair: str) -> float:
    """``0.99:0.001``: the quantile and the error that is allowed; ours are exact."""
    quantile, colon, error = pair.partition(":")
    try:
        value, allowed = float(quantile), float(error)
    except ValueError:
        colon, value, allowed = "", 0.0, 0.0
    if not (colon and 0 <= value <= 1 and allowed >= 0):
        raise InvalidArgumentError(
            f"summary_quantiles must be pairs <quantile>:<error> with commas between, such as 0.5:0.05,0.99:0.001, "
            f"not '{pair}'"
        )
    return value
