"""The agent: every version's ONNX model goes through ONNX Runtime's optimiser, once per machine."""

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api import Agent, AgentModel, CancelledError, InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent_convert.fingerprint import cache_key, digest_parts, machine
from repoagent_convert.layout import ModelFile, copy_others, find_model_files, link_or_copy
from repoagent_convert.optimizer import RUNTIME_VERSION, Optimization
from repoagent_convert.options import Options, check_file_name, parse_parameters

if TYPE_CHECKING:
    from repoagent.api import ModelConfig

__all__ = ["ConvertAgent"]

BACKEND: Final = "onnxruntime"
PLATFORM: Final = "onnxruntime_onnx"
DEFAULT_FILE_NAME: Final = "model.onnx"
PROVENANCE: Final = "repoagent_convert"
"""The parameter of the new configuration that says what was done."""
EXTERNAL_ABOVE: Final = 1 << 30
"""Bytes of a model file above which its weights are written apart: it can grow, and 2 GiB are the end of the format."""


class ConvertAgent(Agent):
    """Replaces ONNX models by optimised ones at LOAD. Its README has the parameters."""

    api_version = 1
    guard = True
    """What was digested must be what is optimised: a result is kept under the digest, for other models as well."""

    def load(self, model: AgentModel) -> None:
        """Write the repository with the optimised models and hand it on."""
        options = parse_parameters(model.parameters)
        job = _Job.plan(model, options)
        target = model.acquire_location(size_hint=job.input_bytes())
        job.write(target)
        model.update_location(target)


@dataclass(frozen=True, slots=True)
class _Job:
    """One load of one model."""

    model: AgentModel
    options: Options
    config: "ModelConfig | None"
    root: Path
    files: tuple[ModelFile, ...]
    output: str
    """Name of the result in each version directory."""

    @classmethod
    def plan(cls, model: AgentModel, options: Options) -> "_Job":
        """Find out what there is to do, and refuse what cannot be done, before anything is written."""
        config = model.config
        _check_backend(config)
        name = options.input or (config.default_model_filename if config is not None else "") or DEFAULT_FILE_NAME
        check_file_name(name, "default_model_filename")
        root = model.localize()
        output = f"{name.removesuffix('.onnx')}.optimized.onnx" if options.keep_original else name
        return cls(model, options, config, root, tuple(find_model_files(root, name)), output)

    def input_bytes(self) -> int:
        """The size of everything that is there now, about what will be written."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def write(self, target: Path) -> None:
        """Fill ``target`` with the new repository."""
        copied = copy_others(self.root, target, self._left_out())
        self.model.report(bytes_read=copied, bytes_written=copied)
        digests = {}
        for index, file in enumerate(self.files):
            self.model.progress(index, len(self.files), f"optimising {file.path}")
            if self.model.cancelled:
                raise CancelledError("the conversion was given up: the load was cancelled")
            digests[file.version] = self._convert(file, target / file.version)
        self._write_config(digests)

    def _left_out(self) -> frozenset[str]:
        if self.options.keep_original:
            return frozenset()
        return frozenset(path for file in self.files for path in file.replaced(self.root))

    def _convert(self, file: ModelFile, target: Path) -> str:
        """Put the optimised form of ``file`` into ``target``; return the digest of what it was made from."""
        sizes = [(self.root / part).stat().st_size for part in file.parts]
        digest = digest_parts(self.root, file.parts, self.model)
        external = bool(file.external) or sizes[0] > EXTERNAL_ABOVE
        step = Optimization(self.root / file.path, file.path, self.output, self.options.level, external)
        _refuse_existing(target, step)
        how, written = self._build(step, digest, target)
        note = f"{file.path}: level {self.options.level}, ONNX Runtime {RUNTIME_VERSION}, {how}"
        digests = {file.path: f"sha256:{digest}"}
        self.model.report(bytes_read=sum(sizes), bytes_written=written, digests=digests, note=note)
        return digest

    def _build(self, step: Optimization, digest: str, target: Path) -> tuple[str, int]:
        """How the result came about, and how many bytes were written for it."""
        key = cache_key(
            agent=version("repoagent-convert"),
            digest=digest,
            external=step.external,
            level=step.level,
            machine=machine(),
            output=step.output,
            runtime=RUNTIME_VERSION,
        )
        built: list[Path] = []

        def build(directory: Path) -> None:
            step.write_to(directory)
            built.append(directory)

        try:
            cached = self.model.cache.get_or_build(key, build)
        except (UnsupportedError, UnavailableError) as error:
            # A confidential model, whose plaintext stays in this load's own memory; or a cache that is full.
            step.write_to(target)
            return f"built, not kept: {error}", _size(target, step)
        written = link_or_copy(cached, target)
        return ("built", _size(target, step)) if built else ("from the cache", written)

    def _write_config(self, digests: dict[str, str]) -> None:
        """Name the result, and say in a parameter of the configuration what was done."""
        config = self.config
        if config is None:
            if not self.options.keep_original:
                return
            config = _empty_config(self.model.name)
        if self.output != (config.default_model_filename or DEFAULT_FILE_NAME):
            config.default_model_filename = self.output
        if not (config.backend or config.platform):
            config.backend = BACKEND
        provenance = {
            "by": f"repoagent-convert {version('repoagent-convert')}",
            "onnxruntime": RUNTIME_VERSION,
            "level": self.options.level,
            "sha256": digests,
        }
        config.parameters[PROVENANCE].string_value = json.dumps(provenance)
        self.model.write_config(config)


def _check_backend(config: Any) -> None:
    if config is None:
        return
    if config.backend not in ("", BACKEND) or config.platform not in ("", PLATFORM):
        other = config.backend or config.platform
        raise InvalidArgumentError(f"converts models of the backend '{BACKEND}', but the configuration says '{other}'")


def _empty_config(name: str) -> "ModelConfig":
    from repoagent.api import ModelConfig

    return ModelConfig(name=name)


def _refuse_existing(target: Path, step: Optimization) -> None:
    for name in step.results:
        if (target / name).exists():
            where = f"{target.name}/{name}"
            raise InvalidArgumentError(f"{step.name} would be optimised into {where}, but the model has such a file")


def _size(directory: Path, step: Optimization) -> int:
    return sum((directory / name).stat().st_size for name in step.results if (directory / name).exists())
