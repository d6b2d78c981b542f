"""Adapters by name: accepted, refused, bounded, and gone at the end."""

import asyncio
import shutil
import subprocess
import sys
import threading
import tomllib
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PLAIN, left_in

ROOT = Path(__file__).resolve().parents[1]
Resolve = Callable[[str], Any]


@pytest.fixture
def resolve(
    registry: dict[str, Any], folder: Path, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Resolve:
    """Ask the registered resolver for an adapter of the repository in which ``llama`` is."""
    settings = {
        "REPOSITORY": folder.parent,
        "AGENT_POLICY": tmp_path / "policy.toml",
        "CONFIDENTIAL_DIRECTORY": memory,
        "ALLOW_SWAP": 1,
        "MOST_ADAPTERS": 1,
        "AUDIT_LOG": tmp_path / "audit",
    }
    for name, value in settings.items():
        monkeypatch.setenv(f"LORA_{name}", str(value))
    monkeypatch.setenv("REPOAGENT_WORKSPACE", str(tmp_path / "work"))
    monkeypatch.setenv("REPOAGENT_CACHE", str(tmp_path / "cache"))
    import repoagent_vllm

    repoagent_vllm.register()
    return lambda name: asyncio.run(registry["repoagent"].resolve_lora("base", name))


def test_an_adapter_that_the_agents_accept_is_there_until_the_end(
    resolve: Resolve, registry: dict[str, Any], memory: Path, tmp_path: Path
) -> None:
    found = resolve("llama")
    place = Path(found.lora_path)
    assert (found.lora_name, place.name, found.lora_int_id > 0) == ("llama", "llama", True)
    assert {name: (place / name).read_bytes() for name in PLAIN} == PLAIN
    assert resolve("llama") == found
    registry["repoagent"].close()
    assert left_in(memory) == []
    results = [line for line in (tmp_path / "audit").read_text().splitlines() if '"unloaded"' in line]
    assert len(results) == 1


def test_an_adapter_that_was_changed_does_not_exist(resolve: Resolve, folder: Path, memory: Path) -> None:
    (folder / "README.md").write_text("Another adapter.")
    assert resolve("llama") is None
    assert [name for name in left_in(memory) if not name.endswith("/.alive")] == []


@pytest.mark.parametrize("name", ["nosuch", "../llama", "..", "", "a/b", "x\0y", "/etc"])
def test_a_name_of_no_adapter_does_not_exist(resolve: Resolve, name: str) -> None:
    assert resolve(name) is None


def test_a_long_name_is_not_remembered(resolve: Resolve, registry: dict[str, Any]) -> None:
    assert resolve("x" * 1_000_000) is None
    assert registry["repoagent"]._refused == {}


def test_a_refusal_is_kept_for_a_while(resolve: Resolve, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = folder.rename(folder.parent.parent / "away")
    assert resolve("llama") is None
    moved.rename(folder)
    assert resolve("llama") is None
    monkeypatch.setattr(sys.modules["repoagent_vllm.resolver"].time, "monotonic", lambda: float("inf"))
    assert resolve("llama") is not None


def test_one_more_than_the_limit_is_refused(resolve: Resolve, folder: Path) -> None:
    shutil.copytree(folder, folder.parent / "other")
    assert resolve("llama") is not None
    assert resolve("other") is None
    assert resolve("llama") is not None


def test_an_adapter_that_no_agent_copied_is_refused(resolve: Resolve, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("")
    assert resolve("llama") is None


def test_a_rule_about_backends_has_to_name_vllm(resolve: Resolve, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(f"{policy.read_text()}backends = []\n")
    assert resolve("llama") is None


@pytest.mark.usefixtures("registry")
def test_without_a_repository_nothing_is_registered_and_without_a_policy_it_fails(
    registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import repoagent_vllm

    repoagent_vllm.register()
    assert registry == {}
    monkeypatch.setenv("LORA_REPOSITORY", "/nowhere")
    with pytest.raises(ValueError, match="LORA_AGENT_POLICY"):
        repoagent_vllm.register()


def test_no_other_name_gives_the_number_of_an_adapter(resolve: Resolve) -> None:
    """vLLM serves what it has under that number: CRC-32, as it was, is the same for these two."""
    assert zlib.crc32(b"plumless") == zlib.crc32(b"buckeroo")
    resolver = sys.modules["repoagent_vllm.resolver"]
    numbers = [resolver._number(name) for name in ("plumless", "buckeroo")]
    assert numbers[0] != numbers[1]
    assert all(0 < number < 2**63 for number in numbers)
    assert resolve("llama").lora_int_id == resolver._number("llama")


def test_registering_opens_nothing(registry: dict[str, Any]) -> None:
    """vLLM does it in each of its processes."""
    code = "import sys, repoagent_vllm; repoagent_vllm.register(); sys.exit('repoagent' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, env={"PYTHONPATH": str(ROOT)})


def test_the_entry_point_is_the_function() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["vllm.general_plugins"] == {"repoagent_lora": "repoagent_vllm:register"}


def test_an_adapter_that_takes_long_holds_up_no_other_and_is_loaded_once(
    resolve: Resolve, registry: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, folder.parent / "slow")
    resolver = registry["repoagent"]
    resolver._settings = replace(resolver._settings, most_adapters=2)
    load, started, go_on, loads = resolver._load, threading.Event(), threading.Event(), []

    def slow(name: str) -> Any:
        loads.append(name)
        if name == "slow":
            started.set()
            assert go_on.wait(60)
        return load(name)

    monkeypatch.setattr(resolver, "_load", slow)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(resolve, "slow")
        assert started.wait(60)
        second = pool.submit(resolve, "slow")
        assert resolve("llama") is not None
        go_on.set()
        assert first.result() is not None
        assert first.result() == second.result()
    assert loads == ["slow", "llama"]


def test_a_refused_adapter_gives_its_place_back(resolve: Resolve, folder: Path) -> None:
    assert resolve("nosuch") is None
    assert resolve("llama") is not None


def test_nothing_is_loaded_after_the_end(resolve: Resolve, registry: dict[str, Any], memory: Path) -> None:
    registry["repoagent"].close()
    assert resolve("llama") is None
    assert left_in(memory) == []


def test_requests_that_wait_for_an_adapter_take_no_thread(
    resolve: Resolve, registry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads are those of vLLM, too. One that gives up does not end the load of the others."""
    resolver, go = registry["repoagent"], threading.Event()
    load = resolver._load
    monkeypatch.setattr(resolver, "_load", lambda name: load(name) if go.wait(60) else None)

    async def many() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        waiting = [asyncio.create_task(resolver.resolve_lora("base", "llama")) for _ in range(8)]
        for _ in range(8):
            await asyncio.wait_for(asyncio.to_thread(threading.get_ident), 30)
        waiting[-1].cancel()
        await asyncio.wait(waiting[-1:])
        go.set()
        return await asyncio.gather(*waiting[:-1])

    assert {found.lora_name for found in asyncio.run(many())} == {"llama"}
