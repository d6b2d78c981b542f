"""How busy the server's language models are, in a response header (ORCA), for load balancers that ask for it."""

from typing import Final

from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind
from repoagent_server.access import Right
from repoagent_server.codec.json_text import dumps
from repoagent_server.http.messages import Header, Request

_ASKED: Final = b"endpoint-load-metrics-format"
_TOLD: Final = b"endpoint-load-metrics"
_FAMILY: Final = "nv_trt_llm_kv_cache_block_metrics"
_LABEL: Final = "kv_cache_block_type"


def wanted_report(request: Request) -> bytes | None:
    """The form of report that the request asks for; None if its client may not see how busy other models are."""
    caller = request.caller
    return request.header(_ASKED) if caller is None or caller.may_all(Right.METADATA) else None


def load_report(form: bytes | None) -> list[Header]:
    """The header with the report in ``form``: ``text`` or ``json``; empty for any other.

    The numbers come from the gauges ``nv_trt_llm_kv_cache_block_metrics`` that a model makes; without them there is
    no report.
    """
    if form not in (b"text", b"json"):
        return []
    blocks = _blocks()
    if not {"used", "max", "tokens_per"} <= blocks.keys():
        return []
    utilization = blocks["used"] / blocks["max"] if blocks["max"] > 0 else 0.0
    capacity = int(blocks["max"] * blocks["tokens_per"])
    if form == b"json":
        named = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
        return [(_TOLD, b"JSON " + dumps({"named_metrics": named}))]
    text = f"named_metrics.kv_cache_utilization={utilization:.6f}, named_metrics.max_token_capacity={capacity}"
    return [(_TOLD, b"TEXT " + text.encode())]


def _blocks() -> dict[str, float]:
    """The gauges by what they count."""
    series = [metric for metric in REGISTRY.series(_FAMILY) if metric.kind is not MetricKind.HISTOGRAM]
    return {metric.labels[_LABEL]: metric.value for metric in series if _LABEL in metric.labels}
