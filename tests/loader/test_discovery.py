"""Finding agents in packages and in the directory, and every way in which that goes wrong."""

import errno
import logging
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from repoagent.api import Agent
from repoagent.errors import (
    AgentError,
    AgentNotFoundError,
    AgentUnsupportedError,
    ErrorCode,
    NotFoundError,
    UnavailableError,
)
from repoagent.loader.agent_directory import DEFAULT_DIRECTORY, NATIVE_GROUP
from repoagent.loader.discovery import OFFICIAL_AGENTS, AgentRegistry

GROUP = "repoagent.test_agents"
STAMP = '''
"""A module."""
from repoagent.api import Agent

class Stamp(Agent):
    """Stamps a model.

    In ink.
    """
    api_version = 1
    guard = True

    def load(self, model):
        pass
'''
Install = Callable[..., Path]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "repoagents"
    path.mkdir()
    return path


@pytest.fixture
def registry(directory: Path) -> AgentRegistry:
    return AgentRegistry(directory, group=GROUP)


def put(directory: Path, name: str, source: str = STAMP) -> Path:
    (directory / name).mkdir(exist_ok=True)
    (directory / name / "agent.py").write_text(source)
    return directory / name / "agent.py"


def put_native(directory: Path, name: str) -> Path:
    (directory / name).mkdir(exist_ok=True)
    library = directory / name / f"libtritonrepoagent_{name}.so"
    library.write_bytes(b"\x7fELF")
    return library


def offer(install: Install, source: str = STAMP, target: str = "acme_stamp:Stamp", name: str = "stamp") -> None:
    install("acme-stamp", {GROUP: {name: target}}, {"acme_stamp": source})


def test_listing_shows_packages_directories_and_native_libraries_without_importing(
    install_package: Install, directory: Path, registry: AgentRegistry
) -> None:
    offer(install_package, "raise SystemExit('imported')")
    put(directory, "near", "raise SystemExit('imported')")
    put_native(directory, "old")
    (directory / "not-an-agent").mkdir()
    (directory / "a-file").write_text("")

    near, old, stamp = registry.list()

    assert "acme_stamp" not in sys.modules
    assert (stamp.name, stamp.version, stamp.distribution) == ("stamp", "1.2.3", "acme-stamp")
    assert (stamp.origin, stamp.target, stamp.state, stamp.error) == ("package", "acme_stamp:Stamp", "available", None)
    assert (near.name, near.origin, near.target) == ("near", "directory", str(directory / "near" / "agent.py"))
    assert (near.version, near.distribution, near.state) == (None, None, "available")
    assert (old.name, old.origin, old.state) == ("old", "native", "available")


def test_loading_gives_the_class_once_and_the_list_says_loaded(
    install_package: Install, registry: AgentRegistry
) -> None:
    offer(install_package)
    found = registry.load("stamp")
    assert isinstance(found, type)
    assert issubclass(found, Agent)
    assert registry.load("stamp") is found
    assert registry.find("stamp").state == "loaded"


def test_an_agent_of_the_directory_lives_in_a_private_module_and_may_have_files_beside_it(
    directory: Path, registry: AgentRegistry
) -> None:
    put(directory, "near", "from .helper import NAME\n" + STAMP + "\n    label = NAME\n")
    (directory / "near" / "helper.py").write_text("NAME = 'helped'\n")
    found = registry.load("near")
    assert getattr(found, "label") == "helped"  # noqa: B009
    assert "agent" not in sys.modules
    assert found.__module__.startswith("_repoagent_directory_agent_")


def test_two_directories_do_not_share_their_modules(directory: Path, registry: AgentRegistry) -> None:
    put(directory, "one")
    put(directory, "two")
    assert registry.load("one") is not registry.load("two")


def test_an_agent_can_be_put_into_the_directory_later(directory: Path, registry: AgentRegistry) -> None:
    with pytest.raises(AgentNotFoundError):
        registry.load("late")
    put(directory, "late")
    assert isinstance(registry.load("late"), type)


def test_a_module_attribute_named_agent_decides_which_one_it_is(directory: Path, registry: AgentRegistry) -> None:
    put(directory, "two", STAMP + "\nclass Other(Stamp):\n    pass\n\nagent = Other\n")
    put(directory, "ready", STAMP + "\nagent = Stamp()\n")
    assert getattr(registry.load("two"), "__name__") == "Other"  # noqa: B009
    assert isinstance(registry.load("ready"), Agent)


