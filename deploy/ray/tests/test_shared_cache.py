"""Replicas of one node that share a cache: what one of them downloads, no other asks the hub for."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deploy.ray.tests.kit import App, World
from repoagent.audit import OPERATOR

_MODELS = 5


class _Hub(ThreadingHTTPServer):
    """A web server over a directory, which counts what it sends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(directory)))
        self.sent = 0


class _Handler(SimpleHTTPRequestHandler):
    def copyfile(self, source: Any, outputfile: Any) -> None:
        content = source.read()
        assert isinstance(self.server, _Hub)
        self.server.sent += len(content)
        outputfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def _hub(directory: Path) -> Iterator[_Hub]:
    with _Hub(directory) as hub:
        thread = threading.Thread(target=hub.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


@pytest.fixture
def hub(world: World) -> Iterator[_Hub]:
    source = world.root / "hub"
    source.mkdir()
    with _hub(source) as hub:
        yield hub


def test_each_file_is_downloaded_once_for_a_node(hub: _Hub, world: World) -> None:
    size = 0
    for number in range(_MODELS):
        directory = world.model(f"f{number}", 10.0 * number)
        file = world.root / "hub" / f"f{number}.onnx"
        (directory / "1" / "model.onnx").rename(file)
        (directory / "1").rmdir()
        size += file.stat().st_size
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        url = f"http://127.0.0.1:{hub.server_port}/f{number}.onnx"
        config = directory / "config.pbtxt"
        config.write_text(
            config.read_text()
            + f'model_repository_agents {{ agents [ {{ name: "fetch" parameters {{ key: "url" value: "{url}" }} '
            f'parameters {{ key: "file" value: "f{number}.onnx:1/model.onnx" }} '
            f'parameters {{ key: "digest" value: "f{number}.onnx=sha256:{digest}" }} }} ] }}'
        )
    app = _served(world, hub)
    for number in range(_MODELS):
        reports = app.all("load", f"f{number}", OPERATOR)  # every replica at once
        assert [report["outcome"] for report in reports] == [reports[0]["outcome"]] * 3
        assert app.ask(f"f{number}").json()["outputs"][0]["data"] == [1 + 10.0 * number, 2 + 10.0 * number]
    assert hub.sent == size
    app = _served(world, hub)  # replicas that start later find it as well
    for number in range(_MODELS):
        assert app.ask(f"f{number}").status_code == 200
    assert hub.sent == size
    print(f"{_MODELS} models on 3 replicas, loaded twice: {hub.sent} bytes from the hub for {size} bytes of files")


def _served(world: World, hub: _Hub) -> App:
    variables = {"REPOAGENT_FETCH_HOSTS": f"127.0.0.1:{hub.server_port}"}
    return world.run(
        min_replicas=3, models_per_replica=_MODELS, replica={"num_cpus": 0.1, "runtime_env": {"env_vars": variables}}
    )
