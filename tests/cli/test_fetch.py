"""``repoagent fetch``: what it brings is what a load finds."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from repoagent.cli.main import program
from tests.file_server import FileServer, Request
from tests.warm import Warm

WEIGHTS = os.urandom(3 << 20)
DIGEST = f"model.onnx=sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({"/fraud/model.onnx": WEIGHTS, "/other/model.onnx": WEIGHTS, "/other/b": b"b"}) as server:
        yield server


def command(*arguments: str, cache: Path) -> list[str]:
    return [sys.executable, "-m", "repoagent", "fetch", "--cache-directory", str(cache), *arguments]


def environment(**more: str) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1", "HOME": "/nonexistent", **more}


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(warm: Warm) -> Run:
    """``repoagent fetch`` to its end."""

    def run(*arguments: str, cache: Path, **more: str) -> "subprocess.CompletedProcess[str]":
        return warm.run(["fetch", "--cache-directory", cache, *arguments], env=environment(**more))

    return run


@pytest.mark.slow
def test_what_was_fetched_ahead_is_not_fetched_by_the_load(
    run: Run, warm: Warm, server: FileServer, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    url = f"{server.url}/fraud/model.onnx"
    done = run(url, "--digest", DIGEST, cache=cache)
    assert (done.returncode, done.stdout) == (0, f"{url}: {len(WEIGHTS)} bytes; fetched {url}; pinned\n"), done.stderr
    asked = len(server.requests)
    assert run(url, "--digest", DIGEST, cache=cache).returncode == 0
    model, policy = tmp_path / "repository" / "fraud", tmp_path / "policy.toml"
    model.mkdir(parents=True)
    (model / "config.pbtxt").write_text("max_batch_size: 0")
    policy.write_text(
        '[[rule]]\nmodels = ["*"]\nmode = "enforce"\n'
        f'before = [ {{ agent = "fetch", parameters = [["url", "{url}"], ["digest", "{DIGEST}"]] }} ]\n'
    )
    options = [f"--agent-policy={policy}", f"--cache-directory={cache}", f"--workspace-directory={tmp_path / 'work'}"]
    load = warm.run(["check", model, *options], env=environment(REPOAGENT_OFFLINE="1"))
    assert load.returncode == 0, load.stdout + load.stderr
    assert len(server.requests) == asked


@pytest.mark.slow
def test_several_models_come_and_json_has_their_reports(run: Run, server: FileServer, tmp_path: Path) -> None:
    urls = [f"{server.url}/fraud/model.onnx", f"{server.url}/other/model.onnx"]
    done = run(*urls, "--floating", "--json", cache=tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert [report["outcome"] for report in reports] == ["unloaded", "unloaded"]
    assert len(list((tmp_path / "cache" / "blobs").iterdir())) == 1  # equal content is kept once


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "may change at any time"),
        (["--digest", f"model.onnx=sha256:{'0' * 64}"], "has the digest sha256:"),
        (["--digest", "model.onnx=md5:0"], "digest"),
        (["--token", "not-a-reference", "--floating"], "not-a-ref|reference"),
    ],
)
def test_what_cannot_be_had_ends_with_1_and_one_line(
    run: Run, server: FileServer, tmp_path: Path, more: list[str], message: str
) -> None:
    done = run(f"{server.url}/fraud/model.onnx", *more, cache=tmp_path / "cache")
    assert done.returncode == 1
    assert re.search(message, done.stderr), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["--token", "--username", "--password"])
@pytest.mark.parametrize(
    "others", [["https://other.example/x"], ["hf://acme/m@" + "0" * 40, "models:/m/1"], ["oci://a.example/m:1"]]
)
def test_a_secret_goes_to_one_server_only(name: str, others: list[str]) -> None:
    urls = ["https://here.example/x", *others]
    result = CliRunner().invoke(program, ["fetch", *urls, name, "env:SECRET"])
    assert (result.exit_code, f"{name} would go to several servers" in result.output) == (2, True)


@pytest.mark.slow
def test_an_interrupt_ends_it_and_the_next_call_continues(server: FileServer, tmp_path: Path) -> None:
    big = os.urandom(40 << 20)
    server.files["/big/model.onnx"] = big
    digest = f"model.onnx=sha256:{hashlib.sha256(big).hexdigest()}"
    arguments = command(f"{server.url}/big/model.onnx", "--digest", digest, cache=tmp_path / "cache")
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(_request: Request, position: int) -> bool:
        if position >= 20 << 20 and started:
            started.pop().send_signal(signal.SIGINT)
        return True

    process = subprocess.Popen(arguments, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started.append(process)
    server.before_piece = interrupt
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 130), errors
    before, server.before_piece = server.sent, None
    done = subprocess.run(arguments, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert process.returncode == 0 or server.sent - before < len(big)
