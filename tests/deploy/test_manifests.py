"""Manifests for KServe and KEDA: known fields only, arguments that the server takes, an image that no one else owns."""

import configparser
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from repoagent.cli.prepare import prepare

INITIALIZER: Final = ("clusterstoragecontainer.yaml", "inferenceservice.yaml")
Problems = Callable[[list[dict[str, Any]]], list[list[str]]]
#: The arguments of the runtime "kserve-tritonserver" of KServe 0.15.
STOCK: Final = [
    "tritonserver",
    "--model-store=/mnt/models",
    "--grpc-port=9000",
    "--http-port=8080",
    "--allow-grpc=true",
    "--allow-http=true",
]


@pytest.fixture(scope="module")
def runtime(deploy: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((deploy / "kserve" / "clusterservingruntime.yaml").read_text())
    return read


@pytest.fixture(scope="module")
def scaler(deploy: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((deploy / "keda" / "scaledobject.yaml").read_text())
    return read


@pytest.fixture(scope="module")
def found(deploy: Path, runtime: dict[str, Any], scaler: dict[str, Any], problems: Problems) -> list[list[str]]:
    """What is wrong with the manifests, and with each that has one change: asked once, as the clients load slowly."""
    changes: list[tuple[dict[str, Any], str, object]] = [
        (scaler, "nosuch", 1),
        (scaler, "minReplicaCount", "many"),
        (scaler, "triggers", {}),
        (scaler, "scaleTargetRef", None),
        (runtime, "nosuch", 1),
        (runtime, "containers", {}),
        (runtime, "containers", [{"image": "x"}]),
        (runtime, "disabled", "yes"),
        (runtime, "volumes", [{"name": "x", "emptyDir": {"medum": "Memory"}}]),
    ]
    wrong = [{**manifest, "spec": {**manifest["spec"], name: value}} for manifest, name, value in changes]
    initializer = [yaml.safe_load((deploy / "kserve" / name).read_text()) for name in INITIALIZER]
    return problems([runtime, scaler, *initializer, *wrong])


@pytest.mark.slow
def test_the_manifests_have_known_fields_only(found: list[list[str]]) -> None:
    assert found[:4] == [[], [], [], []]


@pytest.mark.slow
def test_what_a_project_does_not_have_is_found(found: list[list[str]]) -> None:
    assert len(found) == 13
    assert all(found[4:])


def test_the_runtime_has_the_stock_arguments_of_kserve(
    runtime: dict[str, Any], flags_of: Callable[[list[str]], Any]
) -> None:
    (container,) = runtime["spec"]["containers"]
    assert (container["name"], container["args"]) == ("kserve-container", STOCK)
    options = flags_of(container["args"])
    assert (options["http_port"], options["grpc_port"]) == (8080, 9000)


def test_the_runtime_promises_what_the_image_keeps(runtime: dict[str, Any]) -> None:
    (container,) = runtime["spec"]["containers"]
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["runAsUser"], security["runAsNonRoot"]) == (True, 1000, True)
    assert security["capabilities"] == {"drop": ["ALL"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    media = {volume["name"]: volume["emptyDir"]["medium"] for volume in runtime["spec"]["volumes"]}
    assert mounts == {"workspaces": "/tmp", "plaintext": "/dev/shm"}
    assert media == dict.fromkeys(mounts, "Memory")


def test_the_initializer_keeps_the_arguments_of_kserve(deploy: Path) -> None:
    """As KServe merges them: what the overlay has replaces its own, and the arguments are its pairs."""
    container = yaml.safe_load((deploy / "kserve/clusterstoragecontainer.yaml").read_text())["spec"]["container"]
    stock = {"name": "storage-initializer", "args": ["repoagent+s3://bucket/llm", "/mnt/models"], "image": "kserve/x"}
    merged = {**stock, **container}
    assert (merged["name"], merged["args"]) == (stock["name"], stock["args"])
    program, name, *_ = merged["command"]
    assert (program, name) == ("repoagent", "prepare")
    with prepare.make_context(name, [*merged["args"]]) as context:
        assert context.params["pairs"] == tuple(stock["args"])
    assert {entry["name"] for entry in container["env"]} <= {option.envvar for option in prepare.params}


def test_the_service_has_the_volumes_that_the_initializer_mounts_and_its_model_in_memory(deploy: Path) -> None:
    read = [yaml.safe_load((deploy / "kserve" / name).read_text()) for name in INITIALIZER]
    container, service = read[0]["spec"]["container"], read[1]["spec"]["predictor"]
    volumes = {volume["name"]: volume for volume in service["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} < set(volumes)
    assert volumes["kserve-provision-location"]["emptyDir"]["medium"] == "Memory"
    prefixes = [form["prefix"] for form in read[0]["spec"]["supportedUriFormats"]]
    assert service["model"]["storageUri"].startswith(tuple(prefixes))


def test_variables_of_the_runtime_are_those_of_flags(runtime: dict[str, Any], variables: set[str]) -> None:
    (container,) = runtime["spec"]["containers"]
    assert {entry["name"] for entry in container["env"]} <= variables


def test_no_file_names_an_image_of_a_registry(deploy: Path) -> None:
    for file in sorted(deploy.rglob("*.yaml")):
        for image in re.findall(r"^\s*(?:-\s*)?(?:image|repository): (\S.*)", file.read_text(), re.MULTILINE):
            assert image.startswith(
                ("REGISTRY/repoagent", '"{{ .Values.image.repository', '"{{ .Values.server.image', '""', "/models")
            ), (file, image)


# The unit for systemd: systemd finds no fault in it, and the server takes its flags.


@pytest.fixture
def unit(deploy: Path) -> Path:
    return deploy / "systemd" / "repoagent.service"


def _service(unit: Path) -> configparser.SectionProxy:
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    read.read(unit)
    return read["Service"]


def test_the_server_takes_its_flags_and_stops_in_time(
    unit: Path, flags_of: Callable[[list[str]], dict[str, Any]], tmp_path: Path
) -> None:
    """U12: a page named a unit, and there was none."""
    service = _service(unit)
    program, command, *flags = shlex.split(service["ExecStart"])
    assert (Path(program).name, command) == ("repoagent", "serve")
    config = tmp_path / "serve.toml"
    config.write_text('model-repository = ["/srv/models"]')
    flags = [f"--config-file={config}" if flag.startswith("--config-file=") else flag for flag in flags]
    options = flags_of(["tritonserver", *flags])
    assert options["exit_timeout_secs"] < int(service["TimeoutStopSec"])
    assert options["cache_directory"] == Path("/var/cache") / service["CacheDirectory"]


def test_systemd_finds_no_fault(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/repoagent/current/bin/repoagent", "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])
