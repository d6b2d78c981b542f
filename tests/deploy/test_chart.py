"""The Helm chart, rendered by Helm."""

import hashlib
import json
import re
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest
import yaml
from cryptography import x509
from repoagent_server.handlers.operations import Operations
from repoagent_server.http.routes import api_routes
from repoagent_server.http.service import Router

from tests.certificates import Authority
from tests.deploy.server_log import ServerLog

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
    "monitoring.key.name=prometheus-key",
    "monitoring.key.key=key",
    "access.secretName=who",
    "tls.secretName=server-tls",
    "tls.verifyClients=true",
    "tls.metrics=true",
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
        flags = [f"--set={setting}" for setting in ("models.existingClaim=models", *settings)]
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
    chart = deploy / "helm" / "repoagent"
    command = [tool("helm"), "lint", "--strict", str(chart), "--set=models.existingClaim=models"]
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
    places = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert options["cache_directory"].parent == places["cache"], "a directory in the volume, which belongs to root"
    assert options["drain_delay"] + options["exit_timeout_secs"] < pod["terminationGracePeriodSeconds"]


def test_the_pod_is_as_narrow_as_the_image_allows(render: Render) -> None:
    pod, container = _pod(render("models.existingClaim=", "models.repository=s3://bucket/models"))
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (1000, True)
    assert pod["automountServiceAccountToken"] is False
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"/tmp", "/dev/shm"}
    assert all(volume["emptyDir"]["medium"] == "Memory" for volume in pod["volumes"])


def test_with_workers_of_another_user_root_has_three_capabilities(
    render: Render, flags_of: Callable[[list[str]], Any]
) -> None:
    pod, container = _pod(render("workerUser=1000", "flags.processes=4"))
    options = flags_of(container["args"])
    assert (options["worker_user"], options["processes"]) == ("1000", 4)
    assert pod["securityContext"]["runAsUser"] == 0
    assert "runAsNonRoot" not in pod["securityContext"]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["KILL", "SETGID", "SETUID"]}
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert flags_of(_pod(render())[1]["args"])["worker_user"] is None


def test_every_probe_asks_a_route_of_the_server(render: Render) -> None:
    nothing: Any = SimpleNamespace(audit=None, extensions=(), once=None, stream=None, table=None)
    operations = Operations(nothing)
    router = Router(api_routes(operations, lambda *_: None, nothing))
    _, container = _pod(render())
    ports = {port["name"] for port in container["ports"]}
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[name]["httpGet"]
        match = router.match(urllib.parse.quote(probe["path"]).encode())
        assert match is not None, name
        assert b"GET" in match.route.methods
        assert probe["port"] in ports
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 600


SECRETS: Final = ("access.secretName=who", "tls.secretName=server-tls")


def _mounted(pod: dict[str, Any], container: dict[str, Any], secret: str) -> str:
    """Where a Secret is mounted: whole, so that the kubelet replaces its files."""
    (volume,) = [one for one in pod["volumes"] if one.get("secret", {}).get("secretName") == secret]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
    assert (mount["readOnly"], volume["secret"]["defaultMode"]) == (True, 0o440)
    assert "subPath" not in mount
    assert "items" not in volume["secret"]
    return str(mount["mountPath"])


def test_the_access_file_is_that_of_its_secret(render: Render, flags_of: Callable[[list[str]], Any]) -> None:
    pod, container = _pod(render(*SECRETS, "access.key=rules.toml", "flags.model-control-mode=explicit"))
    options = flags_of(container["args"])
    assert str(options["access"]) == f"{_mounted(pod, container, 'who')}/rules.toml"
    assert options["allow_open"] is False
    assert flags_of(_pod(render())[1]["args"])["access"] is None


def test_both_protocols_have_tls_with_the_files_of_its_secret(
    render: Render, flags_of: Callable[[list[str]], Any]
) -> None:
    pod, container = _pod(render(*SECRETS))
    options, folder = flags_of(container["args"]), _mounted(pod, container, "server-tls")
    for protocol in ("http", "grpc"):
        assert options[f"{protocol}_use_ssl"] is True
        assert options[f"{protocol}_server_cert"] == f"{folder}/tls.crt"
        assert options[f"{protocol}_server_key"] == f"{folder}/tls.key"
        assert options[f"{protocol}_root_cert"] == ""
        assert options[f"{protocol}_use_ssl_mutual"] is False, "the kubelet has no certificate"
    assert options["metrics_use_ssl"] is False
    _, container = _pod(render(*SECRETS, "tls.verifyClients=true", "tls.metrics=true"))
    options = flags_of(container["args"])
    assert (options["http_root_cert"], options["grpc_root_cert"]) == (f"{folder}/ca.crt",) * 2
    assert options["metrics_use_ssl"] is True


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("flags.model-control-mode=explicit",), "set access.secretName"),
        (("flags.model-control-mode=explicit", "extraArgs={--load-model=a}"), "set access.secretName"),
        (("models.existingClaim=",), "nothing is mounted there: set models.existingClaim"),
        (("models.existingClaim=", "extraVolumeMounts[0].mountPath=/model"), "nothing is mounted there"),
        (("replica=2",), "replica"),
        (("models.claim=m",), "claim"),
        (("drainDelay=soon",), "drainDelay"),
        (("flags.http_port=1",), "http_port"),
        (("service.type=Loadbalancer",), "type"),
        (("ports.http=80000",), "http"),
    ],
)
def test_values_that_cannot_work_are_refused_with_the_reason(
    render: Render, settings: tuple[str, ...], reason: str
) -> None:
    """U6: they rendered silently."""
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(*settings)
    assert reason in refused.value.stderr


