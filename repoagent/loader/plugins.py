"""Plug-in modules: finding them, the registries they fill, the observers they are."""

import importlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

import pluggy

from repoagent.api import hooks
from repoagent.errors import AlreadyExistsError, InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.storage.secrets.keys import KeyProvider, builtin_providers

_Job = Callable[[], None]


class ObserverThread:
    """Runs jobs one after another on a thread of its own, which starts with the first job.

    At most ``limit`` jobs wait; more are dropped and counted, so a slow observer costs events and never a load. A job
    that raises is logged and forgotten.
    """

    def __init__(self, limit: int = 1024) -> None:
        self._queue: queue.Queue[_Job | None] = queue.Queue(limit)
        self._idle = threading.Condition()
        self._pending = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def dropped(self) -> int:
        """How many jobs found the queue full."""
        with self._idle:
            return self._dropped

    def submit(self, job: _Job) -> None:
        """Queue ``job``; never waits. After :meth:`close` it is dropped."""
        with self._idle:
            if self._closed:
                self._dropped += 1
                return
            try:
                self._queue.put_nowait(job)
            except queue.Full:
                self._count_drop()
                return
            self._pending += 1
            self._ensure_thread()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything queued so far has run; False if ``timeout`` seconds passed first."""
        with self._idle:
            return self._idle.wait_for(lambda: self._pending == 0, timeout)

    def close(self, timeout: float | None = 5.0) -> None:
        """Take no more jobs, let the queued ones run for at most ``timeout`` seconds, and end the thread."""
        with self._idle:
            if self._closed:
                return
            self._closed = True
            thread = self._thread
        if not self.flush(timeout):
            logger.warning("observers did not finish in %s s; %d events are lost", timeout, self._abandon())
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout)

    def _ensure_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="repoagent-observers", daemon=True)
            self._thread.start()

    def _count_drop(self) -> None:
        if self._dropped == 0:
            logger.warning("observers are too slow: the queue is full, events are dropped (and counted)")
        self._dropped += 1

    def _abandon(self) -> int:
        lost = 0
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return lost
            lost += 1
            self._done()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            try:
                job()
            except Exception:
                logger.exception("an observer raised")
            finally:
                self._done()

    def _done(self) -> None:
        with self._idle:
            self._pending -= 1
            self._idle.notify_all()


PLUGINS_GROUP: Final = "repoagent.plugins"
BUILT_IN: Final = "repoagent itself"
_KINDS: Final = ("backends", "key_providers", "converters", "filesystems", "commands", "attestors")
_OBSERVERS: Final = ("load_started", "action_finished", "load_finished", "unload_finished")


class PluginManager:
    """The plug-ins of one program.

    Modules of the entry-point ``group`` are imported at construction. One that cannot be imported, or that implements a
    hook which does not exist, is logged, kept in :attr:`failed`, and left out: a broken plug-in must not keep the
    program from starting. ``group=None`` looks for none. Close it at the end; it is a context manager too.
    """

    def __init__(self, *, group: str | None = PLUGINS_GROUP, queue_limit: int = 1024) -> None:
        self._manager = pluggy.PluginManager(hooks.PROJECT)
        self._manager.add_hookspecs(hooks)
        self._observers = ObserverThread(queue_limit)
        self._failed: dict[str, str] = {}
        for point in entry_points(group=group) if group is not None else ():
            self._discover(point)

    def __enter__(self) -> "PluginManager":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def failed(self) -> Mapping[str, str]:
        """Name of a plug-in that could not be used -> why."""
        return dict(self._failed)

    @property
    def names(self) -> list[str]:
        """The plug-ins in use, sorted."""
        return sorted(name for name, _ in self._manager.list_name_plugin())

    @property
    def dropped(self) -> int:
        """How many events were lost because observers were too slow."""
        return self._observers.dropped

    def register(self, plugin: object, name: str) -> None:
        """Add a module or object with ``hookimpl`` functions by hand.

        Raises:
            AlreadyExistsError: the name or the object is registered.
            InvalidArgumentError: it implements a hook that does not exist, or with parameters that it does not have.
        """
        try:
            self._manager.register(plugin, name)
        except ValueError as error:
            raise AlreadyExistsError(f"plug-in '{name}' is registered already") from error
        except pluggy.PluginValidationError as error:
            self._forget(plugin)
            raise InvalidArgumentError(f"plug-in '{name}': {error}") from error
        self._refuse_unknown_hooks(plugin, name)

    def registry(self, kind: str, built_in: Mapping[Any, Any] | None = None) -> dict[Any, Any]:
        """All that plug-ins registered of one ``kind``, on top of ``built_in``.

        ``kind`` is "backends", "key_providers", "converters", "filesystems", "commands" or "attestors"; what keys and
        values are is stated at the hook ``register_KIND`` in :mod:`repoagent.api.hooks`.

        Raises:
            AlreadyExistsError: two claim one name; the message has both.
        """
        if kind not in _KINDS:
            raise InvalidArgumentError(f"there is no registry '{kind}'; there are {', '.join(_KINDS)}")
        merged: dict[Any, Any] = dict(built_in or {})
        owners = dict.fromkeys(merged, BUILT_IN)
        hook: pluggy.HookCaller = getattr(self._manager.hook, f"register_{kind}")
        for implementation in hook.get_hookimpls():
            owner = f"plug-in '{implementation.plugin_name}'"
            offered: Any = implementation.function()
            for name, target in offered.items():
                if name in merged:
                    raise AlreadyExistsError(f"{kind}: '{name}' is claimed by {owners[name]} and by {owner}")
                merged[name] = target
                owners[name] = owner
        return merged

    def notify(self, event_name: str, event: object) -> None:
        """Notify every observer of ``event_name``, soon and on another thread. Never waits, never raises."""
        for implementation in reversed(self._observer(event_name).get_hookimpls()):
            self._observers.submit(partial(_observe, implementation, event))

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the observers have heard all; False if ``timeout`` seconds passed first."""
        return self._observers.flush(timeout)

    def close(self) -> None:
        """Let the observers hear what is queued, then stop their thread."""
        self._observers.close()

    def _observer(self, event_name: str) -> pluggy.HookCaller:
        if event_name not in _OBSERVERS:
            raise InvalidArgumentError(f"there is no event '{event_name}'; there are {', '.join(_OBSERVERS)}")
        caller: pluggy.HookCaller = getattr(self._manager.hook, event_name)
        return caller

    def _discover(self, point: EntryPoint) -> None:
        try:
            self.register(point.load(), point.name)
        except Exception as error:
            self._failed[point.name] = str(error) or type(error).__name__
            logger.exception("plug-in '%s' (%s) is left out", point.name, point.value)

    def _refuse_unknown_hooks(self, plugin: object, name: str) -> None:
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            self._forget(plugin)
            raise InvalidArgumentError(
                f"plug-in '{name}': {error}; this program knows version {hooks.HOOKS_VERSION} of the hooks"
            ) from error

    def _forget(self, plugin: object) -> None:
        # Older versions of pluggy validate only after they have taken the plug-in in.
        if self._manager.get_name(plugin) is not None:
            self._manager.unregister(plugin)


