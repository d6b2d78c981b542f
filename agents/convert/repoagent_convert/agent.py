"""The agent: every version of a model is converted, and the configuration names what came of it."""

import json
import shutil
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.api import (
    Agent,
    AgentModel,
    CancelledError,
    Conversion,
    ConversionSource,
    InvalidArgumentError,
    Parameters,
    UnsafePathError,
    UnsupportedError,
    held_beneath,
    list_beneath,
    open_beneath,
    recognized,
    status_beneath,
    walk_beneath,
)

if TYPE_CHECKING:
    from repoagent.api import ModelConfig

PARAMETERS: Final[Mapping[str, str]] = {
    "to": "the format to convert to: onnx, python, optimized, int8, tensorrt, decoder, or that of a plug-in",
    "from": "the format of the model, where neither its content nor the target shows it",
    "input": "name of the model file in each version directory, where its content does not show it",
    "keep_original": "true: the model file stays, and the result lies beside it",
}
"""Every parameter of the agent itself, with what it is for."""

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_DEFAULT_TARGET: Final = "optimized"
_DEFAULT_SOURCE: Final = "onnx"
_SAVED: Final = "saved_model.pb"
"""By which TensorFlow knows a folder as a model."""
CHECKPOINT: Final = "safetensors"
_ONNX: Final = "onnx"
_IR_VERSION: Final = b"\x08"
"""The tag of the first field of an ONNX file."""


@dataclass(frozen=True, slots=True)
class Options:
    """What is converted to what. ``input`` is None where the parameter was not given; ``rest`` is the converter's."""

    source_format: str
    target_format: str
    input: str | None = None
    keep_original: bool = False
    rest: Mapping[str, str] = field(default_factory=dict)


def parse_parameters(given: Mapping[str, str], model: AgentModel) -> Options:
    """Read the parameters; of repeats the last counts.

    Raises:
        InvalidArgumentError: an unknown parameter, a value that it does not take, or no such converter.
        UnsafePathError: ``input`` does not name a file in the version directory.
    """
    target = given.get("to", _DEFAULT_TARGET)
    source = given.get("from") or _source_of(target, model.converters)
    converter = model.converter(source, target)
    Parameters(given.items()).check([*PARAMETERS, *converter.options])
    keep = given.get("keep_original", "false").lower()
    if keep not in _BOOLEANS:
        expected = ", ".join(_BOOLEANS)
        raise InvalidArgumentError(
            f"parameter 'keep_original': '{keep}' is not a truth value; expected one of: {expected}"
        )
    name = given.get("input")
    if name is not None:
        check_file_name(name, "parameter 'input'")
    rest = {key: value for key, value in given.items() if key not in PARAMETERS}
    return Options(source, target, name, _BOOLEANS[keep], rest)


def _source_of(target: str, converters: Collection[tuple[str, str]]) -> str:
    """ONNX, or else the only format that can be converted to ``target``."""
    sources = [source for source, other in converters if other == target]
    return sources[0] if len(sources) == 1 else _DEFAULT_SOURCE


def check_file_name(name: str, source: str) -> None:
    """Make sure that ``name`` is a file name, without any directory; "." is the version directory itself.

    Raises:
        UnsafePathError: it is not; the message states that it came from ``source``.
    """
    if name in ("", "..") or "/" in name or "\0" in name:
        raise UnsafePathError(f"{source}: {name!r} is not a plain file name")


def find_sources(
    model: AgentModel, given: Mapping[str, str], config: "ModelConfig | None"
) -> tuple[str, dict[str, str]]:
    """The format that the content of the model shows, and the file of each version; nothing where it shows none.

    Raises:
        InvalidArgumentError: there are several such files, or other formats in other versions.
    """
    formats = [source for source, target in model.converters if target == _ONNX]
    formats = [source for source in formats if given.get("from", source) == source]
    if not formats or given.get("to", _ONNX) != _ONNX:
        return "", {}
    root = model.localize()
    found = {number: _find_source(model, root / number, given, config, formats) for number in find_versions(root)}
    kinds = {kind for kind, _ in found.values()}
    if len(kinds) > 1:
        each = ", ".join(f"{number} is {kind or 'of no kind that is known'}" for number, (kind, _) in found.items())
        raise InvalidArgumentError(f"the versions are of different kinds ({each}); the parameter 'from' names one")
    kind = kinds.pop()
    if not kind and ("to" in given or "from" in given):
        known = ", ".join(formats)
        raise InvalidArgumentError(f"no file is of a kind that becomes {_ONNX} ({known}); 'from' and 'input' name it")
    return kind, {number: name for number, (_, name) in found.items()} if kind else {}


