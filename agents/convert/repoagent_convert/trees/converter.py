"""What the converters of trees share: their options, the build, and the comparison with the library of the source."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final

from repoagent.api import (
    ConversionJob,
    ConverterOption,
    InternalError,
    InvalidArgumentError,
    Product,
    UnsupportedError,
    install_hint,
    open_beneath,
)
from repoagent.converters.onnx.source import public_error
from repoagent.converters.option_values import choice
from repoagent_convert.model_file import LARGEST_FILE, produced
from repoagent_convert.tables.tabular import ROWS, TabularConverter, closeness, rows_about
from repoagent_convert.trees.ensemble import Ensemble, Link
from repoagent_convert.trees.graph import to_onnx

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

_CELLS: Final = 1 << 24
_TREES: Final = ("best", "all")


class TreeConverter(TabularConverter):
    """A reader of one library's files, as a converter; see :class:`repoagent.api.Converter`."""

    library: ClassVar[str]
    """The package that the result is compared with, where it is installed."""
    packages = ("onnx",)
    install = install_hint("repoagent-convert", "trees")

    @property
    def libraries(self) -> tuple[str, ...]:
        """The names of that package: as such, and without what a GPU needs."""
        return (self.library, f"{self.library}-cpu")

    options = {
        **TabularConverter.options,
        "trees": ConverterOption("best", "all: also those behind the best iteration of an early stopping"),
    }

    @abstractmethod
    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` is of this format, whatever its name."""

    def unpacked(self, data: bytes) -> bytes:
        """The library's own file, where ``data`` has more around it."""
        return data

    @abstractmethod
    def read(self, data: bytes, settings: Mapping[str, Any]) -> tuple[Ensemble, Sequence[str]]:
        """The trees of a file, and notes for the report; ``settings`` are those of the plan."""

    @abstractmethod
    def expected(self, data: bytes, rows: "Floats", ensemble: Ensemble) -> "npt.NDArray[Any]":
        """What the library, with the file ``data`` that became ``ensemble``, answers to ``rows``."""

    def settings(self, options: Mapping[str, str]) -> dict[str, Any]:
        """See :class:`TabularConverter`."""
        return {**super().settings(options), "all_trees": choice(options, "trees", _TREES) == "all"}

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        name = job.settings["input"]
        job.progress(0, None, f"reading {name}")
        with open_beneath(job.source, name, follow=False) as file:
            data = file.read(LARGEST_FILE)
        try:
            data = self.unpacked(data)
            ensemble, notes = self.read(data, job.settings)
            model = to_onnx(ensemble, job.settings["names"], double=job.settings["double"])
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"is not a model of {self.title}, or is damaged: {error.message}") from None
        except UnsupportedError as error:
            raise UnsupportedError(f"cannot be converted to ONNX: {error.message}") from None
        notes = [f"objective {ensemble.objective or 'none'}", *notes]
        if ensemble.categorical:
            notes.append("categories are sent as the numbers that training gave them, from 0 on")
        job.progress(0, None, "comparing")
        notes.append(self._compared(model.SerializeToString(), data, ensemble))
        return produced(job, model, notes)

    def _compared(self, content: bytes, data: bytes, ensemble: Ensemble) -> str:
        """What the report states of a comparison with the library.

        Raises:
            InternalError: the answers differ.
        """
        try:
            title = f"{self.library} {import_module(self.library).__version__}"
        except (ImportError, OSError):  # a native library may be missing
            return f"not compared: {self.library} is not installed here"
        rows = random_rows(ensemble)
        try:
            expected = self.expected(data, rows, ensemble)
        except Exception as error:  # whatever a library of others raises
            raise InvalidArgumentError(f"{title} does not read it: {public_error(error)}") from error
        difference, is_close = compare(content, ensemble, rows, expected)
        if not is_close:
            raise InternalError(
                f"the converted model answers differently from {title}: by up to {difference:.3g} in {len(rows)} rows"
            )
        return f"compared with {title}: {len(rows)} rows, largest difference {difference:.1e}"


def random_rows(ensemble: Ensemble) -> "Floats":
    """Rows that a comparison is made on, the same each time; some categories are unknown, and some not whole."""
    import numpy as np

    random = np.random.default_rng(0)
    count = min(ROWS, _CELLS // ensemble.features)
    rows = random.normal(size=(count, ensemble.features)).astype(np.float32)
    rows = rows_about(*ensemble.columns().thresholds(), rows, random)
    return np.where(np.isnan(rows) & (random.random(rows.shape) < 0.5), np.float32(ensemble.missing), rows)


def compare(content: bytes, ensemble: Ensemble, rows: "Floats", expected: "npt.NDArray[Any]") -> tuple[float, bool]:
    """The largest difference between the ONNX model and ``expected``, and whether each is small beside its number."""
    import numpy as np
    import onnxruntime as ort

    session = ort.InferenceSession(content, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    rows = rows.astype(np.float64) if given.type == "tensor(double)" else rows
    found = np.asarray(session.run(None, {given.name: rows})[-1], np.float64)
    wanted = np.asarray(expected, np.float64)
    if ensemble.link is Link.BINARY:
        wanted = np.stack([1 - wanted, wanted], axis=1)
    difference, is_close = closeness(found, wanted.reshape(found.shape))
    return difference, bool(is_close.all())