def _observe(implementation: pluggy.HookImpl, event: object) -> None:
    call: Callable[..., object] = implementation.function
    try:
        call(*([event] if implementation.argnames else []))
    except Exception:
        logger.exception("observer '%s' raised; the load that it observed goes on", implementation.plugin_name)


def key_providers(
    plugins: PluginManager, *, allow_commands: bool = False, limits: Limits = DEFAULT_LIMITS
) -> dict[str, KeyProvider]:
    """URI scheme -> provider. The code of a plug-in's provider is imported when the first key is asked of it.

    Args:
        plugins: Where the providers are registered.
        limits: How large a key may be.
        allow_commands: Whether ``exec:`` references run programs.

    Raises:
        AlreadyExistsError: two claim one scheme.
    """
    targets: dict[str, Any] = plugins.registry(
        "key_providers", built_in=builtin_providers(commands=allow_commands, largest=limits.key_file_bytes)
    )
    return {
        scheme: target if callable(target) else _imported_on_first_use(target) for scheme, target in targets.items()
    }


def _imported_on_first_use(target: str) -> KeyProvider:
    module, _, attribute = target.partition(":")

    def provider(uri: str) -> bytes:
        key: bytes = getattr(importlib.import_module(module), attribute)(uri)
        return key

    return provider


logger = logging.getLogger("repoagent.loader")
