"""Opening a session: the model's file, the files beside it, and the providers that were chosen."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import onnxruntime

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.onnx_files.trial_opening import try_opening
from repoagent.serving.backends.onnxruntime.providers import Choice
from repoagent.serving.instances.left_behind import unless_cancelled
from repoagent.storage.files.files import MemoryFiles, ModelFiles

if TYPE_CHECKING:
    from repoagent.config import ModelConfig


_PATTERN: Final = re.compile(r"^\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)$", re.DOTALL)


def translate(error: Exception, name: str = "") -> RepoAgentError:
    """The error to raise for what ONNX Runtime raised; texts as Triton's backend words them.

    ``name`` is the file in the model that could not be read, if it was reading one.
    """
    if isinstance(error, RepoAgentError):
        return error
    where = f"'{name}': " if name else ""
    match = _PATTERN.match(str(error))
    if match:
        return InternalError(f"onnx runtime error {match[1]}: {where}{match[2].strip()}")
    if isinstance(error, ValueError):  # A missing input, or an element that is not text.
        return InvalidArgumentError(f"onnx runtime error: {where}{error}")
    return InternalError(f"onnx runtime error: {where}{type(error).__name__}: {error}")


NO_FOLDER: Final = "/dev/null"
"""A place in which there can be no file, whatever a name after it looks like."""
_FOLDER: Final = "session.model_external_initializers_file_folder_path"


def confine(options: Any) -> None:
    """Let a session that is given its model as bytes read no file at all.

    Without this ONNX Runtime takes the names of such a model to begin in the working directory of the process.
    """
    options.add_session_config_entry(_FOLDER, NO_FOLDER)


def walk(files: ModelFiles, directory: str) -> Iterator[str]:
    """The paths of all files in ``directory`` of a model, relative to it."""
    for name in files.names(directory):
        path = f"{directory}/{name}"
        if files.names(path):
            yield from (f"{name}/{inside}" for inside in walk(files, path))
        else:
            yield name


def add_external_data(options: Any, contents: Mapping[str, bytes]) -> None:
    """Let a session find the files that its model names in memory; keep ``contents`` until it is made.

    ONNX Runtime copies what it needs while it makes the session, and looks at no file that the model does not name.
    It takes any number of bytes, but refuses a single tensor of more than 2 GiB.
    """
    if contents:
        lengths = [len(content) for content in contents.values()]
        options.add_external_initializers_from_files_in_memory(list(contents), list(contents.values()), lengths)


MODEL_FILENAME: Final = "model.onnx"
_LOOPS: Final = (b"Loop", b"Scan", b"SequenceMap")
_SIZES: Final = (
    b"AffineGrid", b"CenterCropPad", b"ConstantOfShape", b"DFT", b"Expand", b"MaxUnpool", b"MelWeightMatrix",
    b"OneHot", b"Pad", b"Range", b"Resize", b"Tile", b"Upsample", b"Window",
)  # fmt: skip
"""Operators whose outputs are as large as the values of an input demand."""
_CPU: Final = "CPUExecutionProvider"


def open_session(
    config: "ModelConfig", files: ModelFiles, version: int, options: Any, choices: Sequence[Choice] = ()
) -> Any:
    """A session of ONNX Runtime for ``version``; without ``choices`` on the CPU.

    Raises:
        UnavailableError: the model's file is missing.
        RepoAgentError: ONNX Runtime refuses the model.
    """
    directory, path = model_file(config, files, version)
    neighbours = [name for name in walk(files, directory) if f"{directory}/{name}" != path]
    if neighbours and not isinstance(files, MemoryFiles):
        with files.reading(directory) as place:
            content, where = files.bytes(path), str(place / path.rpartition("/")[2])
            size = len(content) + sum((place / name).stat().st_size for name in neighbours)
            try_opening(content, options, path, path=where, size=size)
            return _session(path, where, options, choices)
    contents = {name: files.bytes(f"{directory}/{name}") for name in neighbours}
    add_external_data(options, contents)
    confine(options)
    content = files.bytes(path)
    try_opening(content, options, path, files=contents)
    return _session(path, content, options, choices)


def model_file(config: "ModelConfig", files: ModelFiles, version: int) -> tuple[str, str]:
    """The directory relative to which the model names files with weights ("external data"), and the model's file.

    The model is read as bytes, so that a decrypted one need not touch a disk. If it has files beside it, it is
    opened by its path, or, if all are in memory, they are handed over with it.

    Raises:
        UnavailableError: the file is missing.
    """
    directory = str(version)
    path = f"{directory}/{config.default_model_filename or MODEL_FILENAME}"
    if not files.exists(path):
        raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
    if inside := files.names(path):  # A directory that holds the model and its weights.
        directory, path = path, f"{path}/{MODEL_FILENAME}"
        if MODEL_FILENAME not in inside:
            raise UnavailableError(f"unable to find '{path}' for model '{config.name}'")
    return directory, path


def may_loop(config: "ModelConfig", files: ModelFiles, version: int) -> bool:
    """Whether the graph may have an operator that repeats others as often, or makes as much, as its inputs demand.

    A model whose names contain that of such an operator is taken for one.
    """
    content = files.bytes(model_file(config, files, version)[1])
    return any(operator in content for operator in (*_LOOPS, *_SIZES))


def _session(name: str, model: str | bytes, options: Any, choices: Sequence[Choice]) -> Any:
    try:
        if any(choice.devices for choice in choices):
            for choice in choices:
                if choice.devices:
                    options.add_provider_for_devices(list(choice.devices), dict(choice.options))
                else:
                    options.add_provider(choice.name, dict(choice.options))
            return _open(lambda: onnxruntime.InferenceSession(model, options), options)
        providers: list[Any] = [(choice.name, dict(choice.options)) for choice in choices]
        return _open(lambda: onnxruntime.InferenceSession(model, options, providers=[*providers, _CPU]), options)
    except RepoAgentError:
        raise
    except Exception as error:
        raise translate(error, name) from error


def _open(make: Callable[[], Any], options: Any) -> Any:
    # ONNX Runtime computes what is constant, which can take years, and looks at the flag only before and after that.
    return unless_cancelled(make, lambda: options.set_load_cancellation_flag(True))
