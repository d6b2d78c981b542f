"""Checks of manifests against the models that the projects generate from their own schemas.

KServe's and Kubernetes' Python clients have a class per object, with the names and types of its fields. KEDA's and the
Prometheus Operator's resources are pydantic models. Neither refuses a field that it does not know; this module does.

It is a program, as KServe's client and Triton's cannot be imported into one process: for each line with a list of
manifests in JSON that comes in, a line with a list of what is wrong with each goes out. Its imports take seconds.
"""

import datetime as dt
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import kserve.models
import kubernetes.client.models
from cloudcoil.models.keda import v1alpha1 as keda
from cloudcoil.models.prometheus_operator import v1 as prometheus
from pydantic import BaseModel, ValidationError

_PLAIN: Final[Mapping[str, tuple[type, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "datetime": (str, dt.datetime),
    "object": (object,),
}
_FORM: Final = re.compile(r"(list|dict)[\[(](?:str, )?(.*)[\])]", re.IGNORECASE)

_OPENAPI: Final[Mapping[tuple[str, str], str]] = {
    ("serving.kserve.io/v1alpha1", "ClusterServingRuntime"): "V1alpha1ClusterServingRuntime",
    ("serving.kserve.io/v1alpha1", "ClusterStorageContainer"): "V1alpha1ClusterStorageContainer",
    ("serving.kserve.io/v1beta1", "InferenceService"): "V1beta1InferenceService",
    ("apps/v1", "Deployment"): "V1Deployment",
    ("v1", "Service"): "V1Service",
    ("v1", "ServiceAccount"): "V1ServiceAccount",
    ("v1", "ConfigMap"): "V1ConfigMap",
    ("policy/v1", "PodDisruptionBudget"): "V1PodDisruptionBudget",
    ("networking.k8s.io/v1", "NetworkPolicy"): "V1NetworkPolicy",
}
_PYDANTIC: Final[Mapping[tuple[str, str], type[BaseModel]]] = {
    ("keda.sh/v1alpha1", "ScaledObject"): keda.ScaledObject,
    ("monitoring.coreos.com/v1", "ServiceMonitor"): prometheus.ServiceMonitor,
    ("monitoring.coreos.com/v1", "PrometheusRule"): prometheus.PrometheusRule,
}


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """What is wrong with ``manifest``, each with the place; also a kind that no schema is known of."""
    kind = (manifest["apiVersion"], manifest["kind"])
    if kind in _PYDANTIC:
        return _of_pydantic(_PYDANTIC[kind], manifest)
    if kind in _OPENAPI:
        return list(_of_openapi(_OPENAPI[kind], manifest, ""))
    return [f"there is no schema of {kind}"]


def _of_pydantic(model: type[BaseModel], manifest: Mapping[str, Any]) -> list[str]:
    try:
        read = model.model_validate(manifest)
    except ValidationError as error:
        return [str(error)]
    kept = read.model_dump(by_alias=True, exclude_unset=True, mode="json")
    return [f"{place}: unknown, or of another type" for place in _lost(manifest, kept, "")]


def _lost(given: Any, kept: Any, place: str) -> Iterator[str]:
    """Where ``given`` has what ``kept`` does not have."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, value in given.items():
            yield from _lost(value, kept[key], f"{place}.{key}") if key in kept else [f"{place}.{key}"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, pair in enumerate(zip(given, kept, strict=True)):
            yield from _lost(*pair, f"{place}[{index}]")
    elif given != kept:
        yield place


def _of_openapi(name: str, value: Any, place: str) -> Iterator[str]:
    """What is wrong with ``value`` as one of the type ``name``."""
    form = _FORM.fullmatch(name)
    if form is not None:
        yield from _of_container(form[1], form[2], value, place)
    elif name in _PLAIN:
        if not isinstance(value, _PLAIN[name]) or (isinstance(value, bool) and name in ("int", "float")):
            yield f"{place}: {value!r} is not of type {name}"
    elif not isinstance(value, Mapping):
        yield f"{place}: {value!r} is not an object"
    else:
        yield from _of_object(_model(name), value, place)


def _of_container(kind: str, item: str, value: Any, place: str) -> Iterator[str]:
    items: Iterable[tuple[Any, Any]]
    if kind.lower() == "list" and isinstance(value, list):
        items = enumerate(value)
    elif kind.lower() == "dict" and isinstance(value, Mapping):
        items = value.items()
    else:
        yield f"{place}: {value!r} is not a {kind}"
        return
    for key, each in items:
        yield from _of_openapi(item, each, f"{place}[{key}]")


def _of_object(model: Any, value: Mapping[str, Any], place: str) -> Iterator[str]:
    fields = {json_name: field for field, json_name in model.attribute_map.items()}
    for key, each in value.items():
        if key not in fields:
            yield f"{place}.{key}: unknown; there are {', '.join(sorted(fields))}"
        else:
            yield from _of_openapi(model.openapi_types[fields[key]], each, f"{place}.{key}")
    try:  # the constructor refuses an object without what it must have
        model(**{fields[key]: each for key, each in value.items() if key in fields})
    except ValueError as error:
        yield f"{place}: {error}"


def _model(name: str) -> Any:
    short = name.rpartition(".")[2]
    for module in (kserve.models, kubernetes.client.models):
        if hasattr(module, short):
            return getattr(module, short)
    raise LookupError(f"there is no model {name}")


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps([problems(manifest) for manifest in json.loads(line)]), flush=True)
