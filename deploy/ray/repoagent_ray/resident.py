"""A model with a place in a replica: loaded by a request, kept while requests run, unloaded by its agents."""

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from repoagent.audit import Actor, acting_as
from repoagent.errors import UnsupportedError
from repoagent.serving.core import ServingCore

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_EVICTING: Final = Actor("on-demand")


class Resident:
    """One model of ``core``. Belongs to one event loop.

    Ray's multiplexing keeps it, and calls ``__del__`` when its place is needed for another model.
    """

    def __init__(
        self,
        core: ServingCore,
        name: str,
        pool: Executor,
        *,
        drain_seconds: float,
        alone: bool,
        on_left: Callable[["Resident"], None],
    ) -> None:
        """``alone``: there is only one replica, so that sequences reach it whole. ``pool``: where loads wait."""
        self.name = name
        self._core = core
        self._pool = pool
        self._drain_seconds = drain_seconds
        self._alone = alone
        self._on_left = on_left
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self._unloading = asyncio.Lock()
        self._loading: asyncio.Future[None] | None = None
        self._refusal = ""
        """Why it is refused, if it is. An error that is kept would keep each request that it is raised for."""
        self.left = False
        """It has no place any more: another one has to be asked for."""
        # Ray looks for the attribute. The method of that name would also be called by the garbage collector, late.
        setattr(self, "__del__", self.leave)  # noqa: B010

    @asynccontextmanager
    async def use(self) -> AsyncIterator[bool]:
        """For a request: the model is loaded, and stays so until the end of the block. False if it has left.

        Raises:
            RepoAgentError: it cannot be loaded.
        """
        async with self._kept() as kept:
            if kept:
                await self._ensure_loaded()
            yield kept

    async def reload(self) -> "LoadReport | None":
        """Load it, again if its files have changed; the report, or None if it has left.

        Raises:
            RepoAgentError: it cannot be loaded.
        """
        async with self._kept() as kept:
            if not kept:
                return None
            self._refusal = ""
            report = await self._call(lambda: self._core.load(self.name))
            await self._call(self._check)
            return report

    async def unload(self, *, unload_dependents: bool = False) -> None:
        """Unload it through its agents once the requests that use it have ended; the next one loads it again.

        Raises:
            RepoAgentError: it cannot be unloaded.
        """
        async with self._unloading:
            await self._unload(unload_dependents)

    async def leave(self) -> None:
        """Give its place up, as :meth:`unload`. Never raises: another model waits for the place."""
        async with self._unloading:
            if self.left:
                return
            self.left = True
            try:
                with acting_as(_EVICTING):
                    await self._unload(False)
            except Exception as error:
                logger.error("model '%s' was to make room and could not be unloaded: %s", self.name, error)
        self._on_left(self)

    @asynccontextmanager
    async def _kept(self) -> AsyncIterator[bool]:
        """Keep it from being unloaded; what is being unloaded already is waited for. False if it has left."""
        async with self._unloading:
            self._users += 1
            self._unused.clear()
        try:
            yield not self.left
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def _unload(self, unload_dependents: bool) -> None:
        try:
            await asyncio.wait_for(self._unused.wait(), self._drain_seconds)
        except TimeoutError:
            logger.warning("model '%s' is unloaded although %d requests use it", self.name, self._users)
        self._refusal = ""
        await self._call(lambda: self._core.unload(self.name, unload_dependents=unload_dependents))

    async def _ensure_loaded(self) -> None:
        if self._refusal:
            raise UnsupportedError(self._refusal)
        if self._core.model_loaded(self.name):
            return
        if self._loading is None:  # one thread waits for it, however many requests do
            self._loading = asyncio.ensure_future(self._call(self._load))
            self._loading.add_done_callback(self._loaded)
        await asyncio.shield(self._loading)

    def _loaded(self, loading: "asyncio.Future[None]") -> None:
        self._loading = None
        loading.exception()  # there may be no request left that wants it

    def _load(self) -> None:
        """Runs on the pool. A lease loads as a request does: what failed is tried again when its files change."""
        with self._core.lease(self.name):
            self._check()

    def _check(self) -> None:
        """Refuse a model whose requests belong together, where they may reach different replicas.

        Raises:
            UnsupportedError: so it is.
        """
        if self._alone or "sequence_batching" not in self._core.model_config(self.name):
            return
        self._refusal = (
            f"model '{self.name}' keeps sequences (sequence_batching), whose requests Ray Serve may send to different "
            "replicas; serve it with one replica (max_replicas), or without Ray"
        )
        raise UnsupportedError(self._refusal)

    async def _call(self, work: Callable[[], _T]) -> _T:
        """``work`` on the pool, with who acts."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, work)
