"""What all entries of one load share: where the model is now, how it is configured, and the services of the loader."""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from repoagent.api.report import amount_text
from repoagent.audit import NO_AUDIT, Audit
from repoagent.beneath.kept_digests import KeptDigests
from repoagent.beneath.opening import status_beneath
from repoagent.beneath.unchanged import file_state
from repoagent.config import ModelConfig
from repoagent.config.pbtxt import expand
from repoagent.errors import CancelledError, UnavailableError, UnsupportedError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.attesting import Attesting
from repoagent.loader.auditing import LoadAudit
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.loader.converting.registry import Converters
from repoagent.loader.converting.shared import SharedConversions
from repoagent.loader.downloads import Downloads
from repoagent.loader.reread import Move, reread
from repoagent.storage.cache.cache import Cache, CacheScope, Fetcher
from repoagent.storage.repositories.filesystems import TIMEOUT
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.secrets.keys import KeyProvider, builtin_providers
from repoagent.storage.transfer.snapshot import snapshot
from repoagent.storage.workspaces.workspace import Workspace

logger = logging.getLogger("repoagent.loader")

CONFIG_FILE: Final = "config.pbtxt"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an agent is, or a download (``agent`` is empty then). ``total`` is None where it is not known."""

    model: str
    agent: str
    done: int
    total: int | None
    what: str

    @property
    def summary(self) -> str:
        """For a person: ``agent 'decrypt': 1.2 of 4.1 GB``."""
        who = f"agent '{self.agent}'" if self.agent else "download"
        return f"{who}: {amount_text(self.done, self.total, self.what)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a loader gives each load, and what outlives it. Their owner closes them, after the loader."""

    cache: Cache | None = None
    """For agents and downloads; without one nothing is kept between loads."""
    key_providers: Mapping[str, KeyProvider] = field(default_factory=builtin_providers)
    """URI scheme -> provider; by default those that need no plug-in."""
    filesystems: Mapping[str, str] = field(default_factory=dict)
    """Protocol -> ``"module:attribute"`` of a filesystem class, from plug-ins."""
    converters: Converters = field(default_factory=lambda: Converters({}))
    converter_settings: ConverterSettings = field(default_factory=ConverterSettings)
    limits: Limits = DEFAULT_LIMITS
    """What one load may take."""
    model_config_name: str | None = None
    """``configs/NAME.pbtxt`` is used instead of ``config.pbtxt`` in models that have it."""
    config_variables: Mapping[str, str] = field(default_factory=dict)
    """What ``${NAME}`` stands for in configuration files."""
    timeout: float = TIMEOUT
    """Seconds that a server may be silent when an agent downloads something."""
    audit: Audit = NO_AUDIT
    """Gets every load and unload, and every use of a key."""
    attesting: Attesting | None = None
    """Makes the receipts of loads."""
    shared: SharedConversions = field(default_factory=SharedConversions)
    """Conversions of others."""
    notify: Callable[[str, object], None] = lambda _name, _event: None
    """Notifies observers of a hook's name and its event; returns at once."""
    on_unload_request: Callable[[str, str], None] | None = None
    """Called with a model's name and a reason when one of its agents asks for it to be unloaded, on a thread of its
    own, so it may unload the model there and then. Without it, requests are only logged."""

    def config_text(self, source: ModelSource, name: str) -> str | None:
        """The configuration file ``name`` of a model with its variables replaced; None if there is none. Raises
        ``ConfigError`` for a variable that the operator does not allow."""
        text = source.read_config_text(name, limit=self.limits.config_bytes)
        return None if text is None else expand(text, self.config_variables, source=name)

    def chosen_config(self, source: ModelSource) -> tuple[str, str | None]:
        """The name of the configuration file that counts for a model, and its text."""
        preferred = [f"configs/{self.model_config_name}.pbtxt"] if self.model_config_name else []
        for name in [*preferred, CONFIG_FILE]:
            if (text := self.config_text(source, name)) is not None:
                return name, text
        return CONFIG_FILE, None

    def request_unload(self, model: str, reason: str) -> None:
        """Have ``model`` unloaded soon, and return at once.

        The agent may be in the middle of a call that an unload has to wait for, so the handler gets its own thread.
        """
        handler = self.on_unload_request
        if handler is None:
            logger.warning("model '%s' should be unloaded, but this loader has no unload handler: %s", model, reason)
            return
        logger.info("model '%s' is to be unloaded: %s", model, reason)
        threading.Thread(
            target=_unload, args=(handler, model, reason), name=f"repoagent-unload-{model}", daemon=True
        ).start()


