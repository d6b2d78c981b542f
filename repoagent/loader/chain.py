"""The chain: who is called when. The whole of docs/reference/agents-api.md's order of calls is in this file."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from repoagent.api.attesting import Attestation
from repoagent.api.hooks import LoadEvent
from repoagent.api.report import Action, LoadReport
from repoagent.config import ModelConfig, check
from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError
from repoagent.loader.agent_pool import AgentPool, reason_of
from repoagent.loader.attesting import LoadReceipt, tree_digests
from repoagent.loader.chain_entry import ChainEntry, Lifecycle, State, open_entry
from repoagent.loader.load_context import LoadContext
from repoagent.loader.plan import PlannedAgent
from repoagent.loader.report import ReportBuilder
from repoagent.loader.shared_read import SharedRead
from repoagent.storage.files.files import DirectoryFiles, MemoryFiles, ModelFiles, SourceFiles
from repoagent.storage.repositories.sources import MemorySource, ModelSource

logger = logging.getLogger("repoagent.loader")


class LoadedChain:
    """A model that went through its agents, for as long as it lives.

    :meth:`~repoagent.loader.loader.Loader.load` returns one. Its user then calls exactly one of :meth:`complete` (the
    model is ready) and :meth:`fail` (it could not be loaded), and after ``complete``, once each, :meth:`unload` and
    :meth:`unload_complete`. To call one a second time does nothing; to call one out of order raises
    ``InvalidTransitionError``. None of them raises because an agent did: that is in the log and the report.
    Safe to use from any thread; the agents are called on the caller's.
    """

    def __init__(
        self, load: LoadContext, pool: AgentPool, report: ReportBuilder, on_end: "Callable[[LoadedChain], object]"
    ) -> None:
        self._load = load
        self._pool = pool
        self._report = report
        self._on_end = on_end
        self._lock = threading.RLock()
        self._life = Lifecycle(f"model '{load.name}'", State.LOAD)
        self._entries: list[ChainEntry] = []
        self.files: ModelFiles = _open_files(load)
        """The model's files where the agents left them, valid until :meth:`unload_complete`."""
        self.settled = False
        """Whether the forward pass is over, so that it is someone's turn to end what was begun."""
        self._plaintext_may_go = False
        self._unload_started = 0.0
        self._receipt = LoadReceipt(load)

    @property
    def name(self) -> str:
        return self._load.name

    @property
    def attestation(self) -> Attestation | None:
        """The receipt of the load, where one was made."""
        return self._receipt.made

    @property
    def config(self) -> ModelConfig | None:
        """The configuration to load by, read again where the agents left the model; None if there is none.

        The chain's own object: copy it before a change.
        """
        return self._load.config

    @property
    def location(self) -> str:
        """Where the agents left the model: a directory or a URL."""
        return self._load.place.source.location

    @property
    def source(self) -> ModelSource:
        """Where the agents left the model."""
        return self._load.place.source

    @property
    def in_place(self) -> bool:
        """Whether that is where its owner put it, and the agents took it to be."""
        return self._load.in_place

    @property
    def private(self) -> bool:
        """Whether it is in a directory of this program's own, whose files do not change any more."""
        return self._load.private

    def digests(self) -> dict[str, str]:
        """SHA-256 of every file at :attr:`location`, which is on this machine; read are those not known already. Raises
        ``OSError`` or a ``RepoAgentError`` if one cannot be read."""
        return tree_digests(self._load)

    @property
    def report(self) -> LoadReport:
        return self._report.build()

    @property
    def version_dirs(self) -> list[int]:
        """The numbers of the version directories at :attr:`location`, ascending. Lists them now."""
        return self._load.place.source.versions()

    def run(self, plan: Sequence[PlannedAgent]) -> None:
        """The forward pass: every agent of ``plan`` in order, up to the first failure, after which :meth:`fail` is due.
        The loader calls it once."""
        with self._lock:
            attesting = self._load.services.attesting
            if attesting is not None:
                self._report.note(policy=dict(attesting.rule(self.name)))
            try:
                self._run(plan, share=True)
            except CancelledError:
                raise
            except RepoAgentError as refusal:
                if not self._receipt.lacks_source:
                    raise
                # No copy was made, and it was refused before all of it was read: a receipt states what was refused.
                self._begin_again(refusal)
                self._run(plan, share=False)
            self._load.check_cancelled()
            self._settle()

    def attest(self, versions: Sequence[int] = ()) -> None:
        """Have the audit log hold that the model is about to serve; call it when nothing else can fail any more.

        ``versions`` are those that will.

        Raises:
            AuditError: it must not serve, as that cannot be recorded; call :meth:`fail`.
        """
        with self._lock:
            self._report.note(**self._load.traced({}), **self._load.audit.facts, versions=list(versions))
            self._make_receipt(passed=True)
            self._load.audit.attest(self.report, versions)

    def complete(self) -> None:
        """The model is ready: ``LOAD_COMPLETE``, last entry first."""
        with self._lock:
            if not self._advance(State.LOAD_COMPLETE):
                return
            self._load.settle()
            self._walk(Action.LOAD_COMPLETE, reversed(self._entries))
            self._remove_plaintext()
            self._report.end("loaded")
            self._load.audit.loaded(self.report)
            self._tell_end("loaded")

    def fail(self, error: BaseException) -> None:
        """The model could not be loaded because of ``error``: ``LOAD_FAIL``, last entry first, then the end."""
        with self._lock:
            if not self._advance(State.LOAD_FAIL):
                return
            self._load.settle()
            self._walk(Action.LOAD_FAIL, reversed(self._entries))
            self._report.end("failed", reason_of(error))
            self._report.note(**self._load.traced({}), **self._load.audit.facts)
            if not isinstance(error, CancelledError):
                self._make_receipt(passed=False)
            self._end()
            self._load.audit.failed(self.report, cancelled=isinstance(error, CancelledError))
            self._tell_end("failed")

    def unload(self) -> None:
        """The model is about to go: ``UNLOAD``, in order."""
        with self._lock:
            if not self._advance(State.UNLOAD):
                return
            self._unload_started = time.monotonic()
            self._report.end("unloading")
            self._load.audit.leaving()
            self._walk(Action.UNLOAD, self._entries)

    def unload_complete(self) -> None:
        """The model is gone: ``UNLOAD_COMPLETE``, last entry first, then the end."""
        with self._lock:
            if not self._advance(State.UNLOAD_COMPLETE):
                return
            self._walk(Action.UNLOAD_COMPLETE, reversed(self._entries))
            self._report.end("unloaded")
            self._end()
            self._load.audit.gone()
            seconds = time.monotonic() - self._unload_started
            self._load.services.notify("unload_finished", LoadEvent(self.name, "unloaded", seconds, None, self.report))

    def files_no_longer_needed(self) -> None:
        """The backend has read all it needs: confidential plaintext goes now, or right after ``LOAD_COMPLETE``."""
        with self._lock:
            self._plaintext_may_go = True
            if self._life.state is not State.LOAD:
                self._remove_plaintext()

    def remove_former_locations(self) -> None:
        """Remove the private directories that the agents have moved the model out of, such as a copy of ciphertext.

        For who keeps the model's files for long; no agent is given an earlier location after its ``LOAD``.
        """
        with self._lock:
            self._load.workspace.remove_others(Path(self.files.local_path()))

    def relocate(self, place: Path) -> None:
        """The files that were where the agents left them are in ``place`` now, which is what the agents see."""
        with self._lock:
            former = self._load.place.source
            self._load.place = replace(self._load.place, source=self._load.local_source(place))
            for entry in self._entries:
                entry.relocate(former)
            self.files = _open_files(self._load)

    def unlink_files(self) -> None:
        """Remove the private directories while another process may have files in them open or mapped."""
        with self._lock:
            self._load.workspace.unlink()

    def new_directory(self, label: str) -> Path:
        """A private directory, called as the model is and alone in its parent, which goes with the chain."""
        with self._lock:
            return self._load.new_directory(label)

    def finish(self) -> None:
        """Whatever is still to be called, at shutdown. Every promise to the agents is kept here too."""
        with self._lock:
            if self._life.state is State.LOAD:
                self.fail(UnavailableError("the server is shutting down"))
            if self._life.state is State.LOAD_COMPLETE:
                self.unload()
            if self._life.state is State.UNLOAD:
                self.unload_complete()

    def _run(self, plan: Sequence[PlannedAgent], *, share: bool) -> None:
        index = 0
        while index < len(plan):
            self._load.check_cancelled()
            index += (share and self._enter_both(index, plan)) or self._enter(index, plan)
        self._receipt.look_at_source()  # where there were no agents

    def _begin_again(self, refusal: RepoAgentError) -> None:
        """The agents hear that this load is over, and what they made goes; then they are called for a copy."""
        self._walk(Action.LOAD_FAIL, reversed(self._entries))
        for entry in self._entries:
            entry.close()
        self._entries.clear()
        self._load.workspace.remove_others(Path(self.source.root))
        try:
            self._receipt.look_at_source()
        except CancelledError:
            raise
        except (OSError, RepoAgentError) as error:
            raise refusal from error
        self._report.drop_entries()

    def _make_receipt(self, *, passed: bool) -> None:
        if self._receipt.make(self.report, passed=passed) and self.attestation is not None:
            self._report.note(attestation=f"sha256:{self.attestation.digest}")

    def _enter(self, index: int, plan: Sequence[PlannedAgent]) -> int:
        planned = plan[index]
        self._receipt.look_at_source()
        try:
            self._load_entry(index, plan)
        except RepoAgentError as error:
            if planned.required or isinstance(error, CancelledError):
                raise
            logger.warning("model '%s' is loaded all the same, as its policy only warns: %s", self.name, error)
        return 1

    def _enter_both(self, index: int, plan: Sequence[PlannedAgent]) -> int:
        """Load a guard and the entry that reads the files for it; returns how many entries are loaded now."""
        if not self._may_share(plan[index : index + 2]):
            return 0
        readers: list[ChainEntry] = []
        try:
            shared = SharedRead(
                Path(self.source.root),
                lambda: readers.append(self._load_entry(index + 1, plan, reads=shared)),
                self._receipt.look_at_source,
                self._receipt.algorithms,
            )
        except (OSError, RepoAgentError):
            return 0  # The snapshot raises the reason.
        config = self._load.place.config_text
        with closing(shared):
            try:
                self._load_entry(index, plan, judges=shared)
            finally:
                self._receipt.source_was_read(shared)
            if shared.given_up:
                return 1
            shared.finish(plan[index].name)
        if self._receipt.lacks_source:
            raise UnavailableError(f"agent '{plan[index + 1].name}' did not state what it read of each file")
        readers[0].hand_on()
        if not self._load.private:
            raise InternalError(f"agent '{plan[index + 1].name}' read the model, and made no location of its own of it")
        self._load.check_config(config)
        return 2

    def _may_share(self, pair: Sequence[PlannedAgent]) -> bool:
        """Whether the first of ``pair`` could judge what the second one reads, and there would be a copy otherwise."""
        if len(pair) < 2 or not all(planned.required for planned in pair):
            return False
        if self.source.is_remote or self._load.private:
            return False
        try:
            guard, reader = (self._pool.find(planned.name) for planned in pair)
        except RepoAgentError:
            return False
        return guard.guard and guard.judges_digests and reader.reads_once

    def _load_entry(
        self,
        index: int,
        plan: Sequence[PlannedAgent],
        *,
        judges: SharedRead | None = None,
        reads: SharedRead | None = None,
    ) -> ChainEntry:
        planned = plan[index]
        attesting = self._load.services.attesting
        code = attesting.code(planned.name) if attesting is not None else None
        recorder = self._report.entry(planned.name, planned.origin, code)
        shared = judges is not None or reads is not None
        self._load.agents_follow = index + 1 < len(plan)
        entry = open_entry(index, planned, self._pool, self._load, recorder, shared=shared)
        entry.share(judges=judges, reads=reads)
        self._entries.append(entry)
        begun = False
        try:
            entry.initialize()
            begun = True
            entry.load()
            if reads is None:
                entry.hand_on()
        except RepoAgentError:
            if begun and not planned.required:
                # The load goes on, but for this entry it is over: it hears LOAD_FAIL, and nothing more.
                entry.tell(Action.LOAD_FAIL)
            raise
        finally:
            if self._load.confidential and self._receipt.confidential_from is None:
                self._receipt.confidential_from = index
        return entry

    def _settle(self) -> None:
        """After the last agent: the configuration is final, and the files are where they are."""
        self._receipt.look_at_result()
        if self._load.moved and self._load.config is not None:
            check(self._load.config, model_name=self.name, source=self._load.config_file)
        self.files = _open_files(self._load)
        self.settled = True

    def _advance(self, to: State) -> bool:
        """Go on to ``to``; False if it is there already."""
        if self._life.state is to:
            return False
        self._life.advance(to)
        return True

    @staticmethod
    def _walk(action: Action, entries: Iterable[ChainEntry]) -> None:
        for entry in entries:
            if entry.may(action):
                entry.tell(action)

    def _remove_plaintext(self) -> None:
        if not self._plaintext_may_go:
            return
        try:
            self._load.workspace.remove_confidential()
        except RepoAgentError:
            logger.exception("plaintext of model '%s' could not be removed", self.name)

    def _end(self) -> None:
        """``model_finalize`` in order, then everything private goes; nothing of this stops the rest."""
        with ExitStack() as stack:
            stack.callback(self._on_end, self)
            stack.callback(self._close_load)
            for entry in reversed(self._entries):
                stack.callback(entry.close)

    def _close_load(self) -> None:
        try:
            self._load.close()
        except RepoAgentError:
            logger.exception("the workspace of model '%s' could not be removed; the next start will", self.name)

    def _tell_end(self, outcome: str) -> None:
        report = self.report
        level = logging.DEBUG if report.error else logging.INFO  # the caller logs why the load failed
        logger.log(level, "%s", report.summary)
        for line in report.lines():
            logger.log(level, "%s: %s", self.name, line)
        event = LoadEvent(self.name, outcome, report.seconds, report.error, report)
        self._load.services.notify("load_finished", event)


def _open_files(load: LoadContext) -> ModelFiles:
    """The files at the last location of ``load``. What is not here comes here when a backend wants a path."""
    source = load.place.source
    if isinstance(source, MemorySource):
        return MemoryFiles(source.files, lambda: load.workspace.directory("files"), fleeting=load.confidential)
    if source.is_remote:
        return SourceFiles(source, load.fetcher(source))
    root = Path(source.root)
    return DirectoryFiles(root, fleeting=load.confidential and load.workspace.holds(root))
