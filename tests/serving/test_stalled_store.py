"""A remote repository that takes connections and answers nothing costs nobody but its own models."""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from fsspec.exceptions import FSTimeoutError
from s3fs import S3FileSystem

from repoagent.errors import ErrorCode, RepoAgentError, UnavailableError
from repoagent.public_text import public_text
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from tests.relay import Relay
from tests.serving.core_kit import CoreMaker, ModelWriter, in_thread

pytestmark = pytest.mark.slow

PATIENCE = 120.0


class Store:
    """A bucket, seen through a relay."""

    def __init__(self, endpoint: str) -> None:
        import s3fs

        self.relay = Relay(endpoint)
        self._fs = s3fs.S3FileSystem(endpoint_url=endpoint, use_listings_cache=False, skip_instance_cache=True)
        self._bucket = f"bucket-{uuid.uuid4().hex}"
        self._fs.mkdir(self._bucket)
        self.url = f"s3://{self.relay.endpoint}/{self._bucket}/models"

    def put(self, model: str) -> None:
        self._fs.pipe_file(f"{self._bucket}/models/{model}/config.pbtxt", b'backend: "scripted"')
        self._fs.pipe_file(f"{self._bucket}/models/{model}/1/model.txt", b"1")


@pytest.fixture
def store(s3_endpoint: str, s3_credentials: None) -> Iterator[Store]:
    bucket = Store(s3_endpoint)
    bucket.put("far")
    yield bucket
    bucket.relay.close()


@pytest.fixture
def settings(repository: Path, store: Store) -> dict[str, Any]:
    return {"repositories": (store.url, str(repository)), "repository_timeout_seconds": 4.0}


def _entries(core: Any) -> dict[str, dict[str, str]]:
    return {entry["name"]: entry for entry in core.index()}


def test_the_index_has_the_other_models_and_the_reason_and_both_again_when_the_store_is_back(
    new_core: CoreMaker, write_model: ModelWriter, store: Store, settings: dict[str, Any]
) -> None:
    write_model("near", {1: "1"})
    core = new_core(**settings)
    assert _entries(core) == {"far": {"name": "far"}, "near": {"name": "near"}}
    store.relay.stall()
    for text in ("does not answer within 4 s (--repository-timeout)", "has not answered since "):
        entries = _entries(core)
        assert entries["near"] == {"name": "near"}
        assert entries["far"]["state"] == "UNAVAILABLE"
        assert text in entries["far"]["reason"]
    store.relay.resume()
    end = time.monotonic() + PATIENCE
    while "reason" in _entries(core)["far"]:
        assert time.monotonic() < end


def test_local_models_load_while_a_store_stalls(
    new_core: CoreMaker, write_model: ModelWriter, store: Store, settings: dict[str, Any]
) -> None:
    write_model("near", {1: "1"})
    core = new_core(**settings)
    store.relay.stall()
    core.load("near")
    assert core.model_ready("near")
    with pytest.raises(UnavailableError, match=r"failed to poll from model repository: .*has not answered since"):
        core.load("far")


def test_a_name_that_the_stalled_store_had_stays_ambiguous(
    new_core: CoreMaker, write_model: ModelWriter, store: Store, settings: dict[str, Any]
) -> None:
    write_model("far", {1: "1"})
    core = new_core(**settings)
    store.relay.stall()
    with pytest.raises(RepoAgentError, match="not unique across all model repositories"):
        core.load("far")


def test_polling_follows_the_other_repositories(
    new_core: CoreMaker, write_model: ModelWriter, store: Store, settings: dict[str, Any]
) -> None:
    write_model("near", {1: "1"})
    core = new_core(**settings, control_mode=ControlMode.POLL, poll_seconds=3600, exit_on_error=False)
    store.relay.stall()
    write_model("new", {1: "1"})
    core.poll()
    assert core.model_ready("new")
    assert core.model_ready("near")


@pytest.mark.parametrize("at", ["the listing", "a download"])
def test_a_load_that_a_store_fails_may_be_tried_again_and_names_the_cause(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """L23: it was an error of the client without a cause."""
    read = S3FileSystem._cat_file

    async def fail(self: S3FileSystem, path: str, **more: Any) -> bytes:
        if path.endswith("model.txt"):
            raise FSTimeoutError from TimeoutError()  # as fsspec raises it: neither has a text
        return cast("bytes", await read(self, path, **more))

    monkeypatch.setattr(S3FileSystem, "_cat_file", fail)
    options = CoreOptions(
        repositories=(store.url,),
        control_mode=ControlMode.EXPLICIT,
        workspace_directory=tmp_path / "work",
        cache_directory=tmp_path / "cache",
        repository_timeout_seconds=4.0 if at == "the listing" else PATIENCE,
    )
    with ServingCore(options) as core:
        text = "FSTimeoutError: no answer in time"
        if at == "the listing":
            store.relay.stall()
            text = "does not answer within 4 s"
        with pytest.raises(UnavailableError, match=text) as caught:
            core.load("far", config='{"backend": "python"}')
        assert caught.value.code is ErrorCode.UNAVAILABLE
        assert ": ;" not in str(caught.value)
        reported = public_text(f"{caught.value} {core.index()}")
        assert store.relay.endpoint.partition("://")[2] not in reported
        assert "bucket-" not in reported
        store.relay.resume()


def test_the_stop_does_not_wait_for_a_store(
    new_core: CoreMaker, write_model: ModelWriter, store: Store, settings: dict[str, Any]
) -> None:
    core = new_core(**{**settings, "repository_timeout_seconds": 600.0})
    store.relay.stall()
    thread, results = in_thread(lambda: core.load("far"))
    assert store.relay.held.acquire(timeout=PATIENCE)
    core.stop()  # raises where it takes the exit timeout
    thread.join(PATIENCE)
    assert isinstance(results[0], RepoAgentError)


def test_many_remote_repositories_that_stall_cost_the_time_of_one(
    new_core: CoreMaker, write_model: ModelWriter, s3_endpoint: str, store: Store, repository: Path
) -> None:
    write_model("near", {1: "1"})
    stores = [Store(s3_endpoint) for _ in range(2)]
    for one in stores:
        one.put("some")
    urls = tuple(one.url for one in stores)
    core = new_core(repositories=(*urls, str(repository)), repository_timeout_seconds=4.0)
    for one in stores:
        one.relay.stall()
    asked_at_once = threading.Thread(target=core.index)
    asked_at_once.start()
    for one in stores:  # each is asked before any of them can have been given up
        assert one.relay.held.acquire(timeout=PATIENCE)
    asked_at_once.join(PATIENCE)
    for one in stores:
        one.relay.close()
