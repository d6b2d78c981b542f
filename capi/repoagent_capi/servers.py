"""Servers of C programs: those of :mod:`repoagent_capi.triton_bindings`, by number. Also their log and metrics."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.nested_text import read_json
from repoagent.server.enums import InstanceGroupKind, LogFormat, LogLevel, MetricFormat, ModelControlMode, RateLimitMode
from repoagent.server.logs import log_message as write_log
from repoagent.server.logs import server_log
from repoagent.serving.measuring.custom_metrics import REGISTRY, Metric, MetricFamily, MetricKind
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.agents import set_text
from repoagent_capi.errors import as_text, crossing
from repoagent_capi.objects import Objects
from repoagent_capi.parameters import parameters_in
from repoagent_capi.triton_bindings.options import ServerOptions
from repoagent_capi.triton_bindings.server import Server
from repoagent_capi.triton_bindings.values import label_texts

logger = logging.getLogger(__name__)

SERVERS: Final[Objects[Server]] = Objects("server")

_FIRST_IS: Final[dict[str, Callable[[int], Any]]] = {
    "set_log_format": LogFormat,
    "set_model_control_mode": ModelControlMode,
    "set_model_load_device_limit": InstanceGroupKind,
    "set_rate_limiter_mode": RateLimitMode,
}
"""Calls of options whose first argument crosses as the number of an enumeration."""


def request_to(model: str, version: int) -> InferRequest:
    """An empty request, to find what would take it; version -1 is what the version policy prefers."""
    return InferRequest(Asked(model, {}, "" if version == -1 else str(version)))


@crossing
def server_new(options: Any, byte_size: int, server: Any) -> None:
    made = ServerOptions()
    for level in ("info", "warn", "error"):
        getattr(made, f"set_log_{level}")(server_log().enabled(LogLevel[level.upper()]))
    for name, *arguments in read_json(bytes(ffi.buffer(options, byte_size)).decode("utf-8", "surrogateescape")):
        if name in _FIRST_IS:
            arguments[0] = _FIRST_IS[name](arguments[0])
        getattr(made, name)(*arguments)
    server[0] = SERVERS.add(Server(made))


@crossing
def server_stop(server: int) -> None:
    SERVERS[server].stop()


@crossing
def server_delete(server: int) -> None:
    found = SERVERS.remove(server)
    if found is not None:
        found.stop()


@crossing
def server_set_exit_timeout(server: int, seconds: int) -> None:
    SERVERS[server].set_exit_timeout(seconds)


@crossing
def server_is(server: int, question: int, answer: Any) -> None:
    found = SERVERS[server]
    answer[0] = found.is_live() if question == lib.CORE_LIVE else found.is_ready()


def _text_of(found: Server, which: int, name: str, version: int, number: int) -> str:
    match which:
        case lib.CORE_SERVER_METADATA:
            message = found.metadata()
        case lib.CORE_MODEL_METADATA:
            message = found.model_metadata(name, version)
        case lib.CORE_MODEL_STATISTICS:
            message = found.model_statistics(name, version)
        case lib.CORE_MODEL_CONFIG:
            message = found.model_config(name, version, number)
        case lib.CORE_MODEL_INDEX:
            message = found.model_index(number)
        case lib.CORE_METRICS:
            return found.metrics().formatted(MetricFormat.PROMETHEUS)
        case _:
            report = found.core.report(name)
            return json.dumps(None if report is None else report.to_dict())
    return message.serialize_to_json()


@crossing
def document(server: int, which: int, name: Any, version: int, number: int, text: Any) -> None:
    set_text(text, _text_of(SERVERS[server], which, as_text(name), version, number))


@crossing
def repository_register(server: int, path: Any, mapping: Any, count: int) -> None:
    SERVERS[server].register_model_repository(as_text(path), parameters_in(mapping, count))


@crossing
def repository_unregister(server: int, path: Any) -> None:
    SERVERS[server].unregister_model_repository(as_text(path))


@crossing
def repository_poll(server: int) -> None:
    SERVERS[server].poll_model_repository()


@crossing
def model_load(server: int, name: Any, parameters: Any, count: int) -> None:
    found = SERVERS[server]
    if count:
        found.load_model_with_parameters(as_text(name), parameters_in(parameters, count))
    else:
        found.load_model(as_text(name))


@crossing
def model_unload(server: int, name: Any, dependents: bool) -> None:
    found = SERVERS[server]
    (found.unload_model_and_dependents if dependents else found.unload_model)(as_text(name))


@crossing
def model_is_ready(server: int, name: Any, version: int, ready: Any) -> None:
    ready[0] = SERVERS[server].model_is_ready(as_text(name), version)


@crossing
def model_property(server: int, name: Any, version: int, which: int, value: Any) -> None:
    found = SERVERS[server]
    ask = found.model_batch_properties if which == lib.CORE_BATCH else found.model_transaction_properties
    value[0] = ask(as_text(name), version)[0]


@crossing
def model_label(server: int, name: Any, version: int, output: Any, index: int, label: Any) -> None:
    served = SERVERS[server].core.find(request_to(as_text(name), version))
    raw = served.classes.label(as_text(output), index)
    lib.repoagent_text_set(label, raw, len(raw))


@crossing
def model_find(server: int, name: Any, version: int, model: Any) -> None:
    if version != -1 and version < 1:
        raise InvalidArgumentError(f"not a version of a model: {version}; -1 is the highest one")
    served = SERVERS[server].core.find(request_to(as_text(name), version))
    batching = served.config.dynamic_batching
    model.priority_levels = batching.priority_levels
    model.default_priority = batching.default_priority_level


@crossing
def log_message(level: int, file: Any, line: int, text: Any) -> None:
    write_log(LogLevel(level), PurePath(as_text(file)).name, line, as_text(text))


@crossing
def log_is_enabled(level: int, enabled: Any) -> None:
    enabled[0] = server_log().enabled(LogLevel(level))


@crossing
def log_set(setting: Any, text: Any, number: int) -> None:
    options = ServerOptions()
    match as_text(setting):
        case "set_log_file":
            options.set_log_file(as_text(text))
        case "set_log_format":
            options.set_log_format(LogFormat(number))
        case "set_log_verbose":
            options.set_log_verbose(number)
        case flag:
            getattr(options, flag)(bool(number))


@crossing
def shutdown() -> None:
    for server in SERVERS.all():
        try:
            server.stop()
        except RepoAgentError:
            logger.exception("a server could not be stopped at the end of the program")


@dataclass(frozen=True, slots=True)
class _Series:
    family: MetricFamily
    metric: Metric


_OBJECTS: Final[Objects[MetricFamily | _Series]] = Objects("metric")


def _family(number: int) -> MetricFamily:
    found = _OBJECTS[number]
    assert isinstance(found, MetricFamily)
    return found


def _metric(number: int) -> Metric:
    found = _OBJECTS[number]
    assert isinstance(found, _Series)
    return found.metric


@crossing
def family_new(kind: int, name: Any, description: Any, family: Any) -> None:
    family[0] = _OBJECTS.add(REGISTRY.family(as_text(name), as_text(description), MetricKind(kind)))


@crossing
def metric_new(family: int, labels: Any, count: int, buckets: Any, bucket_count: int, metric: Any) -> None:
    found = _family(family)
    texts = label_texts(parameters_in(labels, count))
    metric[0] = _OBJECTS.add(_Series(found, found.add(texts, [buckets[index] for index in range(bucket_count)])))


@crossing
def metric_value(metric: int, value: Any) -> None:
    value[0] = _metric(metric).value


@crossing
def metric_change(metric: int, change: int, value: float) -> None:
    found = _metric(metric)
    match change:
        case lib.CORE_INCREMENT:
            found.increment(value)
        case lib.CORE_SET:
            found.set(value)
        case lib.CORE_OBSERVE:
            found.observe(value)


@crossing
def object_delete(number: int) -> None:
    match _OBJECTS.remove(number):
        case _Series(family, metric):
            family.remove(metric)
        case MetricFamily() as family:
            REGISTRY.release(family)