def _find_source(
    model: AgentModel, directory: Path, given: Mapping[str, str], config: "ModelConfig | None", formats: list[str]
) -> tuple[str, str]:
    """The format and the file of one version; empty where no converter knows one."""
    modes = {
        name: status_beneath(directory, name, follow=False).st_mode for name in list_beneath(directory, follow=False)
    }
    names = [name for name, mode in modes.items() if stat.S_ISREG(mode)]
    folders = [name for name, mode in modes.items() if stat.S_ISDIR(mode)]
    names += [f"{name}/{_SAVED}" for name in folders if _SAVED in list_beneath(directory, name, follow=False)]
    usual = given.get("input") or _usual_name(_ONNX, config)
    usual = f"{usual}/{_SAVED}" if usual in folders else usual
    candidates = [usual] if usual in names else [] if "input" in given else names
    if candidates == [usual] and _begins_like_onnx(directory, usual):
        return "", ""
    found = [
        (kind, name)
        for name in candidates
        for kind in formats
        if recognized(model.converter(kind, _ONNX), directory, name)
    ]
    described = [one for one in found if getattr(model.converter(one[0], _ONNX), "describes_others", False)]
    found = described if len(described) == 1 else found
    found = [one for one in found if not getattr(model.converter(one[0], _ONNX), "yields", False)] or found
    if len(found) > 1:
        each = " and ".join(f"{name} ({kind})" for kind, name in found)
        raise InvalidArgumentError(f"{directory.name} has {each}; the parameter 'input' names the one to convert")
    return found[0] if found else ("", "")


def _begins_like_onnx(directory: Path, name: str) -> bool:
    """Whether a file is what its name states: then no converter is imported to look at it."""
    if not name.endswith(".onnx"):
        return False
    with open_beneath(directory, name, follow=False) as file:
        return file.read(1) == _IR_VERSION


def find_versions(root: Path) -> list[str]:
    """The version directories of ``root``, by number.

    Raises:
        InvalidArgumentError: there is none.
        UnsafePathError: one of them is a link.
    """
    versions = sorted((path.name for path in root.iterdir() if _is_version(path)), key=int)
    if not versions:
        raise InvalidArgumentError("the model has no version directory (1, 2, ...), so there is nothing to convert")
    for number in versions:
        if (root / number).is_symlink():
            raise UnsafePathError(f"{number} is a symbolic link, which is not followed")
    return versions


def _is_version(path: Path) -> bool:
    name = path.name
    return path.is_dir() and name.isascii() and name.isdigit() and not name.startswith("0")


def copy_others(root: Path, target: Path, leave_out: Collection[str]) -> int:
    """Copy what is in ``root`` to ``target``, but the files and directories ``leave_out``.

    Empty directories are kept: the one of a version may be all there is of it. Returns the number of bytes.

    Raises:
        UnsafePathError: there is a link, or something that is neither file nor directory.
    """
    copied = 0
    for name, mode, size in walk_beneath(root, skip=lambda name: name in leave_out):
        if stat.S_ISDIR(mode):
            (target / name).mkdir(mode=0o700)
        elif stat.S_ISREG(mode):
            with held_beneath(root, name, follow=False) as source:
                shutil.copyfile(source, target / name)
            copied += size
        else:
            raise UnsafePathError(f"{name} is a link or a special file, which is not copied")
    return copied


_TENSORRT: Final = "tensorrt"
_NAMES: Final[Mapping[str, str]] = {
    "max_workspace_size_bytes": "workspace",
    "trt_max_workspace_size": "workspace",
    "trt_builder_optimization_level": "optimization_level",
    "trt_profile_min_shapes": "min_shapes",
    "trt_profile_opt_shapes": "opt_shapes",
    "trt_profile_max_shapes": "max_shapes",
}
_WITHOUT_EFFECT: Final = frozenset(
    {"minimum_segment_size", "max_cached_engines", "trt_max_partition_iterations", "trt_min_subgraph_size"}
    | {"trt_engine_cache_enable", "trt_engine_cache_path", "trt_engine_cache_prefix"}
    | {"trt_timing_cache_enable", "trt_timing_cache_path"}
)
"""About parts of a model, and caches of a provider: here the whole model becomes one plan, and the plan is kept."""
_PRECISIONS: Final = frozenset({"precision_mode", "trt_fp16_enable", "trt_int8_enable", "trt_bf16_enable"})
_AS_IT_IS: Final = frozenset({"FP32", "false", "0"})


def parameters_of(config: "ModelConfig | None") -> dict[str, str]:
    """Those that stand for a GPU accelerator ``tensorrt``; none if the configuration does not name it.

    Raises:
        UnsupportedError: it asks for other numbers than the model has, which a strongly typed plan cannot have.
        InvalidArgumentError: it has a parameter that means nothing.
    """
    if config is None:
        return {}
    for one in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if one.name == _TENSORRT:
            return {"to": _TENSORRT, **_translated(one.parameters)}
    return {}


