"""Rules on the settings for metrics of one model."""

import re
from collections.abc import Iterator
from typing import Final

from repoagent.config.model_config_pb2 import ModelConfig

__all__ = ["problems"]

_TAG: Final = re.compile(r"[A-Za-z0-9_]+")


def problems(config: ModelConfig) -> Iterator[str]:
    """Problems of ``metric_tags`` and ``model_metrics``."""
    for tag in sorted(config.metric_tags):
        if not _TAG.fullmatch(tag):
            yield f"metric tag '{tag}' must be of letters, digits and '_', to be a label of metrics"
    for control in config.model_metrics.metric_control:
        if not control.HasField("metric_identifier"):
            yield "metric control must specify 'metric_identifier'"
        elif not control.metric_identifier.family:
            yield "metric identifier must specify non-empty 'family'"
        if not control.HasField("histogram_options"):
            yield "metric control must specify 'histogram_options'"
        elif not control.histogram_options.buckets:
            yield "histogram options must specify non-empty 'buckets'"
        elif sorted(set(control.histogram_options.buckets)) != list(control.histogram_options.buckets):
            yield "histogram options must specify 'buckets' in ascending order"
