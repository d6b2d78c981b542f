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
from repoagent_llm.backend.tensors import check_tensors, complete_tensors

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

_SHARE: Final = "models-at-once"
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

        Raises:
            InvalidArgumentError: it is not a whole number above 0.
        """
        warn_of_unknown(self.name, settings or {}, (_SHARE,))
        text = (settings or {}).get(_SHARE)
        if text is not None and not (text.isascii() and text.isdigit() and int(text[:9]) > 0 and len(text) < 9):
            raise InvalidArgumentError(f"--backend-config=llm,{_SHARE} must be a whole number above 0, not '{text}'")
        self._models_at_once = None if text is None else int(text)
        self.limits = DEFAULT_LIMITS

    def gpus(self) -> Sequence[int]:
        """None: decoders run on the CPU."""
        return ()

    def auto_complete(self, config: "ModelConfig", files: ModelFiles, version: int) -> None:
        """Add the inputs and outputs that are not named. A model is decoupled unless it states something else."""
        complete_tensors(config)
        if not config.HasField("model_transaction_policy"):
            config.model_transaction_policy.decoupled = True

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
                        run_options=ending,
                    ),
                    lambda: setattr(ending, "terminate", True),
                    LlmModel.close,
                )
                undo.callback(model.close)
            undo.pop_all()
        return model
