"""The resolver: the name of an adapter in, a directory that its agents have accepted out."""

import asyncio
import atexit
import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver

if TYPE_CHECKING:
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.loader import Loader
    from repoagent.storage.repositories.sources import Repository

logger = logging.getLogger("vllm.repoagent")

_REFUSED_SECONDS: Final = 10.0
_MOST_REFUSALS: Final = 1000
"""Names that are remembered: any client can name anything."""
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Settings:
    """Where adapters are, and what they have to pass."""

    repository: str
    agent_policy: Path
    most_adapters: int = 64
    confidential_directory: Path | None = None
    allow_swap: bool = False
    audit_log: Path | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "Settings":
        """Read the variables ``LORA_...``.

        Raises:
            ValueError: there is no policy, or a number is not one.
        """
        policy = environment.get("LORA_AGENT_POLICY")
        if not policy:
            raise ValueError(
                "LORA_REPOSITORY needs LORA_AGENT_POLICY: without a policy an adapter names its own agents"
            )
        memory, log = (environment.get(f"LORA_{name}") for name in ("CONFIDENTIAL_DIRECTORY", "AUDIT_LOG"))
        return cls(
            environment["LORA_REPOSITORY"],
            Path(policy),
            int(environment.get("LORA_MOST_ADAPTERS", "64")),
            Path(memory) if memory else None,
            environment.get("LORA_ALLOW_SWAP", "") == "1",
            Path(log) if log else None,
        )


class AgentResolver(LoRAResolver):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Loads each adapter once, through the agents of the policy, and keeps its files until the process ends.

    vLLM reads an adapter again after it has evicted it, and has no hook for the end of one. Who asks for an adapter
    that is being loaded waits for it; other adapters are loaded meanwhile.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._opened: tuple[Repository, Loader] | None = None
        self._resources = ExitStack()
        self._adapters: dict[str, Future[LoadedChain]] = {}
        self._closed = False
        self._refused: dict[str, float] = {}
        atexit.register(self.close)

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """The adapter for vLLM, or None if there is none of that name that the agents accept."""
        from repoagent.errors import RepoAgentError

        loading = await asyncio.to_thread(self._loading, lora_name)
        if loading is None:
            return None
        try:
            # Without a thread: the process has few of them, and any number of requests may wait.
            chain = await asyncio.wrap_future(loading)
        except RepoAgentError:
            return None
        place = str(chain.files.local_path())
        return LoRARequest(lora_name=lora_name, lora_int_id=_number(lora_name), lora_path=place)

    def _loading(self, name: str) -> "Future[LoadedChain] | None":
        """What will be the adapter; it is loaded here if no one else is at it. None if it does not exist."""
        if len(name) > _LONGEST_NAME:  # no directory has it, and a thousand of them would be remembered
            return None
        with self._lock:
            if self._closed or self._refused.get(name, 0.0) > time.monotonic():
                return None
            loading = self._adapters.get(name)
            if loading is not None:
                mine = False
            elif len(self._adapters) < self._settings.most_adapters:
                mine, loading = True, self._adapters.setdefault(name, Future())
                loading.set_running_or_notify_cancel()  # a request that ends early does not end it for the others
            else:  # not remembered: it may be one that is about to be refused which takes the last place
                logger.warning("adapter %r: there are %d already (LORA_MOST_ADAPTERS)", name, len(self._adapters))
                return None
        if mine:
            self._settle(name, loading)
        return loading

    def _settle(self, name: str, loading: "Future[LoadedChain]") -> None:
        """Give ``loading`` its result. A refused adapter has no place."""
        try:
            loading.set_result(self._load(name))
        except BaseException as error:
            logger.warning("adapter %r is refused: %s", name, error)
            with self._lock:
                del self._adapters[name]
                while len(self._refused) >= _MOST_REFUSALS:
                    del self._refused[next(iter(self._refused))]
                self._refused[name] = time.monotonic() + _REFUSED_SECONDS
            loading.set_exception(error)

    def _load(self, name: str) -> "LoadedChain":
        from repoagent.errors import NotFoundError, UnsupportedError

        with self._lock:
            repository, loader = self._opened or self._open()
        source = repository.model(name)
        if source is None:
            raise NotFoundError("there is no such directory in the repository")
        loader.admit_command(name, "vllm")
        chain = loader.load(source, cancelled=lambda: self._closed)
        try:
            if not chain.private:
                raise UnsupportedError("no agent copied it, so that its owner could change it later")
            chain.remove_former_locations()
            chain.attest()
        except BaseException as error:
            chain.fail(error)
            raise
        chain.complete()
        return chain

    def _open(self) -> "tuple[Repository, Loader]":
        from repoagent.audit import NO_AUDIT
        from repoagent.audit.log import AuditLog
        from repoagent.loader.assembly import LoaderOptions, open_loader
        from repoagent.loader.plugins import PluginManager
        from repoagent.storage.repositories.sources import Repository

        settings = self._settings
        with ExitStack() as opened:
            log = AuditLog(settings.audit_log) if settings.audit_log is not None else None
            if log is not None:
                opened.callback(log.close)
            plugins = opened.enter_context(PluginManager())
            options = LoaderOptions(
                agent_policy=settings.agent_policy,
                confidential_directory=settings.confidential_directory,
                allow_swap=settings.allow_swap,
                audit=log or NO_AUDIT,
            )
            repository = Repository.open(settings.repository, filesystems=plugins.registry("filesystems"))
            self._opened = repository, open_loader(options, plugins, opened)
            self._resources = opened.pop_all()
        return self._opened

    def close(self) -> None:
        """Take every adapter through its last actions, and remove the files; loads that go on are given up."""
        with self._lock:
            self._closed = True
            loading = list(self._adapters.values())
        for one in loading:
            if one.exception() is None:  # waits
                one.result().finish()
        with self._lock:
            self._adapters.clear()
            self._resources.close()
            self._opened = None


def _number(name: str) -> int:
    """What vLLM distinguishes adapters by: 63 bits, the same in each process, for which no second name can be found."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 or 1
