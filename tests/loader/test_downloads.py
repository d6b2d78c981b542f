import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import Agent, AgentModel, RemoteFile
from repoagent.errors import AgentRefusedError
from repoagent.testing import AgentHarness
from tests.file_server import FileServer, Request

pytestmark = pytest.mark.slow

Work = Callable[[AgentModel], object]
CONTENT = os.urandom(200_000)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("repoagent.storage.transfer.download_file._FIRST_PAUSE", 0.0)
    with FileServer({"/m/w.onnx": CONTENT, "/m/config.json": b"{}"}) as server:
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", server.host)
        yield server


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[Work], Mapping[str, bytes]]]:
    model = tmp_path / "repository" / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "x").write_bytes(b"x")
    (model / "config.pbtxt").write_text('model_repository_agents { agents [ { name: "worker" } ] }')
    with ExitStack() as stack:

        def work(call: Work) -> Mapping[str, bytes]:
            class Worker(Agent):
                """Does what the test wants."""

                api_version = 1

                def load(self, model: AgentModel) -> None:
                    call(model)

            harness = stack.enter_context(AgentHarness(tmp_path / "harness", {"worker": Worker}))
            outcome = harness.run(model)
            harness.close()
            work.report = outcome.report  # type: ignore[attr-defined]
            if outcome.error is not None:
                raise outcome.error
            return outcome.files

        yield work


def test_a_file_is_downloaded_with_its_digest_through_the_cache(run: Any, server: FileServer) -> None:
    """U15: and the report counts it."""
    found: dict[str, str] = {}
    digest = "sha256:" + hashlib.sha256(CONTENT).hexdigest()

    def load(model: AgentModel) -> None:
        target = model.acquire_location()
        (target / "1").mkdir()
        found.update(model.download(f"{server.url}/m/w.onnx", target / "1", digests={"w.onnx": digest}))
        model.update_location(target)

    assert run(load)["1/w.onnx"] == CONTENT
    assert found == {"w.onnx": digest}
    assert run.report.entries[0].actions[0].bytes_written == len(CONTENT)
    sent = server.sent
    run(load)
    assert server.sent == sent + 2  # the first byte, before and after


def test_a_list_of_files_comes_with_headers_that_are_renewed(run: Any, server: FileServer) -> None:
    tokens = ["old", "new"]
    asked: list[bool] = []

    def headers(again: bool) -> dict[str, str]:
        asked.append(again)
        return {"Authorization": f"Bearer {tokens[again]}"}

    def check(request: Request) -> bool:
        if request.headers.get("Authorization") != "Bearer new":
            request.answer(401)
            return True
        return False

    server.handlers.append(check)
    file = RemoteFile("1/w", f"{server.url}/m/w.onnx", len(CONTENT), headers=headers)

    def load(model: AgentModel) -> None:
        model.download([file], model.acquire_location())
        model.update_location(model.acquire_location())

    assert run(load)["1/w"] == CONTENT
    assert asked == [False, True]


def test_within_a_build_of_the_cache_files_are_links(run: Any, server: FileServer) -> None:
    def load(model: AgentModel) -> None:
        file = RemoteFile("1/w", f"{server.url}/m/w.onnx", digest="sha256:" + hashlib.sha256(CONTENT).hexdigest())

        def build(target: Path) -> None:
            model.download([file], target)

        tree = model.cache.get_or_build("k", build)
        assert (tree / "1/w").stat().st_nlink == 2
        model.update_location(tree)

    assert run(load) == {"1/w": CONTENT}