def test_imported_agent_classes_do_not_count_as_defined(directory: Path, registry: AgentRegistry) -> None:
    put(directory, "near", "from repoagent.api import Agent as Imported\n" + STAMP)
    assert getattr(registry.load("near"), "__name__") == "Stamp"  # noqa: B009


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("x = 1\n", "defines no subclass of repoagent.api.Agent"),
        (
            STAMP + "\nclass Other(Agent):\n    api_version = 1\n",
            "defines more than one agent (Stamp, Other); choose one with a line 'agent = ...'",
        ),
        ("agent = 7\n", "gives an object of type int, which is not a subclass of repoagent.api.Agent"),
        ("class Plain:\n    pass\nagent = Plain\n", "gives Plain, which is not a subclass of repoagent.api.Agent"),
    ],
)
def test_a_file_without_exactly_one_agent_is_refused(
    directory: Path, registry: AgentRegistry, source: str, text: str
) -> None:
    file = put(directory, "odd", source)
    with pytest.raises(AgentError) as caught:
        registry.load("odd")
    assert str(caught.value) == f"agent 'odd': {file} {text}"


def test_an_entry_point_without_a_class_is_told_how_to_name_one(
    install_package: Install, registry: AgentRegistry
) -> None:
    offer(install_package, STAMP, "acme_stamp")
    with pytest.raises(
        AgentError, match=r"gives an object of type module, which is .*; an entry point is 'module:Class'$"
    ):
        registry.load("stamp")


def test_an_entry_point_that_is_not_one_is_refused(install_package: Install, registry: AgentRegistry) -> None:
    offer(install_package, target="not an entry")
    text = (
        "agent 'stamp': the entry point 'not an entry' of package acme-stamp is not valid; an entry point is 'module:"
    )
    with pytest.raises(AgentError, match=re.escape(text)):
        registry.load("stamp")


def test_an_entry_point_that_is_no_agent_is_refused(install_package: Install, registry: AgentRegistry) -> None:
    offer(install_package, "def stamp():\n    pass\n", "acme_stamp:stamp")
    with pytest.raises(AgentError) as caught:
        registry.load("stamp")
    assert str(caught.value) == (
        "agent 'stamp': acme_stamp:stamp gives an object of type function, which is not a subclass of "
        "repoagent.api.Agent"
    )


def test_an_agent_with_nothing_to_call_is_refused(install_package: Install, registry: AgentRegistry) -> None:
    offer(install_package, STAMP.replace("def load(", "def laod("))
    with pytest.raises(
        AgentError, match=r"Stamp lacks the methods that are called, at least one of: .*, load, .*"
    ) as e:
        registry.load("stamp")
    assert str(e.value).endswith("; did you mean 'load' by 'laod'?")


def test_a_refusal_names_what_is_near_to_the_only_method(install_package: Install, registry: AgentRegistry) -> None:
    offer(install_package, STAMP.replace("def load(", "def lod("))
    with pytest.raises(AgentError, match=r"; did you mean 'load' by 'lod'\?$"):
        registry.load("stamp")


