"""Converters turn a model of one format into another: their protocol, and what an agent sees of them.

A package offers converters through the hook :func:`~repoagent.api.hooks.register_converters`. An agent reaches them
through :meth:`~repoagent.api.AgentModel.conversion`; the loader runs them, caches their results and
records the provenance.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from repoagent.beneath.opening import open_beneath

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_HEAD_BYTES: Final = 4096
_TAIL_BYTES: Final = 1 << 16

Progressing = Callable[[int, int | None, str], None]
"""``(done, total, what)``, as :meth:`~repoagent.api.AgentModel.progress`; ``total`` is None where it is not known."""


@dataclass(frozen=True, slots=True)
class ConverterOption:
    """An option of a converter: its default (None: the converter decides), and what it is for."""

    default: str | None
    help: str


@dataclass(frozen=True, slots=True)
class ConversionSource:
    """One version of a model, to be converted.

    Its result is kept only if nothing outside of this program can change it: an agent that converts declares ``guard``.
    """

    directory: Path
    """The directory of the version. Nothing may be written into it."""
    name: str
    """What to convert: a file beneath ``directory``, or ``"."`` for all of it."""
    label: str
    """What messages call it: ``1/model.onnx``."""
    config: "ModelConfig | None" = None
    """The configuration of the model, a private copy."""


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What a conversion reads, what it makes, and everything that the result depends on.

    The result is kept under a digest of the contents of ``inputs``, of ``settings``, ``tools`` and ``target``, and of
    the converter's own version. What is in none of these must not change the result.
    """

    inputs: tuple[str, ...]
    """The files that are read, relative to the source's directory."""
    output: str
    """The name of the file in the result that stands for the model: ``model.plan``."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What ``build`` gets: options and configuration, resolved to values that JSON has."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Name -> version of the libraries that compute the result."""
    target: str = "any"
    """The machines that the result is for."""
    replaces: tuple[str, ...] = ()
    """Those files of the source that are of no use beside the result."""


def _no_progress(done: int, total: int | None, what: str) -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ConversionJob:
    """What ``build`` gets. A later version may have further fields."""

    source: Path
    """The directory of the version. Nothing may be written into it."""
    target: Path
    """An empty directory for the result: plain files and directories."""
    settings: Mapping[str, Any]
    """Those of the plan."""
    progress: Progressing = _no_progress
    """To be called as often as you like."""
    cancelled: Callable[[], bool] = _never
    """True once the load is cancelled. A process that builds is ended instead."""


@dataclass(frozen=True, slots=True)
class Product:
    """What a build has to report, apart from its files.

    ``annotations`` (values that JSON has) describe ``ConversionPlan.output``; they are stored with its digest.
    ``notes`` go into the load report.
    """

    annotations: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Converter(Protocol):
    """One way from a format to another: what ``register_converters`` names, or a class that makes it without arguments.

    Its module is imported by the server: import what is heavy, or may crash, inside ``build``. One object serves any
    number of conversions at once.
    """

    @property
    def version(self) -> str:
        """The converter's version. Change it with every change of the code that may change a result."""

    @property
    def options(self) -> Mapping[str, ConverterOption]:
        """Every option by name."""

    @property
    def in_child(self) -> bool:
        """Whether ``build`` runs in a separate process. It should, unless it is certainly quick and harmless.

        There a crash, or a lack of memory, ends only the build, and a cancelled load ends it at once.
        """

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """Look at ``source`` and decide what to do. Must be quick: read headers, write nothing.

        Args:
            source: What to convert.
            options: The given ones of :attr:`options`, and the defaults of the others that have one.

        Raises:
            RepoAgentError: this cannot be converted, or an option has no such value; the message has ``source.label``.
        """

    def build(self, job: ConversionJob) -> Product:
        """Write the result into ``job.target``.

        Raises:
            CancelledError: ``job.cancelled`` became true.
            RepoAgentError: it cannot be done. The loader puts ``label`` of the source before the message.
        """

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """Change ``config`` so that the server serves the result: backend, name of the file, whatever else it needs."""


def recognized(converter: Converter, directory: Path, name: str) -> bool:
    """Whether the file ``name`` beneath ``directory`` is of the format that ``converter`` is from.

    A converter decides by content, in a method ``recognizes(head: bytes) -> bool`` that it may have beside those of
    :class:`Converter`; ``head`` is up to 4096 bytes from the start of the file. An archive shows at its end what it
    is: ``recognizes_ends(head: bytes, tail: bytes) -> bool`` gets up to 65536 bytes from there, too. A converter
    without either recognises nothing.

    Raises:
        UnsafePathError: the file is a link, or lies elsewhere.
        NotFoundError: there is none.
    """
    recognizes: Callable[[bytes], bool] | None = getattr(converter, "recognizes", None)
    ends: Callable[[bytes, bytes], bool] | None = getattr(converter, "recognizes_ends", None)
    if recognizes is None and ends is None:
        return False
    with open_beneath(directory, name, follow=False) as file:
        head = file.read(_HEAD_BYTES)
        if recognizes is not None and recognizes(head):
            return True
        if ends is None:
            return False
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        return ends(head, file.read(_TAIL_BYTES))


@dataclass(frozen=True, slots=True)
class Converted:
    """A result that has been written to its target."""

    files: tuple[str, ...]
    """Relative to the directory that was given, the statement of provenance among them."""
    product: Product
    built: bool
    """False: it came from the cache."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each input, in hexadecimal digits."""


class Conversion(Protocol):
    """One conversion of one load: planned, and ready to be done."""

    @property
    def plan(self) -> ConversionPlan:
        """What the converter decided."""

    @property
    def input_bytes(self) -> int:
        """The number of bytes that the conversion reads."""

    def write(self, target: Path) -> Converted:
        """Put the result into ``target``, an existing directory: from the cache, or built.

        Beside ``plan.output`` lies ``NAME.intoto.json``, an in-toto statement with the digests of result and inputs.
        Bytes, digests, progress and a note go into the load report. In a confidential load nothing is kept.

        Raises:
            InvalidArgumentError: a file of the result is there already.
            CancelledError: the load was cancelled; a build that was under way is ended.
            InternalError: the process that built ended; the message names the converter.
            RepoAgentError: the converter refused the model.
        """

    def configure(self, config: "ModelConfig") -> None:
        """Change ``config`` so that the server serves what was written."""
