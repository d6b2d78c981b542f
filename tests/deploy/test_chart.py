"""The Helm chart, rendered by Helm."""

import subprocess
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import yaml
from repoagent_server.handlers.all import Handlers
from repoagent_server.http.router import Router
from repoagent_server.http.routes import api_routes

pytestmark = pytest.mark.slow

EVERYTHING: Final = (
    "replicas=2",
    "image.repository=REGISTRY/repoagent",
    "image.tag=1.2.3",
    "models.existingClaim=models",
    "cache.existingClaim=cache",
    "networkPolicy.enabled=true",
    "autoscaling.enabled=true",
    "monitoring.serviceMonitor=true",
    "monitoring.rules=true",
    "monitoring.dashboard=true",
    "monitoring.labels.release=prometheus",
    "flags.log-format=json",
    "flags.allow-openai=true",
    "extraArgs={--load-model=a,--load-model=b}",
    "flags.model-control-mode=explicit",
    "env[0].name=STAGE",
    "env[0].value=test",
    "envFrom[0].secretRef.name=keys",
    "imagePullSecrets[0].name=pull",
    "probeHeaders[0].name=x-key",
    "probeHeaders[0].value=k",
    "podAnnotations.a=b",
    "podLabels.c=d",
    "nodeSelector.disk=ssd",
    "tolerations[0].key=k",
    "topologySpreadConstraints[0].maxSkew=1",
    "topologySpreadConstraints[0].topologyKey=zone",
    "topologySpreadConstraints[0].whenUnsatisfiable=ScheduleAnyway",
    "serviceAccount.annotations.role=r",
    "service.annotations.s=t",
    "networkPolicy.from[0].podSelector.matchLabels.app=gateway",
)

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def render(deploy: Path, tool: Callable[[str], str]) -> Render:
    """The manifests that Helm makes of the chart."""
    helm = tool("helm")

    def template(*settings: str) -> list[dict[str, Any]]:
        flags = [f"--set={setting}" for setting in settings]
        command = [helm, "template", "demo", str(deploy / "helm" / "repoagent"), "--namespace=models", *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return template


def _one(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [each for each in manifests if each["kind"] == kind]
    return found


def _pod(manifests: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    pod = _one(manifests, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


def test_helm_finds_no_fault(deploy: Path, tool: Callable[[str], str]) -> None:
    command = [tool("helm"), "lint", "--strict", str(deploy / "helm" / "repoagent")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_every_manifest_has_known_fields_only(
    render: Render, problems: Callable[[list[dict[str, Any]]], list[list[str]]], settings: tuple[str, ...]
) -> None:
    manifests = render(*settings)
    assert problems(manifests) == [[] for _ in manifests]
    kinds = {each["kind"] for each in manifests}
    plain = {"Deployment", "Service", "ServiceAccount"}
    more = {"PodDisruptionBudget", "NetworkPolicy", "ConfigMap", "ServiceMonitor", "PrometheusRule", "ScaledObject"}
    assert kinds == (plain | more if settings else plain)


def test_the_server_takes_its_arguments(render: Render, flags_of: Callable[[list[str]], Any]) -> None:
    _, container = _pod(render())
    options = flags_of(container["args"])
    assert (options["http_port"], options["grpc_port"], options["metrics_port"]) == (8000, 8001, 8002)
    assert (options["model_repository"], options["model_control_mode"]) == (("/models",), "none")
    assert options["allow_open"] is False, "mode explicit needs access control"
    pod, container = _pod(render(*EVERYTHING, "drainDelay=20", "exitTimeout=40"))
    options = flags_of(container["args"])
    assert (options["load_model"], options["log_format"], options["allow_openai"]) == (("a", "b"), "json", True)
    assert str(options["cache_directory"]) == "/var/cache/repoagent"
    assert options["drain_delay"] + options["exit_timeout_secs"] < pod["terminationGracePeriodSeconds"]


def test_the_pod_is_as_narrow_as_the_image_allows(render: Render) -> None:
    pod, container = _pod(render())
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (1000, True)
    assert pod["automountServiceAccountToken"] is False
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/tmp", "/dev/shm"}
    assert all(volume["emptyDir"]["medium"] == "Memory" for volume in pod["volumes"])


def test_every_probe_asks_a_route_of_the_server(render: Render) -> None:
    nothing: Any = SimpleNamespace(audit=None, extensions=(), once=None, stream=None)
    handlers = Handlers.over(nothing, allow_load_parameters=False)
    router = Router(api_routes(handlers, lambda *_: None, nothing))
    _, container = _pod(render())
    ports = {port["name"] for port in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]["httpGet"]
        match = router.match(urllib.parse.quote(probe["path"]).encode())
        assert match is not None, name
        assert b"GET" in match.route.methods
        assert probe["port"] in ports
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 600


def test_services_policies_and_scalers_select_the_pods_of_the_deployment(render: Render) -> None:
    manifests = render(*EVERYTHING)
    deployment, service = _one(manifests, "Deployment"), _one(manifests, "Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    selectors = [
        deployment["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
        _one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        _one(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels for selector in selectors)
    monitor = _one(manifests, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert _one(manifests, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "the scaler decides"


def test_alerts_and_dashboard_are_those_of_deploy(render: Render, deploy: Path) -> None:
    manifests = render(*EVERYTHING)
    assert _one(manifests, "PrometheusRule")["spec"] == yaml.safe_load((deploy / "prometheus/rules.yaml").read_text())
    shown = _one(manifests, "ConfigMap")["data"]["repoagent.json"]
    assert yaml.safe_load(shown) == yaml.safe_load((deploy / "grafana/dashboard.json").read_text())
    monitor = _one(manifests, "ServiceMonitor")["spec"]["endpoints"][0]
    assert {"targetLabel": "job", "replacement": "repoagent"} in monitor["relabelings"]
