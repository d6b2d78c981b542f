"""The agent in a real loader: refusals, and the request to unload."""

import hashlib
import queue
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from repoagent_license import host
from repoagent_license.agent import LicenseAgent, parse_parameters
from repoagent_license.host import host_id, model_digest
from repoagent_license.license_file import issue_license
from repoagent_license.terms import Terms

from repoagent.api import InvalidArgumentError, Parameters, UnsafePathError
from repoagent.testing import AgentHarness, FakeKeys, ModelRepo

Issue = Callable[..., bytes]
Requests = queue.SimpleQueue[tuple[str, str]]
LICENSE = {"license": "license.json", "public_key": "fake:vendor"}


@pytest.fixture
def requests() -> Requests:
    return queue.SimpleQueue()


@pytest.fixture
def harness(tmp_path: Path, public_pem: bytes, requests: Requests) -> Iterator[AgentHarness]:
    keys = FakeKeys({"vendor": public_pem, "token": b"t0ken\n"})
    with AgentHarness(
        tmp_path / "harness",
        {"license": LicenseAgent},
        keys=keys,
        on_unload_request=lambda model, reason: requests.put((model, reason)),
    ) as harness:
        yield harness


@pytest.fixture
def issue(private_key: Ed25519PrivateKey) -> Issue:
    def make(ends_in: timedelta = timedelta(days=1), **more: Any) -> bytes:
        now = datetime.now(UTC)
        return issue_license(private_key, Terms(("m",), now - timedelta(days=1), now + ends_in, **more))

    return make


def watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "license-watch"]


def test_when_the_license_ends_the_server_is_asked_to_unload_once(
    harness: AgentHarness, model_repo: ModelRepo, issue: Issue, requests: Requests
) -> None:
    later = [timedelta(0)]
    harness.add("license", LicenseAgent(clock=lambda: datetime.now(UTC) + later[0]))
    model = model_repo.add("m", {"license.json": issue(timedelta(days=1))}, agents=[("license", LICENSE)])
    chain = harness.load(model)
    later[0] = timedelta(days=2)
    chain.complete()
    name, reason = requests.get(timeout=120)
    assert name == "m"
    assert reason.startswith("agent 'license': the license ended at 20")
    chain.unload()
    chain.unload_complete()
    assert requests.empty()
    assert watches() == []


def test_nobody_is_asked_and_no_thread_stays_when_the_model_goes_before(
    harness: AgentHarness, model_repo: ModelRepo, issue: Issue, requests: Requests
) -> None:
    model = model_repo.add("m", {"license.json": issue(timedelta(days=1))}, agents=[("license", LICENSE)])
    chain = harness.load(model)
    chain.complete()
    assert len(watches()) == 1
    chain.unload()
    assert watches() == []
    chain.unload_complete()
    assert requests.empty()