@pytest.mark.parametrize(
    ("work", "text"),
    [
        (lambda m, s: m.download("file:///etc", m.acquire_location()), "not a place to download from"),
        (lambda m, s: m.download("/etc/hostname", m.acquire_location()), "not a place to download from"),
        (lambda m, s: m.download("memory://x/y", m.acquire_location()), "not a place to download from"),
        (lambda m, s: m.download("simplecache::file:///etc", m.acquire_location()), "not a place to download from"),
        (lambda m, s: m.download("github://a:b@/x", m.acquire_location()), "not a place to download from|cannot read"),
        (lambda m, s: m.download("http://127.0.0.1:1/x", m.acquire_location()), "not a public address"),
        (lambda m, s: m.download("s3://http://127.0.0.1:1/b/x", m.acquire_location()), "not a public address"),
        (lambda m, s: m.download("s3://169.254.169.254:80/b/x", m.acquire_location()), "machine's own services"),
        (lambda m, s: m.download([RemoteFile("../x", f"{s.url}/m/w.onnx")], m.acquire_location()), "contains '..'"),
        (lambda m, s: m.download([RemoteFile("/x", f"{s.url}/m/w.onnx")], m.acquire_location()), "absolute path"),
        (
            lambda m, s: m.download([RemoteFile("x", s.url), RemoteFile("x/y", s.url)], m.acquire_location()),
            "both a file and a directory",
        ),
        (lambda m, s: m.download([RemoteFile("x", f"{s.url}/m/w.onnx", 5)], m.acquire_location()), "5 were expected"),
        (
            lambda m, s: m.download([RemoteFile("x", s.url, digest="md5:0")], m.acquire_location()),
            "not a valid digest",
        ),
        (
            lambda m, s: m.download(f"{s.url}/m/w.onnx", m.acquire_location(), digests={"v": "sha256:" + "0" * 64}),
            "there is no file 'v'",
        ),
        (
            lambda m, s: m.download(
                f"{s.url}/m/w.onnx", m.acquire_location(), digests={"w.onnx": "sha256:" + "0" * 64}
            ),
            "has the digest sha256:",
        ),
        (lambda m, s: m.download(f"{s.url}/m/none", m.acquire_location()), "does not exist|no file"),
    ],
)
def test_what_may_not_be_or_is_not_there_is_refused(run: Any, server: FileServer, work: Any, text: str) -> None:
    with pytest.raises(AgentRefusedError, match=text):
        run(lambda model: work(model, server))


def test_a_confidential_load_keeps_nothing_in_the_cache(run: Any, server: FileServer, tmp_path: Path) -> None:
    def load(model: AgentModel) -> None:
        target = model.acquire_location(confidential=True)
        model.download([RemoteFile("1/w", f"{server.url}/m/w.onnx")], target)
        model.update_location(target)

    assert run(load) == {"1/w": CONTENT}
    assert not list((tmp_path / "harness" / "cache").rglob("*"))


def test_offline_nothing_is_asked(run: Any, server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = "sha256:" + hashlib.sha256(CONTENT).hexdigest()

    def load(model: AgentModel) -> None:
        target = model.acquire_location()
        model.download([RemoteFile("1/w", f"{server.url}/m/w.onnx", digest=digest)], target)
        model.update_location(target)

    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    with pytest.raises(AgentRefusedError, match=r"not in the cache, and the server is offline \(REPOAGENT_OFFLINE\)"):
        run(load)
    assert server.requests == []
    monkeypatch.setenv("REPOAGENT_OFFLINE", "0")
    run(load)
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    count = len(server.requests)
    assert run(load) == {"1/w": CONTENT}
    assert len(server.requests) == count
    with pytest.raises(AgentRefusedError, match="cannot be listed: the server is offline"):
        run(lambda model: model.list_remote(f"{server.url}/m/w.onnx"))


@pytest.mark.parametrize("cached", [True, False])
def test_what_was_downloaded_is_not_read_again_by_a_guard(cached: bool, tmp_path: Path, server: FileServer) -> None:
    class Fetches(Agent):
        api_version = 1

        def load(self, model: AgentModel) -> None:
            def build(target: Path) -> None:
                model.download(f"{server.url}/m/w.onnx", target)

            if cached:
                model.update_location(model.cache.get_or_build("k", build))
            else:
                build(model.acquire_location(confidential=True))
                model.update_location(model.acquire_location())

    class Judges(Agent):
        api_version = 1
        guard = True

        def load(self, model: AgentModel) -> None:
            found = model.digests({"w.onnx": ("sha256",)})["w.onnx"]["sha256"]
            assert found == hashlib.sha256(CONTENT).hexdigest()

    root = tmp_path / "m"
    root.mkdir()
    config = 'model_repository_agents { agents [ { name: "fetches" }, { name: "judges" } ] }'
    (root / "config.pbtxt").write_text(config)
    with AgentHarness(tmp_path / "harness", {"fetches": Fetches, "judges": Judges}) as harness:
        outcome = harness.run(root)
    assert outcome.error is None
    assert outcome.report.entries[1].actions[0].bytes_read == 0
