"""Plug-in modules: registries and observers."""

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from repoagent.api import Action
from repoagent.api.hooks import ActionEvent, LoadEvent, hookimpl
from repoagent.errors import AlreadyExistsError, InvalidArgumentError
from repoagent.loader.plugins import ObserverThread, PluginManager

GROUP = "repoagent.test_plugins"
EVENT = LoadEvent(model="m", outcome="loaded", seconds=0.5, error=None, report=None)


@pytest.fixture
def plugins() -> PluginManager:
    return PluginManager(group=None)


def backends(mapping: Mapping[str, str]) -> object:
    class Offering:
        @hookimpl
        def register_backends(self) -> Mapping[str, str]:
            return mapping

    return Offering()


def test_a_registry_merges_what_plugins_and_the_program_offer(plugins: PluginManager) -> None:
    plugins.register(backends({"b": "two:B"}), "two")
    plugins.register(backends({"a": "one:A"}), "one")
    assert plugins.registry("backends", {"c": "own:C"}) == {"a": "one:A", "b": "two:B", "c": "own:C"}
    assert plugins.registry("filesystems") == {}
    assert plugins.names == ["one", "two"]


def test_a_name_claimed_by_two_plugins_is_an_error_that_names_both(plugins: PluginManager) -> None:
    plugins.register(backends({"a": "one:A"}), "one")
    plugins.register(backends({"a": "two:A"}), "two")
    with pytest.raises(AlreadyExistsError) as caught:
        plugins.registry("backends")
    assert str(caught.value) in {
        "backends: 'a' is claimed by plug-in 'one' and by plug-in 'two'",
        "backends: 'a' is claimed by plug-in 'two' and by plug-in 'one'",
    }


def test_a_plugin_cannot_replace_what_the_program_has(plugins: PluginManager) -> None:
    plugins.register(backends({"a": "one:A"}), "one")
    with pytest.raises(AlreadyExistsError, match="'a' is claimed by repoagent itself and by plug-in 'one'"):
        plugins.registry("backends", {"a": "own:A"})


def test_an_unknown_registry_or_event_is_an_error(plugins: PluginManager) -> None:
    with pytest.raises(InvalidArgumentError, match="there is no registry 'agents'; there are backends, "):
        plugins.registry("agents")
    with pytest.raises(InvalidArgumentError, match="there is no event 'register_backends'"):
        plugins.notify("register_backends", EVENT)


def test_observers_hear_events_on_another_thread(plugins: PluginManager) -> None:
    heard: list[tuple[str, object, int]] = []

    class Listening:
        @hookimpl
        def load_finished(self, event: LoadEvent) -> None:
            heard.append(("load_finished", event, threading.get_ident()))

        @hookimpl
        def action_finished(self, event: ActionEvent) -> None:
            heard.append(("action_finished", event, threading.get_ident()))

        @hookimpl
        def load_started(self) -> None:
            heard.append(("load_started", None, threading.get_ident()))

    action = ActionEvent("m", "a", 0, Action.LOAD, 0.1, None)
    plugins.register(Listening(), "listening")
    plugins.notify("load_started", EVENT)
    plugins.notify("action_finished", action)
    plugins.notify("load_finished", EVENT)
    plugins.notify("unload_finished", EVENT)
    assert plugins.flush(30)
    plugins.close()
    assert [(name, event) for name, event, _ in heard] == [
        ("load_started", None),
        ("action_finished", action),
        ("load_finished", EVENT),
    ]
    assert threading.get_ident() not in {ident for _, _, ident in heard}


