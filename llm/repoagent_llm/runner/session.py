"""Opens an inference session on a decoder's changed graph."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime as ort

from repoagent.beneath.opening import open_beneath
from repoagent.errors import InvalidArgumentError
from repoagent.onnx_files.trial_opening import try_opening
from repoagent_llm.runner import surgery
from repoagent_llm.runner.decoder_spec import CONFIG_NAME, DecoderSpec
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.executor_errors import DecoderError

_WEIGHTS_FOLDER: Final = "session.model_external_initializers_file_folder_path"
_NO_FOLDER: Final = "/dev/null"
_CPU_INFO: Final = Path("/proc/cpuinfo")


def make_session(spec: DecoderSpec, options: RunnerOptions, *, mixed: bool = False) -> Any:
    """An inference session on the changed graph; weights stay in the folder's own file.

    Raises ``DecoderError`` for a graph that cannot be loaded, or that is not what the specification says.
    """
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    if options.threads is not None:
        settings.intra_op_num_threads = options.threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if options.spinning else "0")
    if not _adds_in_32_bits():
        settings.add_session_config_entry("session.x64quantprecision", "1")
    if options.yielding:
        settings.add_session_config_entry("session.force_spinning_stop", "1")
    if spec.graph is None and not options.own_weights:
        settings.add_session_config_entry(_WEIGHTS_FOLDER, str(spec.folder))
    else:  # names in a graph from memory would begin in the working directory of the process
        settings.add_session_config_entry(_WEIGHTS_FOLDER, _NO_FOLDER)
    if spec.weights:
        _add_weights(settings, spec)
    most = options.max_graph_bytes
    operated = surgery.operate(
        spec, options.extra_outputs, lora=options.lora, mixed=mixed, own_weights=options.own_weights, most_bytes=most
    )
    with ExitStack() as opened:
        taken: Mapping[str, mmap] = {}
        if options.own_weights and spec.graph is None:
            taken = _take_weights(settings, spec, operated.outside, opened)
        _try_opening(settings, operated, spec, taken)
        try:
            session = ort.InferenceSession(operated.graph, settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # it has errors of its own for weights that are missing, and for much else
            raise DecoderError(f"{spec.place}: ONNX Runtime cannot load it: {error}") from error
    _check_extra_outputs(session, options.extra_outputs, spec.place)
    _check_cache(session, spec)
    return session


def _try_opening(settings: Any, operated: surgery.Operated, spec: DecoderSpec, taken: Mapping[str, mmap]) -> None:
    size = len(operated.graph)
    for name in operated.outside if spec.graph is None and not taken else ():
        with suppress(OSError), open_beneath(spec.folder, name) as file:  # ONNX Runtime reports what is missing.
            size += os.fstat(file.fileno()).st_size
    try:
        try_opening(operated.graph, settings, spec.place, files=taken, size=size)
    except InvalidArgumentError as error:
        raise DecoderError(str(error)) from None


def _take_weights(settings: Any, spec: DecoderSpec, names: Iterable[str], opened: ExitStack) -> Mapping[str, mmap]:
    """Give the session files in memory to copy weights from, mapped for as long as ``opened`` is."""
    contents = {name: opened.enter_context(_mapped(spec, name)) for name in sorted(names)}
    if contents:
        lengths = [len(content) for content in contents.values()]
        settings.add_external_initializers_from_files_in_memory(list(contents), list(contents.values()), lengths)
    return contents


@contextmanager
def _mapped(spec: DecoderSpec, name: str) -> Iterator[mmap]:
    try:
        with open_beneath(spec.folder, name) as file:
            mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
    except (OSError, ValueError) as error:  # a ValueError: it is empty
        raise DecoderError(f"{spec.place}: the file of weights {name!r} cannot be read: {error}") from error
    with mapped:
        yield mapped


def _add_weights(settings: Any, spec: DecoderSpec) -> None:
    """Those of the graph's that it keeps elsewhere; types that NumPy lacks by their bytes."""
    kinds = surgery.outside_types(spec)
    names = [name for name in spec.weights if name in kinds]
    values = []
    for name in names:
        array = np.ascontiguousarray(spec.weights[name])
        if array.dtype.kind == "V":
            raw = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
            values.append(ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, kinds[name]))
        else:
            values.append(ort.OrtValue.ortvalue_from_numpy(array))
    settings.add_external_initializers(names, values)


def _check_extra_outputs(session: Any, names: Sequence[str], place: str) -> None:
    """What requests may ask for has values for each token; what the graph does not say of a shape is believed."""
    shapes = {item.name: item.shape for item in [*session.get_inputs(), *session.get_outputs()]}
    tokens = shapes["input_ids"]
    for name in names:
        shape = shapes[name]
        if len(shape) < 2 or any(found not in (None, want) for found, want in zip(shape, tokens, strict=False)):
            raise DecoderError(
                f"{place}: the tensor {name!r} is {shape}, and cannot be an output for requests: it does not begin "
                f"with {tokens}, a value for each token"
            )


def _adds_in_32_bits() -> bool:
    """Whether products of eight bits are safe as they are: without VNNI, x64 adds pairs of them in sixteen bits.

    ONNX Runtime's remedy takes more than twice as long, also where it is not needed; so it is for processors without,
    and for systems that do not say.
    """
    return _CPU_INFO.exists() and "vnni" in _CPU_INFO.read_text(encoding="utf-8", errors="replace")


def _check_cache(session: Any, spec: DecoderSpec) -> None:
    """The cache that the graph takes must be the one that the specification describes."""
    shapes = {item.name: item.shape for item in session.get_inputs()}
    if "attention_mask" in shapes:
        raise DecoderError(f"{spec.place}: a part of the graph reads attention_mask, which this runner does not have")
    wanted = {name for layer in range(spec.layers) for name in spec.past(layer)}
    if not wanted <= shapes.keys() or spec.past(spec.layers)[0] in shapes:
        raise DecoderError(f"{spec.place}: the graph does not have the {spec.layers} layers that {CONFIG_NAME} names")
    for name in wanted:
        for place, what, said in ((1, "KV heads", spec.kv_heads), (3, "values in a head", spec.head_size)):
            found = shapes[name][place]
            if isinstance(found, int) and found != said:
                raise DecoderError(f"{spec.place}: {name} has {found} {what}, {CONFIG_NAME} has {said}")
    capacities = sorted({shapes[name][2] for name in wanted if isinstance(shapes[name][2], int)})
    if len(capacities) > 1:
        raise DecoderError(
            f"{spec.place}: the graph's caches differ in length: {', '.join(map(str, capacities))} tokens"
        )
