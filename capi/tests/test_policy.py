"""What the operator demands holds for native agents too: allow-lists, pins, snapshots."""

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import AgentError, RepoAgentError
from repoagent.loader.agent_directory import PINNED_CODE
from repoagent.loader.loader import Loader
from repoagent.loader.policy import PolicyPlanner, read_policy

MakeLoader = Callable[[str], Loader]


@pytest.fixture
def with_policy(native: Any) -> Iterator[MakeLoader]:
    loaders: list[Loader] = []

    def make(text: str) -> Loader:
        path = native.root / "policy.toml"
        path.write_text(text)
        planner = PolicyPlanner(read_policy(path), native.registry)
        loaders.append(Loader(native.registry, native.workspace, planner=planner))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()
    PINNED_CODE.clear()


def digest_of(directory: Path) -> str:
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  ./{file.relative_to(directory)}\n"
        for file in sorted(directory.rglob("*"))
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def test_an_agent_that_the_policy_does_not_allow_is_not_opened(
    native: Any, compile_c: Any, with_policy: MakeLoader
) -> None:
    compile_c.agent("recording_agent.c", "a", native.agents)
    loader = with_policy('[[rule]]\nmodels = ["*"]\nagents = [{ name = "checksum" }]\n')
    with pytest.raises(AgentError, match="the policy allows only: checksum"):
        loader.load(native.model("a"))
    assert native.events() == []


def test_a_demanded_native_agent_judges_a_private_copy(native: Any, compile_c: Any, with_policy: MakeLoader) -> None:
    compile_c.agent("curious_agent.c", "curious", native.agents)
    loader = with_policy('[[rule]]\nmodels = ["*"]\n[[rule.before]]\nagent = "curious"\n')
    source = native.model()
    chain = loader.load(source)
    location = next(line for line in native.answers() if line.startswith("location: ")).removeprefix("location: 0 ")
    assert location == chain.location != source.location
    assert chain.private
    chain.fail(RuntimeError())
    assert native.left_over() == []


def pinned(native: Any, with_policy: MakeLoader) -> Loader:
    digest = digest_of(native.agents / "a")
    return with_policy(f'[[rule]]\nmodels = ["*"]\nagents = [{{ name = "a", record_sha256 = "{digest}" }}]\n')


def test_a_pinned_native_agent_runs_from_a_copy_of_what_was_pinned(
    native: Any, compile_c: Any, with_policy: MakeLoader
) -> None:
    library = compile_c.agent("recording_agent.c", "a", native.agents)
    chain = pinned(native, with_policy).load(native.model("a"))
    mapped = Path("/proc/self/maps").read_text()
    assert str(library) not in mapped
    copied = re.search(r"(/\S+/repoagent-native-\w+)/libtritonrepoagent_a\.so", mapped)
    assert copied is not None
    chain.fail(RuntimeError())
    assert not Path(copied[1]).exists()


def test_a_pinned_native_agent_that_was_changed_since_is_refused(
    native: Any, compile_c: Any, with_policy: MakeLoader
) -> None:
    library = compile_c.agent("recording_agent.c", "a", native.agents)
    loader = pinned(native, with_policy)
    library.write_bytes(library.read_bytes() + b"\0")
    with pytest.raises(RepoAgentError, match="its code has the digest"):
        loader.load(native.model("a"))
    assert native.events() == []


def test_a_file_that_is_swapped_after_the_policy_looked_is_not_opened(
    native: Any, compile_c: Any, with_policy: MakeLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = compile_c.agent("recording_agent.c", "a", native.agents)
    loader = pinned(native, with_policy)
    load = native.registry.load

    def swap_and_load(name: str) -> Any:  # between the look of the policy and the opening
        library.write_bytes(library.read_bytes() + b"\0")
        return load(name)

    monkeypatch.setattr(loader._pool, "_load", swap_and_load)
    with pytest.raises(AgentError, match="is not the file that the policy allows"):
        loader.load(native.model("a"))
    assert native.events() == []