def test_only_an_import_that_raises_is_logged_here(
    install_package: Install, registry: AgentRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the load logs the reason in any case; a traceback is what it lacks."""
    offer(install_package, "x = 1\n", "acme_stamp:x")
    with pytest.raises(AgentError):
        registry.load("stamp")
    assert caplog.records == []


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("def load(self): pass", "Stamp.load cannot be called as the loader does: write def load(self, model)"),
        ("def load(self, model, more): pass", "write def load(self, model)"),
        ("def load(self, *, model): pass", "write def load(self, model)"),
        ("def model_action(self, model): pass", "write def model_action(self, model, action)"),
        ("def initialize(self, model): pass", "write def initialize(self)"),
        ("load = 5", "Stamp.load is not a method but an object of type int"),
        ("guard = 'no'\n    def load(self, model): pass", "Stamp.guard is 'no'; it must be True or False"),
    ],
)
def test_a_method_that_cannot_be_called_is_refused_before_a_load(
    install_package: Install, registry: AgentRegistry, method: str, text: str
) -> None:
    offer(install_package, f"from repoagent.api import Agent\nclass Stamp(Agent):\n    api_version = 1\n    {method}\n")
    with pytest.raises(AgentError, match=re.escape(text)):
        registry.load("stamp")


@pytest.mark.parametrize(
    "method",
    [
        "def load(self, *args): pass",
        "def load(self, model, extra=None): pass",
        "@staticmethod\n    def load(model): pass",
        "@classmethod\n    def load(cls, model): pass",
        "@property\n    def guard(self): return True\n    def load(self, model): pass",
    ],
)
def test_a_method_that_can_be_called_in_another_way_is_taken(
    install_package: Install, registry: AgentRegistry, method: str
) -> None:
    offer(install_package, f"from repoagent.api import Agent\nclass Stamp(Agent):\n    api_version = 1\n    {method}\n")
    assert registry.load("stamp")


def test_methods_with_almost_the_right_name_are_reported(
    install_package: Install, registry: AgentRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["load", "unlaod", "load_completed", "finalise", "upload", "reload", "download", "loaded", "_laod"]
    methods = "".join(f"    def {name}(self, model): pass\n" for name in names)
    offer(install_package, f"from repoagent.api import Agent\nclass Stamp(Agent):\n    api_version = 1\n{methods}")
    registry.load("stamp")
    assert caplog.messages == [
        f"acme_stamp:Stamp: Stamp.{wrong} is never called; did you mean '{meant}'?"
        for wrong, meant in [("unlaod", "unload"), ("load_completed", "load_complete"), ("finalise", "finalize")]
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "pass",
            "Stamp states no api_version; this program supports 1: write api_version = 1 in the class",
        ),
        ("api_version = 2", "Stamp was written for api_version 2; this program supports 1"),
        ("api_version = True", "Stamp was written for api_version True; this program supports 1"),
        ("api_version = '1'", "Stamp was written for api_version '1'; this program supports 1"),
    ],
)
def test_another_api_version_is_refused_and_the_supported_ones_are_named(
    install_package: Install, registry: AgentRegistry, line: str, text: str
) -> None:
    offer(install_package, f"from repoagent.api import Agent\nclass Stamp(Agent):\n    {line}\n")
    with pytest.raises(AgentError) as caught:
        registry.load("stamp")
    assert str(caught.value) == f"agent 'stamp': acme_stamp:Stamp: {text}"
    assert registry.find("stamp").error == f"acme_stamp:Stamp: {text}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_at_all\n", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt"),
    ],
)
def test_a_failing_import_is_logged_once_with_its_traceback_and_shown_in_the_list(
    install_package: Install,
    registry: AgentRegistry,
    caplog: pytest.LogCaptureFixture,
    source: str,
    reason: str,
) -> None:
    offer(install_package, source)
    for _ in range(3):
        with pytest.raises(AgentError) as caught:
            registry.load("stamp")
    assert str(caught.value) == (f"agent 'stamp': cannot import acme_stamp:Stamp of package acme-stamp 1.2.3: {reason}")
    records = [record for record in caplog.records if record.name == "repoagent.loader"]
    assert len(records) == 1
    assert records[0].levelno == logging.ERROR
    assert records[0].exc_info is not None
    info = registry.find("stamp")
    assert (info.state, info.error) == ("error", caught.value.reason)


def test_an_agent_that_failed_to_import_can_be_repaired_without_a_restart(
    directory: Path, registry: AgentRegistry
) -> None:
    put(directory, "near", "syntax error here\n")
    with pytest.raises(AgentError, match="SyntaxError"):
        registry.load("near")
    put(directory, "near")
    registry.load("near")
    assert registry.find("near").state == "loaded"
    assert registry.find("near").error is None


def test_a_python_and_a_native_agent_in_one_directory_are_an_error_that_names_both(
    directory: Path, registry: AgentRegistry
) -> None:
    file, library = put(directory, "both"), put_native(directory, "both")
    with pytest.raises(AgentError) as caught:
        registry.load("both")
    assert str(caught.value) == f"agent 'both': is offered more than once, remove all but one: {file}; {library}"
    assert registry.list()[0].state == "error"


def test_a_name_from_a_package_and_the_directory_is_an_error_that_names_both(
    install_package: Install, directory: Path, registry: AgentRegistry
) -> None:
    offer(install_package)
    file = put(directory, "stamp")
    with pytest.raises(AgentError) as caught:
        registry.load("stamp")
    assert str(caught.value) == (
        "agent 'stamp': is offered more than once, remove all but one: "
        f"acme_stamp:Stamp of package acme-stamp 1.2.3; {file}"
    )


def test_a_name_that_the_operator_prefers_is_that_of_the_directory_and_never_that_of_a_package(
    install_package: Install, directory: Path
) -> None:
    """C8: a native `checksum` could not load beside ours."""
    offer(install_package)
    registry = AgentRegistry(directory, preferred=("stamp",), group=GROUP)
    with pytest.raises(AgentNotFoundError):
        registry.load("stamp")
    file = put(directory, "stamp")
    registry.load("stamp")
    assert [(info.target, info.state) for info in registry.list()] == [(str(file), "loaded")]


def test_a_name_from_two_packages_is_an_error_that_names_both(
    install_package: Install, registry: AgentRegistry
) -> None:
    offer(install_package)
    install_package("zeta-stamp", {GROUP: {"stamp": "zeta:Z"}}, {}, version="9")
    with pytest.raises(AgentError, match=r"acme-stamp 1\.2\.3") as caught:
        registry.load("stamp")
    assert "zeta:Z of package zeta-stamp 9" in str(caught.value)


def open_with(monkeypatch: pytest.MonkeyPatch, **points: str) -> None:
    """What opens native agents is ``points``, and nothing that is installed here."""
    own = [EntryPoint(name, target, NATIVE_GROUP) for name, target in points.items()]
    monkeypatch.setattr("repoagent.loader.agent_directory.entry_points", lambda *, group: own)


def test_a_native_agent_without_the_c_part_is_listed_and_the_error_states_how_to_get_it(
    directory: Path, registry: AgentRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_with(monkeypatch)
    library = put_native(directory, "old")
    assert [(info.name, info.origin) for info in registry.list()] == [("old", "native")]
    with pytest.raises(AgentUnsupportedError) as caught:
        registry.load("old")
    assert caught.value.code is ErrorCode.UNSUPPORTED
    assert str(caught.value) == (
        f"agent 'old': {library} is a native agent, which needs the package repoagent-capi and a C compiler to build "
        "it; from a checkout: pip install ./capi"
    )


def test_a_c_part_of_another_program_is_an_error_that_names_the_remedy(
    directory: Path, registry: AgentRegistry, install_package: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_package("acme-c", {}, {"acme_c": "from repoagent.api import NothingOfThatName"})
    open_with(monkeypatch, triton="acme_c:NativeAgent")
    put_native(directory, "old")
    with pytest.raises(
        AgentUnsupportedError, match=r"acme_c:NativeAgent does not fit this program .* from a checkout: pip"
    ):
        registry.load("old")


def test_a_native_agent_is_opened_by_what_the_entry_point_names(
    directory: Path, registry: AgentRegistry, install_package: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
        from repoagent.api import Agent

        class Opened(Agent):
            api_version = 1

            def __init__(self, name, library):
                self.opened = name, library

            def load(self, model):
                pass
    """
    install_package("acme-c", {}, {"acme_c": textwrap.dedent(source)})
    open_with(monkeypatch, triton="acme_c:Opened")
    library = put_native(directory, "old")
    opened: Any = registry.load("old")
    assert opened.opened == ("old", library)


def test_two_packages_that_open_native_agents_are_an_error_that_names_both(
    directory: Path, registry: AgentRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_with(monkeypatch, triton="acme_c:Opened", other="zeta_c:Opened")
    put_native(directory, "old")
    with pytest.raises(AgentError, match="opened by acme_c:Opened and by zeta_c:Opened"):
        registry.load("old")


def test_a_misspelt_name_gets_a_suggestion_and_the_list(
    install_package: Install, directory: Path, registry: AgentRegistry
) -> None:
    offer(install_package)
    put(directory, "near")
    with pytest.raises(AgentNotFoundError) as caught:
        registry.find("stampp")
    assert str(caught.value) == (
        f"agent 'stampp': no such agent in the installed packages or in {directory}; did you mean 'stamp'; "
        "installed agents: near, stamp"
    )


def test_every_agent_of_this_tree_is_known() -> None:
    parts = (Path(__file__).resolve().parents[2] / "agents").glob("*/pyproject.toml")
    agents = [path.parent.name for path in parts if "repoagent.agents" in path.read_text()]
    assert sorted(OFFICIAL_AGENTS) == sorted(agents)


@pytest.mark.parametrize("name", OFFICIAL_AGENTS)
def test_a_known_agent_that_is_missing_says_what_to_install(name: str) -> None:
    with pytest.raises(AgentNotFoundError) as caught:
        AgentRegistry(None, group=GROUP).load(name)
    assert str(caught.value) == (
        f"agent '{name}': no such agent in the installed packages; to get it, from a checkout: "
        f"pip install ./agents/{name}; installed agents: none"
    )


def test_a_misspelt_known_agent_gets_both_hints() -> None:
    with pytest.raises(AgentNotFoundError, match=r"did you mean 'checksum'.*pip install \./agents/checksum"):
        AgentRegistry(None, group=GROUP).load("checksm")


@pytest.mark.parametrize("name", ["../near", "near/../near", "/near", "", "near\x00"])
def test_a_name_is_never_used_as_a_path(directory: Path, registry: AgentRegistry, name: str) -> None:
    put(directory, "near")
    with pytest.raises(AgentNotFoundError):
        registry.load(name)


def test_a_missing_directory_is_an_error_unless_it_is_the_default_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"the repository-agent directory .*nowhere does not exist"):
        AgentRegistry(tmp_path / "nowhere", group=GROUP)
    assert Path("/opt/tritonserver/repoagents") == DEFAULT_DIRECTORY
    assert AgentRegistry(group=GROUP).list() == [] or DEFAULT_DIRECTORY.is_dir()


def test_inspecting_tells_class_text_guard_file_and_the_package(
    install_package: Install, registry: AgentRegistry
) -> None:
    offer(install_package)
    details = registry.inspect("stamp")
    assert details.info.state == "loaded"
    assert (details.class_name, details.api_version, details.guard) == ("Stamp", 1, True)
    assert details.docstring == "Stamps a model.\n\nIn ink."
    assert details.module_file is not None
    assert details.module_file.endswith("acme_stamp.py")
    assert details.metadata == {"Name": "acme-stamp", "Version": "1.2.3", "Summary": "Made for a test"}


def test_inspecting_an_agent_of_the_directory_shows_its_file(directory: Path, registry: AgentRegistry) -> None:
    file = put(directory, "near", STAMP + "\nagent = Stamp()\n")
    details = registry.inspect("near")
    assert details.module_file == str(file)
    assert details.metadata == {}
    assert details.class_name == "Stamp"


def test_a_module_runs_once_when_many_threads_load_its_agent(directory: Path, registry: AgentRegistry) -> None:
    counter = directory / "count"
    put(directory, "near", f"with open({str(counter)!r}, 'a') as count:\n    count.write('x')\n" + STAMP)
    barrier = threading.Barrier(4)
    found: list[object] = []

    def load() -> None:
        barrier.wait()
        found.append(registry.load("near"))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert counter.read_text() == "x"


def test_an_agent_whose_import_takes_long_keeps_no_other_waiting(
    registry: AgentRegistry, directory: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    put(directory, "slow", f"with open({str(gate)!r}) as gate:\n    gate.read()\n" + STAMP)
    put(directory, "quick")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(registry.load, "slow")
        with gate.open("w"):  # blocks until the import reads
            assert registry.load("quick").__name__ == "Stamp"  # type: ignore[union-attr]
            assert [(info.name, info.state) for info in registry.list()] == [("quick", "loaded"), ("slow", "available")]
        assert slow.result(60) is registry.load("slow")


def test_what_may_not_be_looked_into_spoils_only_itself(
    registry: AgentRegistry, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("closed", "open"):
        put(directory, name)
    deny(monkeypatch, directory / "closed" / "agent.py")
    assert [info.name for info in registry.list()] == ["closed", "open"]
    assert registry.load("open").__name__ == "Stamp"  # type: ignore[union-attr]
    with pytest.raises(AgentError) as caught:
        registry.load("closed")
    assert str(caught.value) == f"agent 'closed': {directory / 'closed'} cannot be read: Permission denied"


def test_a_name_that_no_configuration_can_hold_is_passed_over(registry: AgentRegistry, directory: Path) -> None:
    put(directory, "near")
    put(directory, "b\udcff")
    assert [info.name for info in registry.list()] == ["near"]


def test_a_directory_that_cannot_be_read_is_named(
    registry: AgentRegistry, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, directory)
    with pytest.raises(UnavailableError) as caught:
        registry.list()
    assert str(caught.value) == f"the repository-agent directory {directory} cannot be read: Permission denied"


def deny(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let nobody look at ``path``; permissions are nothing to a user who may do everything."""
    for name in ("iterdir", "is_file"):
        original = getattr(Path, name)

        def asked(self: Path, original: Callable[[Path], object] = original) -> object:
            if self == path:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return original(self)

        monkeypatch.setattr(Path, name, asked)
