"""Loading language models: a version directory with a decoder folder and its tokenizer."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, Final

from repoagent.config.backends import way_out
from repoagent.errors import InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.backends.registry import warn_of_unknown
from repoagent.serving.instances.backend import BackendModel
from repoagent.serving.instances.left_behind import unless_cancelled
from repoagent.storage.files.files import ModelFiles
from repoagent_llm.backend.tensors import check_tensors, complete_tensors, makes_vectors

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_SHARE: Final = "models-at-once"
_FOLDER: Final = "kv-cache-directory"
_FOLDER_BYTES: Final = "kv-cache-directory-bytes"
_SALTS: Final = "salt-by-client"
_ADAPTERS: Final = "adapters"
_PEFT: Final = "adapter_config.json"
_PACKAGES: Final = ("tokenizers", "onnx")


class LlmBackend:
    """Serves language models with the executor: all requests of a model share its steps, each answers as it goes."""

    name: ClassVar[str] = "llm"
    platforms: ClassVar[tuple[str, ...]] = ()
    default_model_filename: ClassVar[str] = "genai_config.json"
    keeps_files_open: ClassVar[bool] = True
    """Unless a model states otherwise: see :class:`LlmModel`."""
    stateful: ClassVar[bool] = True
    """Requests share steps, and the blocks of prompts that begin alike."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        """``settings``: ``models-at-once``, how many models have a share of the cores; without it they take turns.

        ``kv-cache-directory``: where retained blocks are kept in files, ``kv-cache-directory-bytes`` for each model.
        ``salt-by-client``: whether clients of an access file reuse no prompts of each other; they do not by default.

        Raises:
            InvalidArgumentError: one that must be is not a whole number above 0, or not ``true`` or ``false``.
        """
        settings = settings or {}
        warn_of_unknown(self.name, settings, (_SHARE, _FOLDER, _FOLDER_BYTES, _SALTS))
        salts = settings.get(_SALTS, "true")
        if salts not in ("true", "false"):
            raise InvalidArgumentError(f"--backend-config=llm,{_SALTS} must be 'true' or 'false', not '{salts}'")
        self._salts = salts == "true"
        self._models_at_once = _number(settings, _SHARE)
        self._block_folder = settings.get(_FOLDER) or None
        self._block_folder_bytes = _number(settings, _FOLDER_BYTES)
        self.limits = DEFAULT_LIMITS

    def gpus(self) -> Sequence[int]:
        """None: decoders run on the CPU."""
        return ()

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """Add the inputs and outputs that are not named, and the names of adapters. A model is decoupled unless it
        states something else."""
        complete_tensors(config)
        place = f"{version}/{_ADAPTERS}"
        names = [name for name in files.names(place) if files.exists(f"{place}/{name}/{_PEFT}")]
        if (
            names
            and not makes_vectors(config)
            and not {"lora_adapters", "lora_prefetch_dir"}.intersection(config.parameters)
        ):
            config.parameters["lora_adapters"].string_value = ",".join(names)
        if not config.HasField("model_transaction_policy"):
            config.model_transaction_policy.decoupled = not makes_vectors(config)

    def load(self, config: "ModelConfig", files: ModelFiles, version: int) -> BackendModel:
        """Start an executor over the version's directory.

        Raises:
            UnsupportedError: a package is not installed.
            UnavailableError: a file is missing.
            InvalidArgumentError: the configuration or a file makes no sense.
        """
        check_tensors(config)
        missing = [package for package in _PACKAGES if find_spec(package) is None]
        if missing:
            raise UnsupportedError(
                f"backend 'llm' needs {' and '.join(missing)}; {install_hint('repoagent-core', 'llm')}"
            )
        path = f"{version}/{self.default_model_filename}"
        if not files.exists(path):
            others = [name for name in files.names(str(version)) if not name.endswith(".onnx")]  # a decoder has these
            if way := way_out(others):
                raise UnavailableError(f"version directory {version} of model '{config.name}' holds {way}")
            raise UnavailableError(
                f"unable to find '{path}' for model '{config.name}': a version directory holds a decoder folder, as "
                "onnxruntime-genai's model builder and repoagent_llm.builder write it, and its tokenizer.json"
            )
        from onnxruntime import RunOptions

        from repoagent_llm.backend.model import LlmModel  # With it come the executor and the tokenizers.

        ending = RunOptions()
        with ExitStack() as undo:
            with files.reading(str(version)) as folder:
                model = unless_cancelled(
                    lambda: LlmModel(
                        config,
                        folder,
                        str(version),
                        self.limits,
                        self._models_at_once,
                        fleeting=files.fleeting,
                        blocks=(self._block_folder, self._block_folder_bytes),
                        salts=self._salts,
                        run_options=ending,
                    ),
                    lambda: setattr(ending, "terminate", True),
                    LlmModel.close,
                )
                undo.callback(model.close)
            undo.pop_all()
        return model


def _number(settings: Mapping[str, str], name: str) -> int | None:
    text = settings.get(name)
    if text is not None and not (text.isascii() and text.isdigit() and len(text) < 18 and int(text) > 0):
        raise InvalidArgumentError(f"--backend-config=llm,{name} must be a whole number above 0, not '{text}'")
    return None if text is None else int(text)
