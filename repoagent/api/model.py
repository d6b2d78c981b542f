"""What an agent sees of the model it is called for. These are protocols; the loader implements them."""

import os
import subprocess
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from repoagent.api.converters import Conversion, ConversionSource, Converter
from repoagent.api.downloads import RemoteFile
from repoagent.api.report import ArtifactType
from repoagent.errors import InvalidArgumentError, NotFoundError
from repoagent.public_text import unusable_key_file

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.limits import Limits
    from repoagent.web import WebClient

_Key = TypeVar("_Key")


class _MissingParameterError(InvalidArgumentError, KeyError):
    """What a model's owner forgot, and what a mapping raises."""

    __str__ = Exception.__str__  # A KeyError would put quotation marks around it.


class Parameters(Mapping[str, str]):
    """The parameters of one agent entry: a mapping that keeps the order of the file, and repeats.

    As a mapping it has each key once, with the last value given, as in Triton. :meth:`items` has every
    pair, :meth:`get_all` every value of a key.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._pairs = tuple(pairs)
        self._last = dict(self._pairs)

    def __getitem__(self, key: str) -> str:
        """The last value of ``key``.

        Raises:
            InvalidArgumentError: the entry has no such parameter. It is a ``KeyError`` as well.
        """
        try:
            return self._last[key]
        except KeyError:
            raise _MissingParameterError(f"parameter '{key}' is missing") from None

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[str]:
        return iter(self._last)

    def items(self) -> "ItemsView[str, str]":
        """Every pair in order, repeats too."""
        return _Pairs(self, self._pairs)

    def get_all(self, key: str) -> list[str]:
        """Every value given for ``key``, in order; none if it is not there."""
        return [value for name, value in self._pairs if name == key]

    def check(self, known: Collection[str], *, once: Collection[str] = ()) -> None:
        """Refuse parameters that an agent does not have.

        Args:
            known: Every key that it has.
            once: Those of them that may be given only once.

        Raises:
            InvalidArgumentError: a key is unknown (the message suggests the closest known one) or given too often.
        """
        for key in self:
            if key not in known:
                close = get_close_matches(key, known, 1)
                hint = f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"
                raise InvalidArgumentError(f"unknown parameter '{key}'{hint}")
            count = len(self.get_all(key))
            if key in once and count > 1:
                raise InvalidArgumentError(f"parameter '{key}' is given {count} times, expected once")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Parameters):
            return self._pairs == other._pairs
        return super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self._pairs)

    def __repr__(self) -> str:
        # Values may hold what should not be logged: show the keys only.
        return f"Parameters({list(self)})"


class _Pairs(ItemsView[str, str]):
    def __init__(self, mapping: Parameters, pairs: tuple[tuple[str, str], ...]) -> None:
        super().__init__(mapping)
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._pairs)

    def __contains__(self, item: object) -> bool:
        return item in self._pairs

    def __repr__(self) -> str:
        return f"Parameters({[key for key, _ in self._pairs]}).items()"


class Cache(Protocol):
    """Results that outlive a load, under content-addressed names, shared by every process on the machine."""

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        """Return the read-only directory kept under ``key``; make it first if it is not there.

        ``build`` gets an empty directory to fill. One process builds while others wait; a build that raises leaves
        nothing behind. Make ``key`` from everything that the result depends on (digests of the input, options,
        versions), never from a path. Raises :class:`~repoagent.errors.UnsupportedError` in a confidential load, whose
        plaintext may not be kept.
        """


def read_key(key: Callable[[str], bytes], uri: str, read: Callable[[bytes], _Key]) -> _Key:
    """What ``read`` makes of the secret that ``key``, such as :meth:`AgentModel.key`, finds for ``uri``.

    A file that holds no such key is refused like one that is not there: who writes a reference is not to learn which
    files there are.

    Raises:
        NotFoundError: ``read`` raised ``InvalidArgumentError`` or ``ValueError`` for a file.
        InvalidArgumentError: it did for another reference.
    """
    secret = key(uri)
    try:
        return read(secret)
    except (InvalidArgumentError, ValueError) as error:
        if uri.startswith("file:"):
            reason = error if isinstance(error, InvalidArgumentError) else type(error).__name__
            raise NotFoundError(unusable_key_file(uri, reason)) from None
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"the secret of a key reference {uri.partition(':')[0]}: has another form") from None


def read_token(key: Callable[[str], bytes], uri: str) -> str:
    """The secret of ``uri`` as what a header can hold: one line of visible ASCII, blanks around it left out.

    What refuses a header repeats what is in it, so no other text may get there. Raises as :func:`read_key`.
    """
    return read_key(key, uri, _one_line)


def _one_line(secret: bytes) -> str:
    token = secret.decode("ascii").strip()
    if not token.isprintable():
        raise InvalidArgumentError("the secret of a token is not one line of visible characters")
    return token


class AgentModel(Protocol):
    """One agent's view of one load of one model. It lives from ``model_initialize`` to ``model_finalize``."""

    state: Any
    """Yours, None at first: what ``load`` learns and ``unload`` needs."""

    @property
    def name(self) -> str:
        """The name of the model."""

    @property
    def location(self) -> str:
        """The repository of the model as the agents before this one left it: a directory or an fsspec URL.

        It holds ``config.pbtxt`` (perhaps) and one numbered directory per version. After :meth:`update_location` it is
        the new location. The plaintext of a confidential load may be gone once the model serves.
        """

    @property
    def artifact_type(self) -> ArtifactType:
        """Whether ``location`` is a directory of this machine or remote."""

    @property
    def parameters(self) -> Parameters:
        """What the model's configuration (or the operator's policy) gave this entry of the chain."""

    @property
    def trust_roots(self) -> Mapping[str, Path]:
        """Files (certificates, public keys) that the operator's policy lets models like this one trust, by name.

        A model can name one of them; it can never add one.
        """

    @property
    def demanded(self) -> bool:
        """Whether the operator's policy put this entry here; false for what the model's own configuration names.

        A demanded agent is a promise to the operator: one that has nothing to do for the model should refuse it.
        """

    @property
    def config(self) -> "ModelConfig | None":
        """The configuration of this load, a private copy: that at ``location``, or None if there never was one.

        Where agents left no file there it is the one before, with which the model will be served.
        """

    @property
    def limits(self) -> "Limits":
        """The operator's limits for one load."""

    @property
    def cancelled(self) -> bool:
        """True once the load is cancelled. Long work should check it now and then, and raise.

        Never true after ``LOAD``: the remaining calls must be completed, so :meth:`run_child` works there too.
        """

    def read_config(self) -> "ModelConfig | None":
        """Read ``config.pbtxt`` at ``location`` again; None if there is no such file.

        Raises:
            ConfigError: the file does not parse; the message has line and column.
        """

    def write_config(self, config: "ModelConfig") -> None:
        """Write ``config`` as the ``config.pbtxt`` of the acquired location.

        Raises:
            UnavailableError: ``acquire_location`` was not called; ``location`` itself is never written to.
        """

    def acquire_location(self, *, confidential: bool = False, size_hint: int | None = None) -> Path:
        """Return an empty private directory of this load and agent, the same one when asked again.

        The server removes it after the model is unloaded. With ``confidential`` it is on a memory filesystem, as is
        every later location of this load; ``size_hint`` (bytes) is then reserved.

        Raises:
            UnavailableError: less than ``size_hint`` is free, or memory may be swapped to disk and the operator has not
                allowed that.
            UnsupportedError: no memory filesystem on this machine.
        """

    def release_location(self) -> None:
        """Remove the acquired directory now.

        Raises:
            UnavailableError: there is none, or the model is being loaded from it.
        """

    def update_location(self, location: str | Path, artifact_type: ArtifactType = ArtifactType.FILESYSTEM) -> None:
        """Let the agents that follow, and the server, use ``location`` instead. Only during ``LOAD``.

        When this agent has accepted the model, the configuration file is read at the new location; name and agents of
        the load do not change. Without a file there, the configuration stays as it is.

        Raises:
            InvalidArgumentError: called during another action, or ``location`` does not exist.
        """

    def filesystem(self) -> Any:
        """The fsspec filesystem of ``location``. Paths for it are relative to :meth:`root`."""

    def root(self) -> str:
        """``location`` as a path of :meth:`filesystem`, without protocol."""

    def localize(self) -> Path:
        """``location`` as a directory of this machine: itself if it is one, else a private copy, downloaded once.

        Files arrive in parallel and are checked for size. Nothing may be written into it.
        """

    def digests(self, files: Mapping[str, Sequence[str]], *, follow: bool = False) -> Mapping[str, Mapping[str, str]]:
        """The digests of files at :attr:`location`: path -> algorithm -> hexadecimal digits.

        Each is computed once per load, for as long as the file lies in a private directory and is still the same. Only
        what is read now counts in ``bytes_read`` of the report. Use it instead of
        :func:`~repoagent.api.digest_files`, whose errors it has; it cancels, and reports progress.
        """

    @property
    def digests_wanted(self) -> bool:
        """Whether some may ask for digests of what this agent writes: another agent follows, or a receipt.

        Ask after :meth:`acquire_location`: receipts may not state digests of what is confidential.
        """

    @property
    def read_digests_wanted(self) -> Sequence[str]:
        """The algorithms of which ``keep_read_digests`` is wanted; empty but for an agent that ``reads_once``."""

    def keep_read_digests(self, path: str, digests: Mapping[str, str]) -> None:
        """State the digests of the bytes that you took for those of the file ``path`` below :attr:`location`.

        They have to be of the very bytes that you worked on: the file may change, and a guard judges by them.
        """

    def isolate(self) -> Path:
        """The files of the model where no one else can change them: a private copy from now on, if they were not yet.

        :attr:`location` is there, too. Look at everything again that you looked at before. For guards that set
        ``judges_digests``; others are given the copy in the first place.
        """

    def keep_digests(self, path: Path, status: os.stat_result, digests: Mapping[str, str]) -> None:
        """State the digests of a file in the acquired location, which you computed while you wrote it.

        Later agents are given them by :meth:`digests` without a look at the content, until the file changes.

        Args:
            path: The file.
            status: ``os.fstat`` of the descriptor that wrote it, after the last byte. Nothing may write to it later.
            digests: Algorithm -> hexadecimal digits.

        Raises:
            InvalidArgumentError: the file is not in the acquired location, has another status now, or a second name.
        """

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
        """Put remote files below the directory ``into``; path -> ``sha256:HEX`` of each.

        Files download in parallel, in ranges where the server supports them, and only once per machine: the cache keeps
        them, and a download continues after a kill. Below a directory that ``cache.get_or_build`` gave they are
        read-only links, elsewhere private copies. A confidential load keeps nothing. Hosts that are not public are
        refused unless the operator named them (``REPOAGENT_FETCH_HOSTS``), and redirects obey the same rule.

        Args:
            what: A URL of a file or a directory (s3, gs, az, as, http, https, or of a plug-in), or a list of files.
            into: An existing directory.
            include: Shell patterns of paths; without any, all files.
            digests: Path -> digest that the file must have. A path that is not there is an error.
            options: Keyword arguments of the store's fsspec filesystem, such as credentials.
            allow: Hosts (``host:port``) that need not be public. Never take them from a model.

        Raises:
            InvalidArgumentError: a digest is wrong, a host is refused, or a limit is exceeded.
            UnavailableError: the source does not answer or changed meanwhile, the disk is full, or the server is
                offline (``REPOAGENT_OFFLINE``) and the cache does not have a file.
            UnsafePathError: a name leaves ``into``.
            CancelledError: the load was cancelled.
        """

    def list_remote(
        self,
        url: str,
        *,
        include: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
    ) -> Sequence[RemoteFile]:
        """The files at ``url``, with sizes and tags, for :meth:`download`. Arguments and errors are the same."""

    def web(self, *, allow: Sequence[str] = ()) -> "WebClient":
        """A client for small requests, such as those of a hub's API, under the rules of :meth:`download`."""

    @property
    def offline(self) -> bool:
        """Whether the operator has turned downloads off (``REPOAGENT_OFFLINE``)."""

    def key(self, uri: str) -> bytes:
        """The secret that ``uri`` refers to: ``env:NAME``, ``file:/path``, ``exec:command``, or a plug-in's scheme.

        Raises:
            InvalidArgumentError: not a reference; a key itself must never be a parameter.
            NotFoundError: there is no such secret. The message has the reference, never the secret.
            CancelledError: the program of an ``exec:`` reference was killed because the load was cancelled.
        """

    @property
    def cache(self) -> Cache:
        """Results that outlive the load, shared by all processes of the machine."""

    def run_child(
        self, argv: Sequence[str], *, timeout: float | None = None, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program and capture its text output; it is killed when the load is cancelled.

        Args:
            argv: Program and arguments; no shell is involved.
            timeout: Seconds after which it is killed and ``UnavailableError`` raised.
            env: Variables that replace the inherited ones of the same name. Variables of this program (``REPOAGENT_*``)
                and those that hold keys are not inherited.

        Raises:
            InternalError: it ended with a status other than 0; the message has the last lines of its stderr.
            CancelledError: the load was cancelled.
        """

    @property
    def converters(self) -> tuple[tuple[str, str], ...]:
        """``(from, to)`` of every converter, sorted; see :meth:`conversion`."""

    def converter(self, source_format: str, target_format: str) -> Converter:
        """The converter between two formats, for its options and its version; :meth:`conversion` runs it.

        Raises:
            InvalidArgumentError: there is none; the message lists the ones that exist.
            InternalError: its code cannot be imported.
        """

    def conversion(
        self, source_format: str, target_format: str, source: ConversionSource, options: Mapping[str, str]
    ) -> Conversion:
        """Plan the conversion of one version of the model; ``write`` of the returned object runs it.

        A conversion runs in a separate process, which ends with the load and whose crash refuses the model. Its result
        is kept in :attr:`cache` under the contents that went into it, for every model and process of this machine. In a
        confidential load it is in memory only, as with ``acquire_location``, and is not kept.

        Args:
            source_format: Such as ``"onnx"``.
            target_format: Such as ``"tensorrt"``.
            source: What to convert. Its result is kept only if the source lies in a private copy (``guard``).
            options: The converter's, by name; others have their defaults.

        Raises:
            InvalidArgumentError: there is no such converter or option.
            RepoAgentError: the converter cannot convert this.
        """

    def request_unload(self, reason: str) -> None:
        """Ask the server to unload this model soon, for example because its licence expired.

        Returns at once and may be called from any thread, including your own, from the end of ``load`` until
        ``unload``. Later calls and repeated ones have no effect. It is a request: the server logs it with ``reason``,
        and a program that embeds the loader may decide otherwise. During ``load``, raise instead.
        """

    def progress(self, done: int, total: int | None = None, what: str = "") -> None:
        """Report the progress of long work. Cheap: call it as often as you like.

        Without ``what`` the numbers are bytes, shown with their rate; else ``what`` names the steps: "files".
        """

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
        """Add to this entry's line of the load report: byte counts are added up, everything else is collected.

        ``evidence`` is one record for an auditor, see :class:`~repoagent.api.ActionReport`. Without a ``source`` of its
        own it gets that of the agents before, such as ``fetch``, or the place in the repository.
        """