def _translated(given: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, value in sorted(given.items()):
        if name in _PRECISIONS:
            if value not in _AS_IT_IS:
                raise UnsupportedError(
                    f"execution_accelerators: {name} '{value}' is not possible: plans are strongly typed, and have the "
                    "numbers of the model; convert the model itself"
                )
        elif name in _NAMES:
            found[_NAMES[name]] = value
        elif name not in _WITHOUT_EFFECT:
            known = ", ".join(sorted({*_NAMES, *_PRECISIONS, *_WITHOUT_EFFECT}))
            raise InvalidArgumentError(f"execution_accelerators: tensorrt has no parameter '{name}'; there are {known}")
    return found


DEFAULT_FILE_NAME: Final = "model.onnx"
PROVENANCE: Final = "repoagent_convert"
"""The parameter of the new configuration that states what was done."""
_BACKEND_OF_ONNX: Final = "onnxruntime"


class ConvertAgent(Agent):
    """Replaces models by what a converter makes of them at LOAD. Its README has the parameters."""

    api_version = 1
    guard = True
    """What was digested must be what is converted: a result is kept under the digest, for other models as well."""

    def load(self, model: AgentModel) -> None:
        """Write the repository with the converted models and hand it on."""
        config = model.config
        given = dict(model.parameters)
        # What the configuration asks of an accelerator counts where the parameters name no format.
        given = given if "to" in given else {**parameters_of(config), **given}
        kind, names = find_sources(model, given, config)
        if kind:
            given = {"to": _ONNX, "from": kind, **given}
        job = _Job.plan(model, parse_parameters(given, model), config, names)
        target = model.acquire_location(size_hint=job.input_bytes())
        job.write(target)
        model.update_location(target)


@dataclass(frozen=True, slots=True)
class _Job:
    """One load of one model; ``conversions`` are those of its versions."""

    model: AgentModel
    options: Options
    config: "ModelConfig | None"
    root: Path
    conversions: Mapping[str, Conversion]

    @classmethod
    def plan(
        cls, model: AgentModel, options: Options, config: "ModelConfig | None", names: Mapping[str, str]
    ) -> "_Job":
        """Find out what there is to do, and refuse what cannot be done, before anything is written.

        ``names`` has the files of versions where the content showed them.
        """
        converter = model.converter(options.source_format, options.target_format)
        name = options.input or getattr(converter, "default_input", "") or _usual_name(options.source_format, config)
        check_file_name(name, "default_model_filename")
        root = model.localize()
        conversions = {
            number: _conversion(model, options, root, number, names.get(number, name)) for number in find_versions(root)
        }
        return cls(model, options, config, root, conversions)

    def input_bytes(self) -> int:
        """The size of everything that is there now, about what will be written."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def write(self, target: Path) -> None:
        """Fill ``target`` with the new repository."""
        copied = copy_others(self.root, target, self._left_out())
        self.model.report(bytes_read=copied, bytes_written=copied)
        digests = {}
        for number, conversion in self.conversions.items():
            if self.model.cancelled:
                raise CancelledError("the conversion was given up: the load was cancelled")
            digests[number] = dict(conversion.write(target / number).digests)
        self._write_config(digests)

    def _left_out(self) -> frozenset[str]:
        if self.options.keep_original:
            return frozenset()
        return frozenset(
            f"{number}/{name}" for number, conversion in self.conversions.items() for name in conversion.plan.replaces
        )

    def _write_config(self, digests: Mapping[str, Mapping[str, str]]) -> None:
        """Name the result, and state in a parameter of the configuration what was done."""
        config = self.config if self.config is not None else _empty_config(self.model.name)
        before = config.SerializeToString(deterministic=True)
        for conversion in self.conversions.values():
            conversion.configure(config)
        if self.config is None and _only_names_its_backend(before, config):
            return
        tools = {name: text for one in self.conversions.values() for name, text in one.plan.tools.items()}
        provenance = {
            "by": f"repoagent-convert {version('repoagent-convert')}",
            "from": self.options.source_format,
            "to": self.options.target_format,
            "parameters": dict(self.options.rest),
            "tools": tools,
            "sha256": digests,
        }
        config.parameters[PROVENANCE].string_value = json.dumps(provenance)
        self.model.write_config(config)


def _usual_name(source_format: str, config: "ModelConfig | None") -> str:
    """That of the file; a checkpoint is all of the directory."""
    if source_format == CHECKPOINT:
        return "."
    return (config.default_model_filename if config is not None else "") or DEFAULT_FILE_NAME


def _conversion(model: AgentModel, options: Options, root: Path, number: str, name: str) -> Conversion:
    label = f"{number}/{name}" if name != "." else number
    source = ConversionSource(root / number, name, label, model.config)
    conversion = model.conversion(options.source_format, options.target_format, source, options.rest)
    if options.keep_original and conversion.plan.output == name and "output" not in options.rest:
        beside = {**options.rest, "output": f"{name.removesuffix('.onnx')}.{options.target_format}.onnx"}
        return model.conversion(options.source_format, options.target_format, source, beside)
    return conversion


def _only_names_its_backend(before: bytes, config: "ModelConfig") -> bool:
    """Whether a model without a configuration can do without one: its files alone imply what it would have."""
    bare = type(config)()
    bare.CopyFrom(config)
    if bare.backend == _BACKEND_OF_ONNX:
        bare.backend = ""
    return bare.SerializeToString(deterministic=True) == before


def _empty_config(name: str) -> "ModelConfig":
    from repoagent.api import ModelConfig

    return ModelConfig(name=name)
