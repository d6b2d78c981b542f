"""The dashboard, read into the objects that Grafana generates from its schema, and written again."""

import copy
import json
import types
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import stat, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from grafana_foundation_sdk.models.prometheus import Dataquery

Document = dict[str, Any]

OPTIONS = {"stat": stat.Options, "timeseries": timeseries.Options}


@pytest.fixture(scope="module")
def document(deploy: Path) -> Document:
    register_default_plugins()
    read: Document = json.loads((deploy / "grafana" / "dashboard.json").read_text())
    return read


def faults(document: Document) -> list[str]:
    """Where ``document`` has what Grafana's schema does not have, or has it as another type."""
    try:
        read = Dashboard.from_json(document)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return [f"unreadable: {error}"]
    written = json.loads(json.dumps(read, cls=JSONEncoder))
    return [*_lost(document, written, ""), *_mistyped(read, type(read), "")]


def _lost(given: Any, kept: Any, place: str) -> Iterator[str]:
    """What ``given`` has and ``kept`` does not have."""
    if isinstance(given, Mapping) and isinstance(kept, Mapping):
        for key, value in given.items():
            yield from _lost(value, kept[key], f"{place}.{key}") if key in kept else [f"{place}.{key}: unknown"]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for index, pair in enumerate(zip(given, kept, strict=True)):
            yield from _lost(*pair, f"{place}[{index}]")
    elif given != kept:
        yield f"{place}: {given!r} became {kept!r}"


def _mistyped(value: Any, hint: Any, place: str) -> Iterator[str]:
    """Where ``value`` is not what ``hint`` allows. The SDK's classes take whatever they are given."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        every = [list(_mistyped(value, one, place)) for one in arguments]
        yield from [] if [] in every else max(every, key=len)
    elif origin is typing.Literal:
        yield from [] if value in arguments else [f"{place}: {value!r} is none of {arguments}"]
    elif origin is list and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _mistyped(item, arguments[0], f"{place}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _mistyped(item, arguments[1], f"{place}.{key}")
    elif hint not in (Any, object) and not _is_a(value, origin or hint):
        yield f"{place}: {value!r} is not of type {hint}"
    elif hasattr(value, "to_json") and not isinstance(value, Enum):
        for name, one in typing.get_type_hints(type(value)).items():
            yield from _mistyped(getattr(value, name), one, f"{place}.{name}")


def _is_a(value: Any, kind: Any) -> bool:
    if isinstance(value, bool) and kind in (int, float):
        return False
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value in [one.value for one in kind]
    return isinstance(value, (int, float) if kind is float else kind)


def test_grafana_reads_every_field_and_writes_it_again(document: Document) -> None:
    assert faults(document) == []


def test_every_panel_and_query_is_of_a_kind_that_grafana_has(document: Document) -> None:
    read = Dashboard.from_json(document)
    shown = [panel for panel in read.panels or [] if not isinstance(panel, RowPanel)]
    assert [panel.title for panel in read.panels or []] == [panel["title"] for panel in document["panels"]]
    asked: list[str] = []
    for panel in shown:
        assert isinstance(panel, Panel)
        assert isinstance(panel.options, OPTIONS[panel.type_val]), panel.title
        assert panel.targets, panel.title
        for target in panel.targets:
            assert isinstance(target, Dataquery), panel.title
            asked.append(target.expr)
    assert asked == [target["expr"] for panel in document["panels"] for target in panel.get("targets", [])]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["nosuch"], 1),
        (["refresh"], 30),
        (["time"], "now-1h"),
        (["templating", "list", 0, "type"], "datasrc"),
        (["templating", "list", 1, "definition"], "label_values(x)"),
        (["templating", "list", 1, "hide"], "no"),
        (["panels", 1, "gridPos", "h"], "8"),
        (["panels", 1, "gridPos", "width"], 8),
        (["panels", 1, "targets", 0, "expression"], "up"),
        (["panels", 1, "targets", 0, "expr"], None),
        (["panels", 1, "targets", 0, "editorMode"], "text"),
        (["panels", 1, "options", "colour"], "value"),
        (["panels", 1, "options", "colorMode"], "text"),
        (["panels", 1, "fieldConfig", "defaults", "thresholds", "mode"], "abs"),
    ],
    ids=str,
)
def test_what_grafana_does_not_have_is_found(document: Document, path: list[Any], value: object) -> None:
    changed = copy.deepcopy(document)
    place: Any = changed
    for step in path[:-1]:
        place = place.setdefault(step, {}) if isinstance(place, dict) else place[step]
    place[path[-1]] = value
    assert faults(changed) != []