def test_an_observer_that_raises_is_logged_by_name_and_the_others_still_hear(
    plugins: PluginManager, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    class Broken:
        @hookimpl
        def load_finished(self, event: LoadEvent) -> None:
            raise ValueError("no")

    class Fine:
        @hookimpl
        def load_finished(self, event: LoadEvent) -> None:
            heard.append(event.model)

    plugins.register(Fine(), "first")
    plugins.register(Broken(), "broken")
    plugins.register(Fine(), "last")
    plugins.notify("load_finished", EVENT)
    plugins.close()
    assert heard == ["m", "m"]
    assert "observer 'broken' raised" in caplog.text
    assert plugins.dropped == 0


def test_events_are_dropped_and_counted_when_an_observer_is_stuck() -> None:
    started, go_on = threading.Event(), threading.Event()

    class Stuck:
        @hookimpl
        def load_finished(self, event: LoadEvent) -> None:
            started.set()
            assert go_on.wait(60)

    with PluginManager(group=None, queue_limit=1) as plugins:
        plugins.register(Stuck(), "stuck")
        plugins.notify("load_finished", EVENT)
        assert started.wait(60)
        for _ in range(3):
            plugins.notify("load_finished", EVENT)
        assert plugins.dropped == 2
        go_on.set()


def test_registering_twice_is_an_error(plugins: PluginManager) -> None:
    plugins.register(SimpleNamespace(), "one")
    with pytest.raises(AlreadyExistsError, match="plug-in 'one' is registered already"):
        plugins.register(SimpleNamespace(), "one")


def test_a_hook_that_does_not_exist_is_an_error_and_the_plugin_stays_out(plugins: PluginManager) -> None:
    class Future:
        @hookimpl
        def load_dreamt_of(self) -> None: ...

    with pytest.raises(InvalidArgumentError, match=r"plug-in 'future': .*load_dreamt_of.*version 1 of the hooks"):
        plugins.register(Future(), "future")
    assert plugins.names == []


def test_a_hook_with_wrong_parameters_is_an_error_and_the_plugin_stays_out(plugins: PluginManager) -> None:
    class Wrong:
        @hookimpl
        def load_finished(self, happening: object) -> None: ...

    with pytest.raises(InvalidArgumentError, match="plug-in 'wrong'"):
        plugins.register(Wrong(), "wrong")
    assert plugins.names == []


MODULE = """
from repoagent.api.hooks import hookimpl

@hookimpl
def register_backends():
    return {{"{name}": "somewhere:{name}"}}
"""


@pytest.fixture
def three_packages(install_package: Callable[..., Path]) -> None:
    install_package("acme-a", {GROUP: {"a": "acme_a"}}, {"acme_a": MODULE.format(name="a")})
    install_package("acme-b", {GROUP: {"b": "acme_b"}}, {"acme_b": MODULE.format(name="b")})
    install_package("acme-c", {GROUP: {"c": "acme_c"}}, {"acme_c": "raise ImportError('broken')"})


@pytest.mark.usefixtures("three_packages")
def test_installed_plugins_are_found_and_a_broken_one_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    plugins = PluginManager(group=GROUP)
    assert plugins.names == ["a", "b"]
    assert plugins.failed == {"c": "broken"}
    assert "plug-in 'c' (acme_c) is left out" in caplog.text


def test_jobs_run_in_order_on_another_thread() -> None:
    observers = ObserverThread()
    seen: list[tuple[int, int]] = []
    for number in range(5):
        observers.submit(lambda number=number: seen.append((number, threading.get_ident())))  # type: ignore[misc]
    assert observers.flush(30)
    observers.close()
    assert [number for number, _ in seen] == [0, 1, 2, 3, 4]
    assert {ident for _, ident in seen} != {threading.get_ident()}
    assert len({ident for _, ident in seen}) == 1


def test_a_full_queue_drops_and_counts_and_never_waits(caplog: pytest.LogCaptureFixture) -> None:
    observers = ObserverThread(limit=2)
    started, go_on = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        assert go_on.wait(60)

    observers.submit(block)
    assert started.wait(60)
    ran: list[int] = []
    for number in range(5):
        observers.submit(lambda number=number: ran.append(number))  # type: ignore[misc]
    assert observers.dropped == 3
    assert not observers.flush(0)
    go_on.set()
    assert observers.flush(30)
    assert ran == [0, 1]
    assert len([record for record in caplog.records if "too slow" in record.message]) == 1
    observers.close()


def test_a_job_that_raises_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    observers = ObserverThread()
    ran: list[str] = []

    def broken() -> None:
        raise ValueError("no")

    observers.submit(broken)
    observers.submit(lambda: ran.append("next"))
    assert observers.flush(30)
    observers.close()
    assert ran == ["next"]
    assert [record.message for record in caplog.records] == ["an observer raised"]


def test_closing_runs_what_is_queued_and_takes_nothing_more() -> None:
    observers = ObserverThread()
    ran: list[int] = []
    observers.submit(lambda: ran.append(1))
    observers.close()
    observers.submit(lambda: ran.append(2))
    observers.close()
    assert ran == [1]
    assert observers.dropped == 1


def test_closing_does_not_wait_for_ever_for_a_stuck_observer(caplog: pytest.LogCaptureFixture) -> None:
    observers = ObserverThread()
    started, go_on = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        go_on.wait(60)

    observers.submit(block)
    assert started.wait(60)
    observers.submit(lambda: None)
    with caplog.at_level(logging.WARNING):
        observers.close(timeout=0.01)
    assert "1 events are lost" in caplog.text
    go_on.set()


def test_without_jobs_there_is_no_thread() -> None:
    before = set(threading.enumerate())
    observers = ObserverThread()
    assert set(threading.enumerate()) <= before
    observers.close()
    assert set(threading.enumerate()) <= before
