"""Custom metrics of the lower layer."""

from collections.abc import Sequence

from repoagent.errors import InvalidArgumentError
from repoagent.server._c.messages import Parameter
from repoagent.server.metrics import Metric as UpperMetric
from repoagent.server.metrics import MetricFamily

__all__ = ["Metric"]


class Metric(UpperMetric):
    """A time series of ``family``, with its labels as parameters.

    Raises:
        InvalidArgumentError: a label is no text.
    """

    __slots__ = ()

    def __init__(self, family: MetricFamily, labels: Sequence[Parameter] = ()) -> None:
        for label in labels:
            if not isinstance(label.value, str):
                raise InvalidArgumentError(f"Parameter '{label.name}' must be a string to be a label of a metric")
        super().__init__(family, {label.name: str(label.value) for label in labels})
