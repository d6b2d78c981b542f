"""One agent's view of one load: the implementation of :class:`repoagent.api.AgentModel`."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api.converters import Conversion, ConversionSource, Converter
from repoagent.api.downloads import RemoteFile
from repoagent.api.model import Cache, Parameters
from repoagent.api.report import Action, ArtifactType
from repoagent.beneath.opening import status_beneath
from repoagent.beneath.unchanged import file_state
from repoagent.config import ModelConfig, copy, read_text, write_text
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError, signal_name
from repoagent.limits import Limits
from repoagent.loader.auditing import shown_reference
from repoagent.loader.conversion import LoadConversion
from repoagent.loader.downloads import check_same, is_offline, with_digests
from repoagent.loader.load_context import LoadContext
from repoagent.loader.plan import POLICY, PlannedAgent
from repoagent.loader.report import EntryRecorder
from repoagent.loader.shared_read import SharedRead
from repoagent.programs import run_program
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.secrets.keys import resolve_key

if TYPE_CHECKING:
    from repoagent.web import WebClient


_STDERR_LINES: Final = 10


def run_child(
    argv: Sequence[str],
    *,
    timeout: float | None,
    env: Mapping[str, str] | None,
    cancelled: Callable[[], bool],
) -> "subprocess.CompletedProcess[str]":
    """Run ``argv`` to its end; see :meth:`repoagent.api.AgentModel.run_child`."""
    if isinstance(argv, str) or not argv:
        raise InvalidArgumentError("run_child takes a list, the program and its arguments: ['openssl', 'version']")
    try:
        done = run_program(argv, timeout=timeout, env=env, cancelled=cancelled)
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"'{argv[0]}' was killed after {timeout:g} s") from None
    except OSError as error:
        raise InternalError(f"cannot run '{argv[0]}': {error.strerror or error}") from error
    output, errors = _text(done.stdout), _text(done.stderr)
    if done.returncode != 0:
        raise InternalError(_failure(argv, done.returncode, errors))
    return subprocess.CompletedProcess(done.args, done.returncode, output, errors)


def _text(data: bytes) -> str:
    return data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _failure(argv: Sequence[str], status: int, errors: str) -> str:
    how = f"was ended by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
    last = "\n".join(errors.strip().splitlines()[-_STDERR_LINES:])
    return f"'{argv[0]}' {how}: {last}" if last else f"'{argv[0]}' {how} and wrote nothing to stderr"


_OVER = frozenset({Action.LOAD_FAIL, Action.UNLOAD_COMPLETE})
_MAY_ASK_TO_UNLOAD = frozenset({Action.LOAD, Action.LOAD_COMPLETE})


class EntryModel:
    """What the entry number ``index`` of a chain sees; :class:`repoagent.api.AgentModel` describes its members.

    ``action`` is set by the chain around each call.
    """

    def __init__(self, load: LoadContext, index: int, planned: PlannedAgent, recorder: EntryRecorder) -> None:
        self.state: Any = None
        self.action: Action | None = None
        self.over = False
        """Whether no action follows any more."""
        self.left_its_config = load.left_its_config
        """Whether agents moved the model to where there is no configuration file, so that it keeps the one before."""
        self.judges: SharedRead | None = None
        """What another agent reads for this one, which judges it."""
        self.reads: SharedRead | None = None
        """What this agent reads for another one."""
        self._load = load
        self._agent = planned.name
        self._label = f"{index}-{planned.name}"
        self._parameters = planned.parameters
        self._trust_roots = planned.trust_roots
        self._demanded = planned.origin == POLICY
        self._recorder = recorder
        self._progress = load.progress_sink(planned.name)
        self._source = load.place.source
        self._config = load.config
        self._acquired: Path | None = None
        self._updated = False
        self._read_file = False
        self._wrote_file = False
        self._asked_to_unload = False

    @property
    def name(self) -> str:
        return self._load.name

    @property
    def location(self) -> str:
        return self._source.location

    @property
    def artifact_type(self) -> ArtifactType:
        return self._source.artifact_type

    @property
    def parameters(self) -> Parameters:
        return self._parameters

    @property
    def trust_roots(self) -> Mapping[str, Path]:
        return self._trust_roots

    @property
    def demanded(self) -> bool:
        return self._demanded

    @property
    def limits(self) -> Limits:
        return self._load.services.limits

    @property
    def config(self) -> ModelConfig | None:
        return None if self._config is None else copy(self._config)

    @property
    def cancelled(self) -> bool:
        return self._load.cancelled

    def read_config(self) -> ModelConfig | None:
        self._read_file = True
        text = self._load.services.config_text(self._source, self._load.config_file)
        return None if text is None else read_text(text, source=self._load.config_file)

    def write_config(self, config: ModelConfig) -> None:
        if self._acquired is None:
            raise UnavailableError("write_config writes into the acquired location; call acquire_location first")
        file = self._acquired / self._load.config_file
        file.parent.mkdir(exist_ok=True)
        file.write_text(write_text(config), encoding="utf-8")
        self._wrote_file = True

    def acquire_location(self, *, confidential: bool = False, size_hint: int | None = None) -> Path:
        self._acquired = self._load.workspace.directory(self._label, confidential=confidential, size_hint=size_hint)
        return self._acquired

    def release_location(self) -> None:
        if self._acquired is None:
            raise UnavailableError("No mutable location to be deleted")
        if not self.over and self.action not in _OVER and self._is_used(self._acquired):
            raise UnavailableError("the acquired location is where the model is loaded from; it goes with the model")
        self._load.workspace.remove(self._acquired)
        self._acquired = None

    def update_location(self, location: str | Path, artifact_type: ArtifactType = ArtifactType.FILESYSTEM) -> None:
        if self.action is not Action.LOAD:
            current = "not set" if self.action is None else _triton_name(self.action)
            raise InvalidArgumentError(
                f"location can only be updated during {_triton_name(Action.LOAD)}, current action type is {current}"
            )
        if artifact_type is ArtifactType.FILESYSTEM:
            self._source = self._local_place(Path(location))
        else:
            self._source = self._remote_place(str(location))
        self._updated = True

    def filesystem(self) -> Any:
        return self._source.fs

    def root(self) -> str:
        return self._source.root

    def localize(self) -> Path:
        shared = self.judges or self.reads
        if shared is not None and shared.root is not None and not self._updated:
            return shared.root
        return self._load.localize(self._source)

    def digests(self, files: Mapping[str, Sequence[str]], *, follow: bool = False) -> Mapping[str, Mapping[str, str]]:
        self._load.check_cancelled()
        if self.judges is not None and (shared := self.judges.digests(files)) is not None:
            return shared
        found, read = self._load.digests.digests(
            self.localize(), files, follow=follow, cancelled=lambda: self.cancelled, progress=self.progress
        )
        self._recorder.add(read, 0, None, "")
        return found

    @property
    def digests_wanted(self) -> bool:
        return self._load.digests_wanted

    @property
    def read_digests_wanted(self) -> Sequence[str]:
        """What a guard wants to know of the files that this agent reads."""
        return () if self.reads is None else self.reads.algorithms

    def keep_read_digests(self, path: str, digests: Mapping[str, str]) -> None:
        """Take digests of what was read at :attr:`location`."""
        if self.reads is not None:
            self.reads.keep(path, digests)

    def isolate(self) -> Path:
        """Let this entry see a private copy."""
        if self.judges is not None:
            if self.judges.begun:
                raise InvalidArgumentError("isolate: another agent has read the files already")
            self.judges.give_up()
            self.judges = None
        self._load.isolate(hashed=True, agent=self._agent)
        self._source = self._load.place.source
        return self.localize()

    def keep_digests(self, path: Path, status: os.stat_result, digests: Mapping[str, str]) -> None:
        if self._acquired is None or not path.is_relative_to(self._acquired):
            raise InvalidArgumentError(f"keep_digests: '{path.name}' is not in the acquired location")
        name = path.relative_to(self._acquired).as_posix()
        now = status_beneath(self._acquired, name, follow=False)
        if file_state(now) != file_state(status):
            raise InvalidArgumentError(f"keep_digests: '{path.name}' changed after it was written")
        if now.st_nlink > 1:  # The digest would be that of the other name, too.
            raise InvalidArgumentError(f"keep_digests: '{path.name}' has a second name")
        self._load.digests.keep_steady(self._acquired, name, file_state(status), digests)

    def download(
        self,
        what: str | Sequence[RemoteFile],
        into: Path,
        *,
        include: Sequence[str] = (),
        digests: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> Mapping[str, str]:
        downloads = self._load.downloads()
        files = downloads.listing(what, include, options or {}, allow) if isinstance(what, str) else what
        found, fresh = downloads.download(with_digests(files, digests or {}), into, options or {}, allow)
        if isinstance(what, str):
            check_same(what, files, downloads.listing(what, include, options or {}, allow))
        if self.digests_wanted:
            self._load.vouch(into, {path: found[path].removeprefix("sha256:") for path in fresh})
        self._recorder.add(0, sum((into / path).stat().st_size for path in found), None, "")
        return found

    def list_remote(
        self,
        url: str,
        *,
        include: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> Sequence[RemoteFile]:
        return self._load.downloads().listing(url, include, options or {}, allow)

    def web(self, *, allow: Sequence[str] = ()) -> "WebClient":
        return self._load.downloads().client(allow)

    @property
    def offline(self) -> bool:
        return is_offline()

    def key(self, uri: str) -> bytes:
        providers, audit = self._load.services.key_providers, self._load.audit
        shown = shown_reference(uri, providers)
        try:
            key = resolve_key(uri, providers, lambda: self._load.cancelled)
        except RepoAgentError as error:
            audit.key_failed(self._agent, shown, error)
            raise
        audit.key_used(self._agent, shown)
        return key

    @property
    def cache(self) -> Cache:
        return _LoadCache(self._load)

    def run_child(
        self, argv: Sequence[str], *, timeout: float | None = None, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return run_child(argv, timeout=timeout, env=env, cancelled=lambda: self._load.cancelled)

    @property
    def converters(self) -> tuple[tuple[str, str], ...]:
        return self._load.services.converters.pairs

    def converter(self, source_format: str, target_format: str) -> Converter:
        return self._load.services.converters.get((source_format, target_format))

    def conversion(
        self, source_format: str, target_format: str, source: ConversionSource, options: Mapping[str, str]
    ) -> Conversion:
        pair = (source_format, target_format)
        converters = self._load.services.converters
        return LoadConversion(self._load, converters, pair, source, options, progress=self.progress, report=self.report)

    def request_unload(self, reason: str) -> None:
        if self._asked_to_unload or self.action not in _MAY_ASK_TO_UNLOAD:
            return
        self._asked_to_unload = True
        self._load.services.request_unload(self.name, f"agent '{self._agent}': {reason}")

    def progress(self, done: int, total: int | None = None, what: str = "") -> None:
        self._recorder.note_progress(done, total, what)
        self._progress(done, total, what)

    def report(
        self,
        *,
        bytes_read: int = 0,
        bytes_written: int = 0,
        digests: Mapping[str, str] | None = None,
        note: str = "",
        signer: str = "",
        evidence: Mapping[str, str] | None = None,
    ) -> None:
        traced = None if evidence is None else self._load.traced(evidence)
        self._recorder.add(bytes_read, bytes_written, digests, note, signer, traced)

    def hand_on(self) -> None:
        """After a LOAD that went well: where this entry moved the model to is where it is from now on."""
        self._load.digests.settle()
        if self._updated:
            self._load.move(self._source, from_effective=self._wrote_file and not self._read_file)
            self._config, self.left_its_config = self._load.config, self._load.left_its_config

    def relocate(self, former: ModelSource) -> None:
        """The files of ``former`` lie where the load is now."""
        if self._source is former:
            self._source = self._load.place.source

    def _is_used(self, directory: Path) -> bool:
        places = (self._source, self._load.place.source)
        return any(not place.is_remote and Path(place.root).is_relative_to(directory) for place in places)

    def _local_place(self, path: Path) -> ModelSource:
        if not path.is_dir():
            raise InvalidArgumentError(
                f"update_location needs a directory, not '{path.name}'; for a URL pass ArtifactType.REMOTE_FILESYSTEM"
            )
        return self._load.local_source(path.absolute())

    def _remote_place(self, url: str) -> ModelSource:
        here = self._source
        place = open_source(
            self.name, url, filesystems=self._load.services.filesystems, limits=self._load.services.limits
        )
        if here.is_remote and place.location.startswith(f"{here.location}/"):
            # Below where the model already is: that filesystem has the credentials of the repository.
            place = ModelSource(self.name, fs=here.fs, root=place.root, location=place.location)
        if not place.fs.isdir(place.root):
            raise InvalidArgumentError(f"update_location: no such directory: {place.location}")
        return place


class _LoadCache:
    """The cache as a load may use it; it looks at every call whether the load has become confidential."""

    def __init__(self, load: LoadContext) -> None:
        self._load = load

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        return self._load.cache.get_or_build(key, build)


def _triton_name(action: Action) -> str:
    return f"TRITONREPOAGENT_ACTION_{action.name}"
