"""The dashboard, read into the objects that Grafana generates from its schema, and written again."""

import copy
import json
import os
import shutil
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final

import httpx
import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import stat, timeseries
from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel
from grafana_foundation_sdk.models.prometheus import Dataquery
from prometheus_client.parser import text_string_to_metric_families

from repoagent.errors import InvalidArgumentError
from repoagent.serving.measuring.custom_metrics import MetricKind, MetricRegistry
from tests.certificates import Authority
from tests.deploy.server_log import ServerLog

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


# Every query of the dashboard, the alerts and the scaler asks for metrics and labels that a running server has.

TREE: Final = Path(__file__).resolve().parents[2]
DIGITS: Final = TREE / "examples" / "digits"
TARGET: Final = {"job", "instance", "namespace", "service", "pod"}
"""Labels that Prometheus adds to what it scrapes."""
BUILT_IN: Final[Mapping[str, set[str]]] = {"up": set()}
"""Metrics that Prometheus makes itself."""
Page = Mapping[str, set[str]]
"""The metrics of a page, each with all labels that its samples have."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The metrics page of a server that has answered, failed, cached and refused."""
    root = tmp_path_factory.mktemp("metrics")
    shutil.copytree(DIGITS / "repository", root / "models")
    cached = root / "models" / "digits_checked" / "config.pbtxt"
    cached.write_text(cached.read_text() + "\nresponse_cache { enable: true }\n")
    (root / "models" / "broken" / "1").mkdir(parents=True)
    (root / "models" / "broken" / "config.pbtxt").write_text(
        'backend: "onnxruntime"\nmodel_repository_agents { agents [ { name: "checksum" } ] }\n'
    )
    command = [sys.executable, "-c", "from repoagent_server.program.tritonserver import main; main()"]
    command += [f"--model-store={root / 'models'}", "--http-port=0", "--exit-on-error=false"]
    command += ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", f"--cache-directory={root / 'cache'}"]
    pair = Authority(root / "authority").issue("server")
    command += ["--grpc-use-ssl=true", f"--grpc-server-cert={pair.certificate}", f"--grpc-server-key={pair.key}"]
    command += ["--cache-config=local,size=1000000", "--metrics-config=summary_latencies=true"]
    identity = (DIGITS / "identity.txt").read_text().split()[-1]
    environment = {**os.environ, "DIGITS_IDENTITY": identity}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield _asked(*ServerLog(process).ports("HTTPService", "Metrics Service"))
    finally:
        process.kill()
        process.wait()


