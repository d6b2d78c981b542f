"""What the Containerfile promises, read from it. ``.ci/image`` builds it and runs the result."""

import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import pytest

TREE: Final = Path(__file__).resolve().parents[2]
Step = tuple[str, str]


@pytest.fixture(scope="module")
def stages() -> list[list[Step]]:
    """The instructions of each stage, in order; those before the first stage are left out."""
    text = (TREE / "deploy/image/Containerfile").read_text()
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    steps = [line.partition(" ")[::2] for line in joined.splitlines() if line.strip()]
    found: list[list[Step]] = []
    for word, rest in ((word, " ".join(rest.split())) for word, rest in steps):
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest))
    return found


def _all(stage: list[Step], word: str) -> list[str]:
    return [rest for found, rest in stage if found == word]


def test_both_stages_begin_with_one_slim_debian_that_a_build_can_replace(stages: list[list[Step]]) -> None:
    assert [_all(stage, "FROM") for stage in stages] == [["${BASE} AS build"], ["${BASE}"]]
    text = (TREE / "deploy/image/Containerfile").read_text()
    assert re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE) == ["debian:bookworm-slim"]


def test_it_runs_as_uid_1000_without_a_shell_and_without_an_entry_point(stages: list[list[Step]]) -> None:
    final = stages[-1]
    assert _all(final, "USER") == ["1000:1000"]
    assert _all(final, "ENTRYPOINT") == []
    assert json.loads(_all(final, "CMD")[0]) == ["tritonserver", "--model-repository=/models"]
    words = [word for word, _ in final]
    assert "RUN" not in words[words.index("USER") :]


def test_what_the_server_writes_goes_to_a_tmpfs(stages: list[list[Step]]) -> None:
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(_all(stages[-1], "ENV"))))
    assert environment["HOME"] == "/tmp"
    assert environment["REPOAGENT_SERVE_CACHE_DIRECTORY"].startswith("/tmp/")
    assert environment["PATH"].split(":")[0] == "/opt/repoagent/bin"
    assert _all(stages[-1], "WORKDIR") == ["/tmp"]


def test_every_package_has_a_digest_or_is_built_from_this_tree(stages: list[list[Step]]) -> None:
    installs = [part for run in _all(stages[0], "RUN") for part in run.split("&&") if re.search(r"pip .*install", part)]
    assert len(installs) == 3
    for install in installs:
        assert ("--require-hashes" in install and "--only-binary :all:" in install) or (
            "--no-index" in install and "--no-deps" in install
        ), install
    assert not any("pip" in run for run in _all(stages[1], "RUN"))


def test_the_final_stage_takes_the_installation_and_nothing_of_the_build(stages: list[list[Step]]) -> None:
    assert _all(stages[-1], "COPY") == ["--from=build /opt/repoagent /opt/repoagent"]
    (run,) = _all(stages[-1], "RUN")
    (packages,) = re.findall(r"apt-get install --yes --no-install-recommends ([^&]+?) &&", run)
    assert packages.split() == ["ca-certificates", "python3"]


def test_the_programs_that_platforms_call_are_console_scripts(stages: list[list[Step]]) -> None:
    scripts = tomllib.loads((TREE / "server_stub/pyproject.toml").read_text())["project"]["scripts"]
    links = dict(re.findall(r"ln -s /opt/repoagent/bin/(\S+) (\S+)", _all(stages[-1], "RUN")[0]))
    assert links == {
        "tritonserver": "/opt/tritonserver/bin/tritonserver",
        "repoagent-sagemaker": "/usr/local/bin/serve",
    }
    assert set(links) <= set(scripts)


def test_what_it_copies_is_there_and_is_sent_to_the_build(stages: list[list[Step]]) -> None:
    lines = (TREE / "deploy/image/Containerfile.dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "nothing is sent that is not named"
    sent = [rule[1:] for rule in rules if rule.startswith("!")]
    assert all(list(TREE.glob(rule)) for rule in sent)
    for copied in _all(stages[0], "COPY"):
        for name in copied.split()[:-1]:
            assert (TREE / name).exists(), name
            assert any(name == rule or fnmatch(name, rule) or rule.startswith(f"{name}/") for rule in sent) or any(
                name.startswith(f"{rule}/") for rule in sent
            ), name


def test_the_locks_of_the_image_are_parts_of_the_whole_one() -> None:
    closure = runpy.run_path(str(TREE / ".ci" / "closure.py"))
    whole = _entries("requirements.lock")
    parts = [_entries(name) for name in closure["LOCKS"] if name.startswith("deploy/")]
    assert [set(part) - set(whole) for part in parts] == [set(), set()]
    assert set().union(*parts) == set(whole)
    assert not any(entry.startswith(("hatchling", "trove")) for entry in _entries("deploy/image/runtime.lock"))


def _entries(name: str) -> list[str]:
    text = (TREE / name).read_text()
    assert "://" not in text
    entries = [entry.strip() for entry in re.split(r"\n(?=[A-Za-z])", text)]
    return [entry for entry in entries if "--hash=sha256:" in entry and not entry.startswith("#")]


# The image, built without a registry and run as a cluster runs it: ``deploy/image/prove.py``.

LACKING = 77


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    os.environ.get("REPOAGENT_TESTS_BUILD_IMAGE") != "1",
    reason="takes ten minutes and downloads Debian's packages: REPOAGENT_TESTS_BUILD_IMAGE=1",
)
def test_the_image_serves_the_encrypted_digits_read_only_as_uid_1000(deploy: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(deploy / "image" / "prove.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode == LACKING:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    print(done.stdout)
    for promise in ("size: ", "the root is read-only, and there is no shell", "as uid 1000", "SageMaker's /ping"):
        assert promise in done.stdout
