"""Examples of other servers behind agents: the commands that they run take their arguments, plaintext is in memory."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from repoagent.cli.prepare import prepare
from repoagent.cli.run import run
from repoagent.handover.command import fill_in

COMMANDS = {"prepare": prepare, "run": run}
VALUES = {"model": "/m/llama", "name": "llama", "version": None, "repository": "/m"}


def parameters(words: list[str]) -> dict[str, Any]:
    """What ``repoagent COMMAND ...`` makes of its arguments."""
    assert words[0] == "repoagent"
    with COMMANDS[words[1]].make_context(words[1], words[2:]) as context:
        return dict(context.params)


@pytest.fixture(scope="module")
def compose(deploy: Path) -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((deploy / "compose/compose.yaml").read_text())["services"]
    return read


@pytest.fixture(scope="module")
def pod(deploy: Path, tool: Callable[[str], str]) -> Callable[[str], dict[str, Any]]:
    """The specification of the pod that Helm renders."""

    def render(mode: str) -> dict[str, Any]:
        sets = [f"mode={mode}", "model=s3://bucket/llama", "policySecret=p", "server.image=vllm"]
        words = [tool("helm"), "template", "chat", str(deploy / "helm/other-server"), "--set", ",".join(sets)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        spec: dict[str, Any] = yaml.safe_load(done.stdout)["spec"]["template"]["spec"]
        return spec

    return render


def test_compose_prepares_a_directory_in_memory_and_the_server_waits_for_it(compose: dict[str, Any]) -> None:
    given = parameters(compose["prepare"]["command"])
    assert given["pairs"] == ("/models/llama", "/mnt/models")
    assert set(compose["prepare"]["environment"]) <= {option.envvar for option in prepare.params}
    assert "/dev/shm/llama:/mnt/models" in compose["prepare"]["volumes"]
    assert "/dev/shm/llama:/mnt/models:ro" in compose["server"]["volumes"]
    assert compose["server"]["depends_on"] == {"prepare": {"condition": "service_completed_successfully"}}


def test_compose_serves_with_workers_of_another_user(
    compose: dict[str, Any], flags_of: Callable[[list[str]], dict[str, Any]]
) -> None:
    service = compose["serve"]
    options = flags_of(service["command"])
    assert options["worker_user"] == "1000"
    assert service["user"] == "0:0"
    assert (service["cap_drop"], service["cap_add"]) == (["ALL"], ["KILL", "SETGID", "SETUID"])
    assert int(service["stop_grace_period"].removesuffix("s")) > options["exit_timeout_secs"]


def test_compose_runs_a_server(compose: dict[str, Any]) -> None:
    given = parameters(compose["run"]["command"])
    assert given["model"] == "/models/llama"
    assert fill_in(given["command"], VALUES) == ["vllm", "serve", "/m/llama", "--served-model-name", "llama"]
    assert int(compose["run"]["stop_grace_period"].removesuffix("s")) > given["stop_timeout"]


@pytest.mark.slow
def test_the_chart_prepares_in_an_init_container(pod: Callable[[str], dict[str, Any]]) -> None:
    spec = pod("prepare")
    (initial,), (server,) = spec["initContainers"], spec["containers"]
    pairs = parameters([*initial["command"], *initial["args"]])["pairs"]
    assert pairs == ("s3://bucket/llama", "/mnt/models/llama")
    assert server["command"] == ["vllm", "serve", "/mnt/models/llama", "--served-model-name", "llama"]
    assert {one["name"] for one in initial["env"]} <= {option.envvar for option in prepare.params}
    mounts = [{one["name"]: one for one in container["volumeMounts"]} for container in (initial, server)]
    assert [one["plaintext"]["mountPath"] for one in mounts] == ["/mnt/models"] * 2
    assert mounts[1]["plaintext"]["readOnly"] is True
    assert "policy" not in mounts[1]


@pytest.mark.slow
def test_the_chart_runs_the_server_behind_the_agents(pod: Callable[[str], dict[str, Any]]) -> None:
    spec = pod("run")
    assert "initContainers" not in spec
    given = parameters(spec["containers"][0]["command"])
    assert fill_in(given["command"], VALUES)[:3] == ["vllm", "serve", "/m/llama"]
    assert spec["terminationGracePeriodSeconds"] > given["stop_timeout"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["prepare", "run"])
def test_the_chart_has_known_fields_only_and_plaintext_in_memory(
    pod: Callable[[str], dict[str, Any]], problems: Callable[[list[dict[str, Any]]], list[list[str]]], mode: str
) -> None:
    spec = pod(mode)
    (plaintext,) = (volume for volume in spec["volumes"] if volume["name"] == "plaintext")
    assert plaintext["emptyDir"]["medium"] == "Memory"
    labels = {"matchLabels": {"a": "b"}}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    manifest = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}}
    assert problems([manifest | {"spec": {"selector": labels, "template": template}}]) == [[]]
