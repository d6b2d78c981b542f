"""The agent in a real loader: refusals, and the request to unload."""

import queue
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from repoagent_authorize import AuthorizeAgent
from repoagent_authorize.licence import issue_licence

from repoagent.testing import AgentHarness, FakeKeys, ModelRepo

Issue = Callable[..., bytes]
Requests = queue.SimpleQueue[tuple[str, str]]
LICENCE = {"licence": "licence.json", "public_key": "fake:vendor"}


@pytest.fixture
def requests() -> Requests:
    return queue.SimpleQueue()


@pytest.fixture
def harness(tmp_path: Path, public_pem: bytes, requests: Requests) -> Iterator[AgentHarness]:
    keys = FakeKeys({"vendor": public_pem, "token": b"t0ken\n"})
    with AgentHarness(
        tmp_path / "harness",
        {"authorize": AuthorizeAgent},
        keys=keys,
        on_unload_request=lambda model, reason: requests.put((model, reason)),
    ) as harness:
        yield harness


@pytest.fixture
def issue(private_key: Ed25519PrivateKey) -> Issue:
    def make(ends_in: timedelta) -> bytes:
        now = datetime.now(UTC)
        return issue_licence(private_key, ["m"], not_before=now - timedelta(days=1), expires=now + ends_in)

    return make


def watches() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "authorize-watch"]


def test_when_the_licence_ends_the_server_is_asked_to_unload_once(
    harness: AgentHarness, model_repo: ModelRepo, issue: Issue, requests: Requests
) -> None:
    later = [timedelta(0)]
    harness.add("authorize", AuthorizeAgent(clock=lambda: datetime.now(UTC) + later[0]))
    model = model_repo.add("m", {"licence.json": issue(timedelta(days=1))}, agents=[("authorize", LICENCE)])
    chain = harness.load(model)
    later[0] = timedelta(days=2)
    chain.complete()
    name, reason = requests.get(timeout=20)
    assert name == "m"
    assert reason.startswith("agent 'authorize': the licence ended at 20")
    chain.unload()
    chain.unload_complete()
    assert requests.empty()
    assert watches() == []


def test_nobody_is_asked_and_no_thread_stays_when_the_model_goes_before(
    harness: AgentHarness, model_repo: ModelRepo, issue: Issue, requests: Requests
) -> None:
    model = model_repo.add("m", {"licence.json": issue(timedelta(days=1))}, agents=[("authorize", LICENCE)])
    chain = harness.load(model)
    chain.complete()
    assert len(watches()) == 1
    chain.unload()
    assert watches() == []
    chain.unload_complete()
    assert requests.empty()


def test_a_load_that_fails_starts_no_watch(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model = model_repo.add("m", {"licence.json": issue(timedelta(days=1))}, agents=[("authorize", LICENCE)])
    harness.load(model).fail(RuntimeError("the backend failed"))
    assert watches() == []


def test_the_report_says_until_when(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model = model_repo.add("m", {"licence.json": issue(timedelta(days=1))}, agents=[("authorize", LICENCE)])
    (note,) = harness.run(model).report.entries[0].actions[0].notes
    assert note.startswith("the licence ends at 20")


@pytest.mark.parametrize(
    ("files", "parameters", "message"),
    [
        ({"other": b""}, LICENCE, "the model has no licence file licence.json"),
        ({"licence.json/x": b""}, LICENCE, "the model has no licence file licence.json"),
        ({"licence.json": bytes(70_000)}, LICENCE, "larger than 65536 bytes"),
        ({}, {"licence": "licence.json", "trust_root": "vendor"}, "policy has no trust root 'vendor'"),
        ({}, {"licence": "licence.json", "public_key": "fake:nothing"}, "the test put no key at fake:nothing"),
    ],
)
def test_what_is_missing_is_a_refusal(
    harness: AgentHarness, model_repo: ModelRepo, files: dict[str, bytes], parameters: dict[str, str], message: str
) -> None:
    outcome = harness.run(model_repo.add("m", files, agents=[("authorize", parameters)]))
    assert message in str(outcome.error)


def test_a_remote_model_has_its_licence_with_it(harness: AgentHarness, model_repo: ModelRepo, issue: Issue) -> None:
    model_repo.add("m", {"licence.json": issue(timedelta(days=1))}, agents=[("authorize", LICENCE)])
    assert harness.run(model_repo.remote("m")).loaded


def test_the_endpoint_decides(harness: AgentHarness, model_repo: ModelRepo, endpoint: Any) -> None:
    parameters = {"url": endpoint.url, "token": "fake:token"}
    model = model_repo.add("m", agents=[("authorize", parameters)])
    outcome = harness.run(model)
    assert outcome.loaded
    assert endpoint.asked == [("Bearer t0ken", {"model": "m"})]
    assert "the authorization by the endpoint has no end" in outcome.report.to_json()
    endpoint.answer = lambda _body: (200, b'{"authorized": false, "reason": "unpaid"}')
    assert str(harness.run(model).error) == "agent 'authorize': not authorized: unpaid"
    endpoint.answer = lambda _body: (200, b'{"authorized": true, "until": "2020-01-01T00:00:00Z"}')
    assert "the authorization by the endpoint ended at 2020-01-01" in str(harness.run(model).error)
