"""For every test: how Hypothesis runs, what is compiled and collected, the log's settings; an S3 server.

Hypothesis takes the same examples each time, and no example has to be quick; ``HYPOTHESIS_PROFILE=explore`` looks for
new examples instead.
"""

import functools
import gc
import logging
import os
import ssl
import sys
from collections.abc import Generator, Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, settings

from tests.installed import keep_entry_points
from tests.warm import Warm
from tests.warm_models import WarmModels

keep_entry_points()
settings.register_profile("steady", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# Tests stay compiled whatever PYTHONDONTWRITEBYTECODE says: it is half of what a collection costs, and every worker of
# pytest-xdist collects everything. The programs that tests start do as the variable says.
sys.dont_write_bytecode = False

_context = functools.cache(httpx.create_ssl_context)


def _authorities() -> list[str | None]:
    """Where a client looks for them."""
    return [os.environ.get(name) for name in ("SSL_CERT_FILE", "SSL_CERT_DIR")]


_usual_authorities = _authorities()


def _context_of_client(verify: Any = True, **more: Any) -> ssl.SSLContext:
    """That of an HTTP client. Reading the authorities takes 30 ms of a processor: those that trust them share one."""
    chosen = verify is not True or _authorities() != _usual_authorities
    return (_context.__wrapped__ if chosen else _context)(verify, **more)


pytest.MonkeyPatch().setattr("httpx._transports.default.create_ssl_context", _context_of_client)

# Until every test has been imported, nothing but the syntax trees of pytest is garbage, and those have no cycles.
gc.disable()


def pytest_collection_finish() -> None:
    """What is there now stays. Tests that ask for a collection of garbage do so hundreds of times: it is left out."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a test logs may hold halves of characters, which a process of pytest-xdist cannot send to the first one."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def _log_settings() -> dict[str, tuple[object, ...]]:
    """What decides which records of this project are seen."""
    loggers = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    return {"all": (logging.root.manager.disable, logging.root.level)} | {
        one.name: (one.level, one.disabled, one.propagate, list(one.filters))
        for one in loggers
        if one.name.startswith("repoagent") and (one.level or one.disabled or not one.propagate or one.filters)
    }


@pytest.fixture(autouse=True)
def log_settings_stay() -> Iterator[None]:
    """A test that leaves a logger silent fails, rather than one after it that looks at what was logged."""
    before = _log_settings()
    yield
    after = _log_settings()
    assert after == before, "the test, or what it called, left the settings of the log changed"


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """What ``repoagent`` is forked off, one for all tests of this process."""
    warm = Warm()
    yield warm
    warm.close()


@pytest.fixture(scope="session")
def warm_models() -> Iterator[WarmModels]:
    """What processes of Python models are forked off, one for all tests of this process."""
    warm = WarmModels()
    yield warm
    warm.close()


@pytest.fixture
def forked_models(warm_models: WarmModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of Python models are forked, see ``tests/warm_models.py``."""
    warm_models.replace_processes(monkeypatch)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of an S3 server, one for all tests: each makes a bucket of its own."""
    from moto.server import ThreadedMotoServer  # takes a second, which most runs need not spend

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that the server takes, in the environment, and no way round it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
