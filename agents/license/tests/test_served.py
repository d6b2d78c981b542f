"""A served model whose license ends: the server unloads it, and does not load it again."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from repoagent_license import agent
from repoagent_license.agent import LicenseAgent, Watch
from repoagent_license.host import model_digest
from repoagent_license.license_file import issue_license
from repoagent_license.terms import Terms, now

from repoagent.api.hooks import hookimpl
from repoagent.errors import RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
CONFIG = """
backend: "python"
model_repository_agents { agents [ { name: "license"
    parameters { key: "license" value: "license.json" } parameters { key: "public_key" value: "file:%s" } } ] }
"""


class Clock:
    """Real time, or two hours later once the license has ended."""

    def __init__(self) -> None:
        self.over = False

    def __call__(self) -> datetime:
        return datetime.now(UTC) + timedelta(hours=2 * self.over)


class Unloads:
    def __init__(self) -> None:
        self.gone = threading.Event()

    @hookimpl
    def unload_finished(self, event: object) -> None:
        self.gone.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(LicenseAgent.__init__, "__defaults__", (clock,))
    monkeypatch.setattr(agent, "_LONGEST_WAIT", 0.05)
    return clock


@pytest.fixture
def core(tmp_path: Path, private_key: Ed25519PrivateKey, public_pem: bytes) -> Iterator[tuple[ServingCore, Unloads]]:
    """The model ``m`` under a license for an hour and its content."""
    model = tmp_path / "models" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text(MODEL)
    (tmp_path / "vendor.pem").write_bytes(public_pem)
    (model / "config.pbtxt").write_text(CONFIG % (tmp_path / "vendor.pem"))
    now = datetime.now(UTC)
    terms = Terms(("m",), now, now + timedelta(hours=1), (), model_digest(model), "ACME")
    (model / "license.json").write_bytes(issue_license(private_key, terms))
    unloads = Unloads()
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=tmp_path / "work",
        cache_directory=tmp_path / "cache",
    )
    with ServingCore(options) as core:
        core.observe(unloads, "test")
        yield core, unloads


def test_it_is_unloaded_at_the_end_and_refused_after_that(core: tuple[ServingCore, Unloads], clock: Clock) -> None:
    server, unloads = core
    server.load("m")
    assert server.infer(InferRequest(Asked("m", {}))).error is None
    clock.over = True
    assert unloads.gone.wait(60)
    with pytest.raises(RepoAgentError):
        server.infer(InferRequest(Asked("m", {})))
    with pytest.raises(RepoAgentError, match="the license for ACME ended at"):
        server.load("m")


# The watch: rings once, at the end, unless it was stopped.

START = datetime(2020, 1, 1, tzinfo=UTC)


def test_it_rings_at_the_end() -> None:
    rung = threading.Event()
    watch = Watch(now() + timedelta(milliseconds=50), rung.set, clock=now)
    assert rung.wait(120)
    watch.stop()


def test_it_rings_at_once_when_the_end_is_past() -> None:
    rung = threading.Event()
    Watch(START, rung.set, clock=now)
    assert rung.wait(120)


def test_it_does_not_ring_after_it_was_stopped_and_its_thread_is_gone() -> None:
    rung = threading.Event()
    watch = Watch(START + timedelta(days=100_000), rung.set, clock=now)
    watch.stop()
    watch.stop()
    assert not rung.is_set()
    assert not watch._thread.is_alive()


def test_a_clock_that_is_set_forward_counts() -> None:
    rung = threading.Event()
    times = iter([START, START + timedelta(milliseconds=10), START + timedelta(days=2)])
    Watch(START + timedelta(milliseconds=20), rung.set, clock=lambda: next(times))
    assert rung.wait(120)