@pytest.mark.parametrize(
    "settings",
    [
        ("flags.model-control-mode=explicit", "flags.allow-open=true"),
        ("flags.model-control-mode=explicit", "extraArgs={--http-restricted-api=model-repository:k=v}"),
        ("models.existingClaim=", "models.repository=s3://bucket/models"),
        ("models.existingClaim=", "extraVolumeMounts[0].mountPath=/models", "extraVolumeMounts[0].name=m"),
    ],
)
def test_other_ways_to_protect_a_server_and_to_bring_models_are_taken(
    render: Render, settings: tuple[str, ...]
) -> None:
    assert _pod(render(*settings))


def test_the_schema_has_every_value_and_no_other(deploy: Path) -> None:
    """U6: a typo is refused."""
    chart = deploy / "helm" / "repoagent"
    schema = json.loads((chart / "values.schema.json").read_text())
    values = yaml.safe_load((chart / "values.yaml").read_text())
    assert sorted(set(schema["properties"]) - {"global"}) == sorted(values)
    for name, value in values.items():
        properties = schema["properties"][name].get("properties")
        if properties is not None:
            assert sorted(properties) == sorted(value), name


@pytest.mark.parametrize("wish", ["tls.metrics=true", "tls.verifyClients=true"])
def test_a_wish_for_tls_without_its_secret_is_refused(render: Render, wish: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(wish)
    assert "need tls.secretName" in refused.value.stderr


def test_probes_services_and_scrapes_know_of_tls_and_keys(render: Render) -> None:
    for settings, scheme, protocol in (((), None, "kubernetes.io/h2c"), (SECRETS, "HTTPS", None)):
        manifests = render(*settings, "monitoring.serviceMonitor=true")
        _, container = _pod(manifests)
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            assert container[name]["httpGet"].get("scheme") == scheme
        ports = {port["name"]: port.get("appProtocol") for port in _one(manifests, "Service")["spec"]["ports"]}
        assert ports["grpc"] == protocol
        assert "scheme" not in _one(manifests, "ServiceMonitor")["spec"]["endpoints"][0]
    endpoint = _one(render(*EVERYTHING), "ServiceMonitor")["spec"]["endpoints"][0]
    assert endpoint["authorization"] == {"credentials": {"name": "prometheus-key", "key": "key"}}
    assert (endpoint["scheme"], endpoint["tlsConfig"]["serverName"]) == ("https", "demo-repoagent.models.svc")


def test_a_server_with_these_arguments_starts_and_follows_its_secrets(render: Render, tmp_path: Path) -> None:
    """The arguments of the chart with files as the kubelet lays them out, which it then replaces."""
    pod, container = _pod(render(*SECRETS, "flags.model-control-mode=explicit"))
    folders = {secret: tmp_path / secret for secret in ("who", "server-tls")}
    places = {_mounted(pod, container, secret): folder for secret, folder in folders.items()}
    authority = Authority(tmp_path / "authority")

    def lay_out(version: str, key: str) -> None:
        pair = authority.issue(version)
        digest = hashlib.sha256(key.encode()).hexdigest()
        rules = f'[clients.a]\nkeys = ["sha256:{digest}"]\nmodels = ["*"]\nrights = ["metadata"]\n'
        files = {"tls.crt": Path(pair.certificate).read_text(), "tls.key": Path(pair.key).read_text()}
        for secret, contents in (("who", {"access.toml": rules}), ("server-tls", files)):
            replace_secret(folders[secret], version, contents)

    lay_out("first", "first-key")
    flags = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--log-format=default"]
    command = [sys.executable, "-c", "from repoagent_server.program.tritonserver import main; main()"]
    for argument in container["args"][1:]:
        for place, folder in places.items():
            argument = argument.replace(place, str(folder))
        command.append(re.sub(r"(-port=)\d+", r"\g<1>0", argument).replace("=/models", f"={tmp_path / 'models'}"))
    (tmp_path / "models").mkdir()
    process = subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True)
    try:
        log = ServerLog(process)
        (port,) = log.ports("HTTPService")
        context = ssl.create_default_context(cafile=authority.root)

        def status(key: str) -> int:
            url = f"https://localhost:{port}/v2"
            return httpx.get(url, headers={"x-api-key": key}, verify=context, timeout=60).status_code

        def name() -> str:
            pem = ssl.get_server_certificate(("127.0.0.1", port))
            return x509.load_pem_x509_certificate(pem.encode()).subject.rfc4514_string()

        assert (status("first-key"), status("second-key"), name()) == (200, 401, "CN=first")
        lay_out("second", "second-key")
        log.until("the access file .* has been read again", "HTTP uses the TLS certificate that is now in")
        assert (status("first-key"), status("second-key"), name()) == (401, 200, "CN=second")
    finally:
        process.terminate()
        process.wait()


def replace_secret(folder: Path, version: str, contents: dict[str, str]) -> None:
    """As the kubelet does: links to ``..data``, a link that is replaced in one step."""
    folder.mkdir(exist_ok=True)
    (folder / f"..{version}").mkdir()
    for name, text in contents.items():
        (folder / f"..{version}" / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..new").symlink_to(f"..{version}")
    (folder / "..new").rename(folder / "..data")


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