def _asked(http: int, metrics: int) -> str:
    image = {"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": [0.0] * 64}
    wrong = {**image, "shape": [1, 63], "data": [0.0] * 63}
    for model in ("digits_secure", "digits_checked"):
        for tensor, status in ((image, 200), (image, 200), (wrong, 400)):
            answer = httpx.post(f"http://127.0.0.1:{http}/v2/models/{model}/infer", json={"inputs": [tensor]})
            assert answer.status_code == status, answer.text
    return httpx.get(f"http://127.0.0.1:{metrics}/metrics").text


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    """Its metrics with their labels."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name.removesuffix("_total"), set()).update(sample.labels)
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def _rules(deploy: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load((deploy / "prometheus" / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def queries(deploy: Path) -> dict[str, str]:
    """Every query, by the place where it stands."""
    dashboard = json.loads((deploy / "grafana" / "dashboard.json").read_text())
    found = {
        f"panel {panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", [])
    }
    found |= {f"rule {rule.get('alert') or rule['record']}": rule["expr"] for rule in _rules(deploy)}
    triggers = yaml.safe_load((deploy / "keda" / "scaledobject.yaml").read_text())["spec"]["triggers"]
    found |= {f"trigger {trigger['name']}": trigger["metadata"]["query"] for trigger in triggers}
    chart = (deploy / "helm/repoagent/templates/scaledobject.yaml").read_text()
    (query,) = [line.partition("query: ")[2] for line in chart.splitlines() if "query: " in line]
    found["trigger of the chart"] = query.replace('{{ include "repoagent.name" . }}', "n").replace(
        "{{ .Release.Namespace }}", "m"
    )
    return {place: query.replace("$__rate_interval", "5m") for place, query in found.items()}


def _selectors(node: Any) -> Iterator[Any]:
    """The vector selectors below ``node`` of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("vector_selector", "expr", "lhs", "rhs", "param", "args"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None and not isinstance(each, str | int | float):
                yield from _selectors(each)


def _aggregations(node: Any) -> Iterator[Any]:
    if isinstance(node, promql_parser.AggregateExpr):
        yield node
    for name in ("expr", "lhs", "rhs", "args"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None and not isinstance(each, str | int | float):
                yield from _aggregations(each)


def unknown(query: str, page: Page) -> list[str]:
    """The metrics and labels of ``query`` that ``page`` does not have."""
    parsed = promql_parser.parse(query)
    found = []
    for selector in _selectors(parsed):
        if selector.name not in page:
            found.append(selector.name)
            continue
        names = {matcher.name for matcher in selector.matchers.matchers}
        found += [f"{selector.name}.{name}" for name in sorted(names - page[selector.name] - TARGET)]
    for aggregation in _aggregations(parsed):
        within = set().union(TARGET, *(page.get(each.name, set()) for each in _selectors(aggregation)))
        labels = set(aggregation.modifier.labels) if aggregation.modifier is not None else set()
        found += [f"by {label}" for label in sorted(labels - within)]
    return found


@pytest.mark.slow
def test_every_metric_and_label_of_every_query_is_on_the_page(
    page: Page, queries: dict[str, str], deploy: Path
) -> None:
    recorded = {rule["record"]: {"job", "model"} for rule in _rules(deploy) if "record" in rule}
    known = {**page, **BUILT_IN, **recorded}
    assert len(queries) > 30
    assert {place: unknown(query, known) for place, query in queries.items() if unknown(query, known)} == {}


@pytest.mark.slow
def test_every_label_of_a_text_is_one_of_its_alert(page: Page, deploy: Path) -> None:
    for rule in _rules(deploy):
        used = {name for text in rule.get("annotations", {}).values() for name in _labels_of(text)}
        selectors = list(_selectors(promql_parser.parse(rule["expr"])))
        within = set().union(TARGET, *(page.get(each.name, {"job", "model"}) for each in selectors))
        assert used <= within, rule["alert"]


def _labels_of(text: str) -> list[str]:
    return [part.partition(" }}")[0] for part in text.split("{{ $labels.")[1:]]


@pytest.mark.slow
def test_the_variables_of_the_dashboard_are_labels_of_the_page(page: Page, deploy: Path) -> None:
    dashboard = json.loads((deploy / "grafana" / "dashboard.json").read_text())
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            query = variable["query"]["query"]
            selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(", ")
            assert unknown(selector, page) == []
            assert label in page["nv_inference_request_success"] | TARGET


@pytest.mark.slow
def test_panels_do_not_overlap_and_have_names_of_their_own(deploy: Path) -> None:
    panels = json.loads((deploy / "grafana" / "dashboard.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in panels):
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "missing"),
    [
        ("nv_inference_requests", ["nv_inference_requests"]),
        ('nv_inference_request_success{modell="a"}', ["nv_inference_request_success.modell"]),
        ("sum by (reason) (rate(nv_inference_request_success[5m]))", ["by reason"]),
        ("1 + max(repoagent_load_secs) / up", ["repoagent_load_secs", "up"]),
    ],
)
def test_a_name_that_is_not_on_the_page_is_found(page: Page, query: str, missing: list[str]) -> None:
    assert unknown(query, page) == missing


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["check", "rules", "rules.yaml"], ["test", "rules", "rules_test.yaml"]])
def test_promtool_takes_the_rules_and_the_alerts_fire(
    deploy: Path, tool: Callable[[str], str], arguments: list[str]
) -> None:
    command = [tool("promtool"), *arguments]
    done = subprocess.run(command, cwd=deploy / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def check_metrics(tool: Callable[[str], str]) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """What promtool finds on a page."""

    def check(page: str) -> subprocess.CompletedProcess[str]:
        command = [tool("promtool"), "check", "metrics"]
        return subprocess.run(command, input=page, capture_output=True, text=True, check=False)

    return check


@pytest.mark.slow
def test_promtool_reads_the_page_and_complains_of_names_of_triton_alone(
    text: str, check_metrics: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    done = check_metrics(text)
    assert done.returncode in (0, 3), done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("nv_")] == []
    assert check_metrics(f"{text}no page\n").returncode == 1


@pytest.mark.slow
def test_no_model_can_name_a_metric_as_the_server_does(text: str) -> None:
    """C6: difference 13. It would break the page, or speak for other models."""
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
    assert "nv_inference_count" in names
    for name in names:
        with pytest.raises(InvalidArgumentError, match="name of the server's own metrics"):
            MetricRegistry().family(name, "mine", MetricKind.COUNTER)