def test_a_load_that_fails_starts_no_watch(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model = model_repo.add("m", {"license.json": issue(timedelta(days=1))}, agents=[("license", LICENSE)])
    harness.load(model).fail(RuntimeError("the backend failed"))
    assert watches() == []


def test_the_report_says_until_when(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model = model_repo.add("m", {"license.json": issue(timedelta(days=1))}, agents=[("license", LICENSE)])
    note = harness.run(model).report.entries[0].actions[0].notes[-1]
    assert note.startswith("the license ends at 20")


@pytest.mark.parametrize(
    ("files", "parameters", "message"),
    [
        ({"other": b""}, LICENSE, "the model has no license file license.json"),
        ({"license.json/x": b""}, LICENSE, "the model has no license file license.json"),
        ({"license.json": bytes(70_000)}, LICENSE, "larger than 65536 bytes"),
        ({}, {"license": "license.json", "trust_root": "vendor"}, "policy has no trust root 'vendor'"),
        ({}, {"license": "license.json", "public_key": "fake:nothing"}, "the test has no key at fake:nothing"),
    ],
)
def test_what_is_missing_is_a_refusal(
    harness: AgentHarness, model_repo: ModelRepo, files: dict[str, bytes], parameters: dict[str, str], message: str
) -> None:
    outcome = harness.run(model_repo.add("m", files, agents=[("license", parameters)]))
    assert message in str(outcome.error)


def test_a_remote_model_has_its_license_with_it(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model_repo.add("m", {"license.json": issue(timedelta(days=1))}, agents=[("license", LICENSE)])
    assert harness.run(model_repo.remote("m")).loaded


def test_the_endpoint_decides(harness: AgentHarness, model_repo: ModelRepo, endpoint: Any) -> None:
    parameters = {"url": endpoint.url, "token": "fake:token"}
    model = model_repo.add("m", agents=[("license", parameters)])
    outcome = harness.run(model)
    assert outcome.loaded
    assert endpoint.asked == [("Bearer t0ken", {"model": "m"})]
    assert "the authorization by the endpoint has no end" in outcome.report.to_json()
    endpoint.answer = lambda _body: (200, b'{"authorized": false, "reason": "unpaid"}')
    assert str(harness.run(model).error) == "agent 'license': not authorized: unpaid"
    endpoint.answer = lambda _body: (200, b'{"authorized": true, "until": "2020-01-01T00:00:00Z"}')
    assert "the authorization by the endpoint ended at 2020-01-01" in str(harness.run(model).error)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with the identifier of this machine."""
    place = tmp_path / "machine-id"
    place.write_text("0123456789abcdef0123456789abcdef\n")
    monkeypatch.setattr(host.host_id, "__defaults__", ((place,),))
    return place


def test_a_license_for_this_machine_loads_and_one_for_others_does_not(
    harness: AgentHarness, model_repo: ModelRepo, issue: Issue, machine: Path
) -> None:
    content = issue(hosts=("sha256:0", host_id()))
    model = model_repo.add("m", {"license.json": content}, agents=[("license", LICENSE)])
    assert harness.run(model).loaded
    machine.write_text("another\n")
    message = f"the license is for 2 other machines; this one is {host_id()}"
    assert message in str(harness.run(model).error)
    machine.unlink()
    assert "this one has no" in str(harness.run(model).error)


def test_a_license_for_this_content_refuses_any_other(
    harness: AgentHarness, model_repo: ModelRepo, issue: Issue, tmp_path: Path
) -> None:
    model = model_repo.add("m", {"1/a/b.bin": b"weights", "1/c": b""}, agents=[("license", LICENSE)])
    digest = model_digest(model)
    names = sorted(str(path.relative_to(model)) for path in model.glob("[0-9]*/**/*") if path.is_file())
    lines = subprocess.run(["sha256sum", "--tag", *names], cwd=model, capture_output=True, check=True).stdout
    expected = hashlib.sha256(b"".join(sorted(lines.splitlines(keepends=True)))).hexdigest()
    assert digest == f"sha256:{expected}"
    (model / "license.json").write_bytes(issue(digest=digest))
    outcome = harness.run(model)
    assert outcome.loaded
    action = outcome.report.entries[0].actions[0]
    assert (action.bytes_read, action.digests) == (
        sum((model / name).stat().st_size for name in names),
        {"model": digest},
    )
    (model / "1/c").write_bytes(b"x")
    assert "the license is for other content: expected sha256:" in str(harness.run(model).error)


def test_a_license_that_is_a_link_is_refused(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model = model_repo.add("m", {"other.json": issue()}, agents=[("license", LICENSE)])
    (model / "license.json").symlink_to("other.json")
    assert not harness.run(model).loaded


def test_the_report_names_the_licensee(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model = model_repo.add("m", {"license.json": issue(licensee="ACME")}, agents=[("license", LICENSE)])
    assert "the license for ACME ends at" in harness.run(model).report.to_json()


KEY = ("public_key", "file:/k")


@pytest.mark.parametrize(
    "pairs",
    [
        [("url", "https://example.com/models")],
        [("url", "http://127.0.0.1:8080/"), ("timeout", "0.5"), ("token", "env:TOKEN")],
        [("url", "http://[::1]:8080/")],
        [("license", "license.json"), KEY],
        [("license", "legal/license.json"), ("trust_root", "vendor")],
    ],
)
def test_good_parameters_are_read(pairs: list[tuple[str, str]]) -> None:
    options = parse_parameters(Parameters(pairs))
    assert (options.url or options.license) == pairs[0][1]
    assert options.timeout == float(dict(pairs).get("timeout", 5))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "give one of the parameters 'url' and 'license'"),
        ([("url", "https://x"), ("license", "l")], "give one of the parameters 'url' and 'license'"),
        ([("license", "l")], "the license's key is missing"),
        ([("license", "l"), KEY, ("trust_root", "v")], "give one of 'trust_root' and 'public_key'"),
        ([("lizenz", "l")], "unknown parameter 'lizenz'; did you mean 'license'?"),
        ([("url", "http://example.com")], "must begin with https://"),
        ([("url", "file:///etc/passwd")], "must begin with https://"),
        ([("url", "https://me:secret@example.com")], "holds a user name or password"),
        ([("url", "https://x"), ("timeout", "0")], "must be seconds above 0 and at most 60, not '0'"),
        ([("url", "https://x"), ("timeout", "soon")], "not 'soon'"),
        ([("url", "https://x"), ("timeout", "nan")], "not 'nan'"),
    ],
)
def test_bad_parameters_are_refused(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_parameters(Parameters(pairs))


@pytest.mark.parametrize("path", ["", "/etc/license", "../license", "a/../../l", "a//b", "./l", "a\0b"])
def test_a_license_outside_of_the_model_is_refused(path: str) -> None:
    with pytest.raises(UnsafePathError, match="plain path in the model's directory"):
        parse_parameters(Parameters([("license", path), KEY]))
