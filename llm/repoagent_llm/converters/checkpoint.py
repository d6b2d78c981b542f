"""A checkpoint, or a GGUF file, becomes a decoder folder, which the backend ``llm`` serves."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from repoagent.api.converters import ConversionJob, ConversionPlan, ConversionSource, ConverterOption, Product
from repoagent.beneath.opening import held_beneath, list_beneath, read_beneath
from repoagent.converters.option_values import choice, number, truth
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.installing import install_hint
from repoagent.nested_text import read_json

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent_llm.builder.architecture import Architecture


CONFIG: Final = "config.json"
_INDEX: Final = "model.safetensors.index.json"
_WEIGHTS: Final = ".safetensors"
_GGUF: Final = ".gguf"
_TOKENIZER: Final = "tokenizer.json"
_BESIDE: Final = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files that serving reads, as far as there are any."""
_ENCRYPTED: Final = ("age", "tink", "jwe")
"""Endings of files that ``decrypt`` takes."""
_LARGEST: Final = 1 << 26
"""Bytes of a file that is read whole."""


class CheckpointFiles:
    """One version directory with a checkpoint in it; ``label`` is what messages call it."""

    def __init__(self, directory: Path, label: str) -> None:
        """Find them.

        Raises:
            InvalidArgumentError: some are missing, or cannot be read.
        """
        self._directory = directory
        self._label = label
        self._names = set(list_beneath(directory))
        for name, what in ((CONFIG, "the model's configuration"), (_TOKENIZER, "a file of Hugging Face's tokenizers")):
            if name not in self._names:
                raise self._wrong(f"has no {name}, {what}: {self._reason(name, 'this is not a whole checkpoint')}")
        self.weights = self._weights()

    def _reason(self, name: str, otherwise: str) -> str:
        """Why there is no file whose name ends with ``name``."""
        endings = tuple(f"{kind}.{ending}" for kind in (name, _GGUF) for ending in _ENCRYPTED)
        encrypted = min((found for found in self._names if found.endswith(endings)), default=None)
        if encrypted is not None:
            return f"{encrypted[:100]} is encrypted; name the agent 'decrypt' before 'convert'"
        if (other := min((found for found in self._names if found.endswith(_GGUF)), default=None)) is not None:
            return f"{other[:100]} is a GGUF file, which is converted without {CONFIG}; or 'input' names it"
        return otherwise

    @property
    def all(self) -> tuple[str, ...]:
        """Every file that matters."""
        index = [_INDEX] if _INDEX in self._names else []
        beside = [name for name in _BESIDE if name in self._names]
        return (CONFIG, *index, *self.weights, _TOKENIZER, *beside)

    def _weights(self) -> list[str]:
        if _INDEX not in self._names:
            found = sorted(name for name in self._names if name.endswith(_WEIGHTS))
            if not found:
                reason = self._reason(_WEIGHTS, "convert the weights to safetensors first")
                raise self._wrong(f"has no *{_WEIGHTS} file: {reason}")
            return found
        shards = self._json(_INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise self._wrong(f"{_INDEX} has no 'weight_map' of names")
        named = sorted(set(shards.values()))
        missing = [name for name in named if name not in self._names]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise self._wrong(
                f"{missing[0][:100]}{more} of {len(named)} files with weights is missing; {_INDEX} names it"
            )
        return named

    def check_tokenizer(self, vocab_size: int) -> None:
        """Make sure that the model knows every token.

        Raises:
            InvalidArgumentError: it does not.
        """
        largest = max(self._tokens(), default=-1)
        if largest >= vocab_size:
            raise self._wrong(
                f"{_TOKENIZER} has the token {largest}, but {CONFIG} has a vocab_size of {vocab_size}: they belong to "
                "different models"
            )

    def _tokens(self) -> Iterator[int]:
        tokenizer = self._json(_TOKENIZER)
        model = tokenizer.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocabulary, dict):
            yield from (token for token in vocabulary.values() if type(token) is int)
        elif isinstance(vocabulary, list):  # Unigram has pairs, a token's place is its number.
            yield len(vocabulary) - 1
        for added in tokenizer.get("added_tokens") or ():
            if isinstance(added, dict) and type(added.get("id")) is int:
                yield added["id"]

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = read_json(read_beneath(self._directory, name, limit=_LARGEST))
        except (OSError, ValueError) as error:
            raise self._wrong(f"{name} cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise self._wrong(f"{name} must be a JSON object")
        return found

    def check_size_of_config(self) -> None:
        """Refuse a configuration that is not valid, before it is used."""
        self._json(CONFIG)

    def _wrong(self, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"{self._label}: {text}")


_BACKEND: Final = "llm"
_OUTPUT: Final = "genai_config.json"
_FORMS: Final = ("gqa", "std", "paged")
_PRECISIONS: Final = ("fp32", "fp16", "bf16", "int8", "int4")
_BLOCKS: Final = (16, 32, 64, 128, 256)
_GGUF_BLOCK: Final = 32
_WHOLE: Final = "the checkpoint"


class CheckpointConverter:
    """Builds a decoder folder of a checkpoint of Hugging Face, or of a GGUF file, with its tokenizer and template."""

    version = "1"
    in_child = True
    options: Mapping[str, ConverterOption] = {
        "precision": ConverterOption("fp32", "the type of the weights: fp32, fp16, bf16, int8 or int4"),
        "form": ConverterOption("gqa", "gqa: ONNX Runtime; paged: OpenVINO; std: the source of TensorRT plans"),
        "block": ConverterOption("32", "with int4: how many weights share a scale: 16, 32, 64, 128 or 256"),
        "lora": ConverterOption("false", "true: the decoder takes LoRA adapters"),
        "capacity": ConverterOption(None, "with form std: the tokens of a cache, which TensorRT plans need"),
    }

    def plan(self, source: ConversionSource, options: Mapping[str, str]) -> ConversionPlan:
        """See :class:`repoagent.api.Converter`."""
        if find_spec("onnx") is None:
            raise UnsupportedError(f"a decoder needs the package onnx; {install_hint('repoagent-core', 'llm')}")
        _refuse_other_backend(source.config)
        gguf = _gguf_file(source)
        shape, files = _described(source) if gguf is None else _described_by(gguf, source)
        block = number(options, "block", min(_BLOCKS), max(_BLOCKS))
        settings = {
            "form": choice(options, "form", _FORMS),
            "precision": choice(options, "precision", _PRECISIONS),
            "block": block,
            "lora": truth(options, "lora"),
        }
        capacity = number(options, "capacity", 2, shape.context_length + 1)
        if capacity is not None:
            if settings["form"] != "std":
                raise InvalidArgumentError("parameter 'capacity' is for decoders of the form std: set form = std")
            settings["capacity"] = capacity
        if gguf is not None:
            settings["gguf"] = gguf
        tools = {"onnx": version("onnx"), "numpy": version("numpy")}
        return ConversionPlan(files, _OUTPUT, settings, tools, "any", files)

    def build(self, job: ConversionJob) -> Product:
        """See :class:`repoagent.api.Converter`."""
        from repoagent_llm.builder import build

        job.progress(0, None, "writing the decoder")
        target, options = job.target, dict(job.settings)
        gguf = options.pop("gguf", None)
        made = target / "decoder"
        try:
            build(job.source / (gguf or "."), made, **options)
            notes = [] if gguf is None else [_kept(job.source / gguf, options)]
        except RepoAgentError as error:
            raise _public(error, "", dict.fromkeys((job.source, target), _WHOLE)) from None
        for file in sorted(made.iterdir(), key=lambda file: file.name == _OUTPUT):
            file.rename(target / file.name)
        made.rmdir()
        size = sum(file.stat().st_size for file in target.iterdir())
        return Product(
            {"precision": options["precision"], "form": options["form"]}, (*notes, f"a decoder of {size} bytes")
        )

    def configure(self, config: "ModelConfig", plan: ConversionPlan, product: Product) -> None:
        """See :class:`repoagent.api.Converter`."""
        config.backend = _BACKEND
        config.default_model_filename = ""


def _gguf_file(source: ConversionSource) -> str | None:
    """The GGUF file that is converted; None where it is a checkpoint of Hugging Face."""
    if source.name.endswith(_GGUF):
        return source.name
    from repoagent_llm.builder.gguf_checkpoint import first_parts

    names = list_beneath(source.directory)
    found = first_parts(names)
    if not found or CONFIG in names:
        return None
    if len(found) > 1:
        raise InvalidArgumentError(
            f"{source.label}: has {found[0][:100]} and {found[1][:100]}; the parameter 'input' names the one to convert"
        )
    return found[0]


def _described(source: ConversionSource) -> "tuple[Architecture, tuple[str, ...]]":
    """The architecture of a checkpoint, and its files."""
    from repoagent_llm.builder.architecture import read_architecture

    files = CheckpointFiles(source.directory, source.label)
    files.check_size_of_config()
    try:
        shape = read_architecture(source.directory)
    except RepoAgentError as error:
        raise _public(error, source.label, {source.directory: _WHOLE}) from None
    files.check_tokenizer(shape.vocab_size)
    return shape, files.all


def _described_by(name: str, source: ConversionSource) -> "tuple[Architecture, tuple[str, ...]]":
    """The architecture of a GGUF file, and that file."""
    from repoagent_llm.builder.gguf_checkpoint import GgufCheckpoint, gguf_parts

    label = "" if source.label.endswith(name) else source.label
    parts, held = tuple(gguf_parts(name)), dict[Path, str]()
    with ExitStack() as opened:
        try:
            for part in parts:  # a link may lead out of the model
                held[opened.enter_context(held_beneath(source.directory, part))] = part
            return GgufCheckpoint(*held).shape, parts
        except RepoAgentError as error:
            raise _public(error, label, held) from None
        except OSError as error:
            raise InvalidArgumentError(f"{source.label}: {part[-100:]} cannot be read: {error.strerror}") from None


def _kept(file: Path, options: Mapping[str, Any]) -> str:
    """What became of the file's numbers."""
    from repoagent_llm.builder.gguf_checkpoint import GgufCheckpoint

    types = GgufCheckpoint.open(file).types()
    listed = ", ".join(f"{count} {name}" for name, count in sorted(types.items()))
    if options["precision"] == "fp32":
        return f"GGUF with tensors of {listed}, all of them exact in fp32"
    taken = {"int4": "Q4_0", "int8": "Q8_0"}.get(options["precision"], "")
    fits = options["form"] == "paged" if taken == "Q8_0" else options["block"] == _GGUF_BLOCK
    kept = f"; matrices of {taken} in layers are taken as they are" if fits and taken in types else ""
    return f"GGUF with tensors of {listed}, rounded to {options['precision']}{kept}"


def _refuse_other_backend(config: "ModelConfig | None") -> None:
    if config is not None and (config.backend not in ("", _BACKEND) or config.platform):
        other = config.backend or config.platform
        raise InvalidArgumentError(f"makes models of the backend '{_BACKEND}', but the configuration has '{other}'")


def _public(error: RepoAgentError, label: str, private: Mapping[Path, str]) -> RepoAgentError:
    """``error`` with the names that stand for private paths that it may have."""
    text = " ".join(str(error).split())
    for path in sorted(map(str, private), key=len, reverse=True):  # one may begin as another does
        text = text.replace(f"{path}/", "").replace(path, private[Path(path)])
    kind = UnsupportedError if isinstance(error, UnsupportedError) else InvalidArgumentError
    return kind(f"{label}: {text}" if label else text)
