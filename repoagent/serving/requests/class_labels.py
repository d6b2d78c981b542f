"""What the classes of a model's outputs are called: the files that ``label_filename`` names, a line for each class."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError
from repoagent.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.storage.files.files import ModelFiles

__all__ = ["NO_LABELS", "Labels", "OutputClasses", "read_labels"]

Labels = Mapping[str, tuple[bytes, ...]]
"""Output -> labels of its classes, by index. They are bytes because the encoding of the file is unknown."""

NO_LABELS: Final[Labels] = {}


@dataclass(frozen=True, slots=True)
class OutputClasses:
    """How the values of a version's outputs become classes."""

    batching: bool
    """The first dimension of every output is that of the batch."""
    labels: Labels = field(default_factory=dict)

    def label(self, output: str, index: int) -> bytes:
        """The label of class ``index`` of ``output``; empty if it has none."""
        labels = self.labels.get(output, ())
        return labels[index] if index < len(labels) else b""


def read_labels(config: "ModelConfig", files: "ModelFiles", limits: Limits = DEFAULT_LIMITS) -> Labels:
    """The labels of all outputs of ``config`` that have a file.

    Raises:
        InternalError: a file is not there; the text is Triton's, with the path in the model's directory.
        RepoAgentError: it cannot be read.
    """
    return {
        item.name: _lines(item.label_filename, files, limits.text_file_bytes)
        for item in config.output
        if item.label_filename
    }


def _lines(path: str, files: "ModelFiles", limit: int) -> tuple[bytes, ...]:
    try:
        with files.open(path) as stream:
            content = stream.read(limit + 1)
    except NotFoundError:
        raise InternalError(f"failed to open text file for read {path}: No such file or directory") from None
    if len(content) > limit:
        raise InvalidArgumentError(f"'{path}' has more than {limit} bytes ({Limits.flag('text_file_bytes')})")
    return tuple(content.removesuffix(b"\n").split(b"\n")) if content else ()