def _unload(handler: Callable[[str, str], None], model: str, reason: str) -> None:
    try:
        handler(model, reason)
    except Exception:
        logger.exception("model '%s' could not be unloaded as its agent asked", model)


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Where the model is, and what its configuration file states there (None: there is no such file)."""

    source: ModelSource
    config_text: str | None


class LoadContext:
    """The state of one load that moves on from entry to entry. Used by one thread at a time."""

    def __init__(
        self,
        place: ModelLocation,
        config: ModelConfig | None,
        workspace: Workspace,
        services: Services,
        *,
        config_file: str = CONFIG_FILE,
        overridden: bool = False,
        cancelled: Callable[[], bool] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        audit: LoadAudit | None = None,
    ) -> None:
        self.name = place.source.name
        self.audit = audit or LoadAudit(services.audit, self.name)
        self.place = place
        self._given = place.source
        self._origin = {"source": place.source.location if place.source.is_remote else f"repository: {self.name}"}
        self.config = config
        self.config_file = config_file
        self.workspace = workspace
        self.services = services
        self.moved = False
        self.digests = KeptDigests(self.holds)
        """Those of files in private directories."""
        self.agents_follow = False
        """Whether another agent comes after the one that works now."""
        self._overridden = overridden
        self._cancelled = cancelled
        self._on_progress = on_progress
        self._cache = services.cache.scope(cancelled=lambda: self.cancelled) if services.cache else None
        self._fetchers: dict[ModelSource, Fetcher] = {}
        self._numbers = itertools.count(1)
        self._download_progress = self.progress_sink("")

    def traced(self, evidence: Mapping[str, str]) -> Mapping[str, str]:
        """``evidence`` with where the model comes from. What names a source itself names it for later agents, too."""
        if "source" in evidence:
            self._origin = {name: evidence[name] for name in ("source", "revision") if name in evidence}
        return {**self._origin, **evidence}

    @property
    def digests_wanted(self) -> bool:
        """Whether another agent, or a receipt, may ask for digests of what the agent that works now writes."""
        attesting = self.services.attesting
        stated = attesting is not None and (attesting.settings.plaintext or not self.confidential)
        return self.agents_follow or stated

    @property
    def cancelled(self) -> bool:
        """Whether the load was given up. Never true after :meth:`settle`: what follows a load has to be done."""
        ask = self._cancelled  # a thread of an agent may look while the load settles
        return ask is not None and ask()

    @property
    def cache(self) -> CacheScope:
        """What this load takes from the cache stays there until the load is closed. Raises ``UnsupportedError`` if the
        load is confidential, or there is no cache."""
        if self.confidential:
            raise UnsupportedError("the load is confidential: what an agent makes of its plaintext may not be cached")
        if self._cache is None:
            raise UnsupportedError("this program has no cache; give it a cache directory")
        return self._cache

    @property
    def in_place(self) -> bool:
        """Whether the model is where its owner put it: no agent moved it, and no copy was made."""
        return self.place.source is self._given

    @property
    def private(self) -> bool:
        """Whether the model is where no one but this program changes anything."""
        return not self.place.source.is_remote and self.holds(Path(self.place.source.root))

    def check_cancelled(self) -> None:
        """Raise ``CancelledError`` if no one waits any more."""
        if self.cancelled:
            raise CancelledError(f"the load of model '{self.name}' was cancelled")

    def settle(self) -> None:
        """The load is over, well or badly; until then a backend's downloads can be cancelled too."""
        self._cancelled = None

    def close(self) -> None:
        """Remove the directories and let go of what came from the cache."""
        with ExitStack() as stack:
            stack.callback(self.workspace.close)
            if self._cache is not None:
                stack.callback(self._cache.close)

    def localize(self, source: ModelSource) -> Path:
        """``source`` as a directory of this machine, downloaded at most once per load."""
        return self.fetcher(source)("") if source.is_remote else Path(source.root)

    def fetcher(self, source: ModelSource) -> Fetcher:
        """What brings the remote ``source`` here, whole or in part; one per source, so nothing comes twice."""
        if source not in self._fetchers:
            self._fetchers[source] = Fetcher(
                source,
                directory=lambda size: self.workspace.directory(f"download-{next(self._numbers)}", size_hint=size),
                cache=None if self.confidential else self._cache,
                progress=lambda done, total: self._download_progress(done, total, ""),
                cancelled=lambda: self.cancelled,
            )
        return self._fetchers[source]

    def downloads(self) -> Downloads:
        """What brings files that an agent asks for here; a confidential load keeps none of them in the cache."""
        limits = self.services.limits
        return Downloads(
            None if self.confidential else self._cache,
            self.services.filesystems,
            limits.download_bytes,
            limits.download_files,
            lambda done, total: self._download_progress(done, total, ""),
            lambda: self.cancelled,
            self.services.timeout,
        )

    def local_source(self, path: Path) -> ModelSource:
        """A directory of this machine as the place of this model."""
        return open_source(self.name, str(path), limits=self.services.limits)

    def move(self, source: ModelSource, *, from_effective: bool = False) -> None:
        """An agent moved the model to ``source``: read its configuration; ``ConfigError`` if it does not parse."""
        text = self.services.config_text(source, self.config_file)
        change = Move(self.place.config_text, text, from_effective, self._overridden)
        self.config = reread(self.config, change, source=self.config_file)
        self.place = ModelLocation(source, text)
        self.moved = True

    @property
    def left_its_config(self) -> bool:
        """Whether an agent moved the model to a place without a configuration file."""
        return self.moved and self.place.config_text is None

    def isolate(self, *, hashed: bool = False, agent: str = "") -> int | None:
        """Go on with a private copy of the model, so that no one outside can change what is judged now.

        Returns how many bytes were copied, None if no copy had to be made: what an earlier agent of this load made is
        private already, and what lies in the cache is read-only. ``hashed``: with SHA-256 of what is copied.

        Raises:
            UnavailableError: the configuration file changed between the start of the load and the copy.
        """
        source = self.place.source
        if not source.is_remote and self.holds(Path(source.root)):
            return None
        path, size = self._private_copy(source, hashed, agent)
        copied = self.local_source(path)
        text = self.services.config_text(copied, self.config_file)
        before, self.place = self.place.config_text, ModelLocation(copied, text)
        self.check_config(before, missing=True)
        return size

    def check_config(self, before: str | None, *, missing: bool = False) -> None:
        """Refuse a configuration file that is another one than ``before``, where the plan of the load came from.

        Where there was none the agents may have brought one, unless it was ``missing`` in the very same files.

        Raises:
            UnavailableError: it changed between the start of the load and now.
        """
        may_come = before is None and not missing
        if self.place.config_text != before and not self._overridden and not may_come:
            raise UnavailableError(
                f"{self.config_file} of model '{self.name}' changed while the model was being loaded; load it again"
            )

    def new_directory(self, label: str) -> Path:
        """A new, empty private directory of this load; its owner removes it when it is not needed any more."""
        return self.workspace.directory(f"{label}-{next(self._numbers)}")

    @property
    def confidential(self) -> bool:
        """Whether the plaintext of this load stays in memory."""
        return self.workspace.confidential

    def holds(self, path: Path) -> bool:
        """Whether ``path`` is where no one but this program changes anything."""
        cache, place = self.services.cache, path.resolve()  # an agent may have put a link there
        return self.workspace.holds(place) or (cache is not None and place.is_relative_to(cache.path.resolve()))

    def vouch(self, root: Path, digests: Mapping[str, str]) -> None:
        """Keep SHA-256 of files that this program wrote beneath ``root``, by path, if no one else can write there."""
        if self.holds(root):
            for path, digest in digests.items():
                state = file_state(status_beneath(root, path, follow=False))
                self.digests.keep_steady(root, path, state, {"sha256": digest})

    def _private_copy(self, source: ModelSource, hashed: bool, agent: str) -> tuple[Path, int]:
        if source.is_remote:
            return self.localize(source), 0
        target = self.workspace.directory(f"snapshot-{next(self._numbers)}")
        keep = self.digests.keep if hashed else None
        progress = self.progress_sink(agent)
        size = snapshot(Path(source.root), target, cancelled=lambda: self.cancelled, hashed=keep, progress=progress)
        self.digests.settle()
        return target, size

    def progress_sink(self, agent: str) -> Callable[[int, int | None, str], None]:
        """A cheap function for ``AgentModel.progress``: at most twenty calls a second get through, and the last."""
        tell = self._on_progress
        if tell is None:
            return _ignore
        return _Throttle(tell, self.name, agent)


def _ignore(done: int, total: int | None, what: str) -> None:
    """No one looks."""


class _Throttle:
    """Passes progress on, but not more often than a person can see."""

    _SECONDS = 0.05

    def __init__(self, tell: Callable[[Progress], None], model: str, agent: str) -> None:
        self._tell = tell
        self._model = model
        self._agent = agent
        self._next = 0.0

    def __call__(self, done: int, total: int | None, what: str) -> None:
        now = time.monotonic()
        if now < self._next and done != total:
            return
        self._next = now + self._SECONDS
        try:
            self._tell(Progress(self._model, self._agent, done, total, what))
        except Exception:
            logger.exception("showing progress failed")
