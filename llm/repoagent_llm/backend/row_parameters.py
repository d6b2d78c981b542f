"""What a request asks for, row by row: tensors, ``sampling_parameters``, parameters, and the model's defaults."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from repoagent.beneath.opening import read_beneath
from repoagent.errors import ConfigError, InvalidArgumentError
from repoagent.limits import Limits
from repoagent.nested_text import read_json
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import Array
from repoagent_llm.backend.request_limits import DEFAULT_REQUEST_LIMITS, RequestLimits
from repoagent_llm.backend.tensors import INPUTS, PROMPTS

_NAME: Final = "generation_config.json"
_REAL: Final = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
}
"""Names there and in a request, and the range of the value."""
_WHOLE: Final = {
    "top_k": "top_k",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
"""Names there, and those in a request."""
_DRAWS: Final = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""What means nothing without sampling."""
_MOST_END_IDS: Final = 1024


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values by the names of requests; a request that sets one overrides it."""

    always: Mapping[str, Any] = field(default_factory=dict)
    """For requests that do not mention sampling."""
    sampled: Mapping[str, Any] = field(default_factory=dict)
    """For requests that are sampled, as those with ``sampling_parameters``."""
    end_ids: tuple[int, ...] | None = None
    """None leaves the decoder's own."""


def read_generation_defaults(folder: Path, limits: Limits) -> GenerationDefaults:
    """What ``folder`` has; nothing where there is no file.

    Raises:
        ConfigError: the file cannot be read, or a value makes no sense.
    """
    try:
        values = read_json(read_beneath(folder, _NAME, limit=limits.text_file_bytes))
    except FileNotFoundError:
        return GenerationDefaults()
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{folder.name}/{_NAME}' cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"'{folder.name}/{_NAME}' must be a JSON object")
    where = f"'{folder.name}/{_NAME}'"
    found: dict[str, Any] = {}
    for name, (low, high) in _REAL.items():
        if (value := values.get(name)) is not None:
            found[name] = _real(where, name, value, low, high)
    for name, wanted in _WHOLE.items():
        if (value := values.get(name)) is not None:
            found[wanted] = _whole(where, name, value)
    found = {name: value for name, value in found.items() if value or name == "temperature"}  # 0 means not set
    quiet = {name: value for name, value in found.items() if name not in _DRAWS}
    draws = values.get("do_sample") is True
    return GenerationDefaults({"top_p": 1.0, **found} if draws else quiet, found, _end_ids(where, values))


def _real(where: str, name: str, value: object, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise ConfigError(f"{where}: {name} must be a number from {low:g} to {high:g}, not {str(value)[:60]}")
    return float(value)  # type: ignore[arg-type]


def _whole(where: str, name: str, value: object) -> int:
    if type(value) is not int or not -1 <= value < 1 << 31:
        raise ConfigError(f"{where}: {name} must be a whole number, not {str(value)[:60]}")
    return max(0, value)


def _end_ids(where: str, values: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = values.get("eos_token_id")
    if given is None:
        return None
    ids = given if isinstance(given, list) else [given]
    if not ids or len(ids) > _MOST_END_IDS or any(type(item) is not int or item < 0 for item in ids):
        raise ConfigError(f"{where}: eos_token_id must be a token, or a list of at most {_MOST_END_IDS} of them")
    return tuple(dict.fromkeys(ids))


_NO_DEFAULTS: Final = GenerationDefaults()

RowParameters = Mapping[str, Any]
"""Values by the names of inputs: numbers, truth values, texts, lists of texts, and arrays for matrices."""

#: Those that are fields of the executor's SamplingConfig, by the same names.
SAMPLING: Final = (
    "beam_search_diversity_rate",
    "beam_width",
    "early_stopping",
    "frequency_penalty",
    "length_penalty",
    "min_p",
    "min_tokens",
    "no_repeat_ngram_size",
    "num_return_sequences",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "top_p_decay",
    "top_p_min",
    "top_p_reset_ids",
)
#: What else may be stated without a tensor.
_OTHERS: Final = (
    "allowed_token_ids",
    "bad_words",
    "end_id",
    "ignore_eos",
    "logit_bias",
    "max_tokens",
    "prompt_log_probs",
    "stop_token_ids",
    "stop_words",
    "top_log_probs",
    "truncate_prompt_tokens",
)
#: Other names: of older releases, and of vLLM's sampling parameters.
_ALIASES: Final = {
    "logprobs": "top_log_probs",
    "min_length": "min_tokens",
    "n": "num_return_sequences",
    "prompt_logprobs": "prompt_log_probs",
    "random_seed": "seed",
    "stop": "stop_words",
}
_KNOWN: Final = frozenset((*SAMPLING, *_OTHERS, *_ALIASES))


def row_parameters_of(
    request: InferRequest,
    *,
    batching: bool,
    limits: RequestLimits = DEFAULT_REQUEST_LIMITS,
    defaults: GenerationDefaults = _NO_DEFAULTS,
) -> Iterator[RowParameters]:
    """The parameters of each row of ``request``; one that does not batch has one row.

    A tensor counts more than a value in ``sampling_parameters``, that more than a request parameter, and that more than
    ``defaults``.

    Raises:
        InvalidArgumentError: a value cannot be read, or there is no prompt, or more elements than ``limits`` allow.
    """
    arrays = {name: tensor.array for name, tensor in request.inputs.items()}
    given = [name for name in PROMPTS if name in arrays]
    if len(given) != 1:
        found = " and ".join(map(repr, given)) or "none of them"
        raise InvalidArgumentError(f"a request needs one of the inputs {', '.join(PROMPTS)}; this one has {found}")
    if not batching:
        yield _row(arrays, request.asked.parameters, limits, defaults)
        return
    for row in range(arrays[given[0]].shape[0]):
        yield _row({name: array[row] for name, array in arrays.items()}, request.asked.parameters, limits, defaults)


def _row(
    arrays: Mapping[str, Array], parameters: Mapping[str, Any], limits: RequestLimits, defaults: GenerationDefaults
) -> RowParameters:
    values = {name: _value(name, array, limits) for name, array in arrays.items()}
    text = values.pop("sampling_parameters", None)
    if text is not None:
        limits.check_parameters(text)
    spoken = {} if text is None else {"top_p": 1.0, **defaults.sampled, **_sampling_parameters(text)}
    known = {name: value for name, value in parameters.items() if name in _KNOWN}
    wanted = {**_renamed(known), **spoken, **_renamed(values)}
    # Recommendations are for one text at a time.
    return wanted if wanted.get("beam_width", 1) not in (0, 1) else {**defaults.always, **wanted}


def _renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_ALIASES.get(name, name): value for name, value in values.items()}


def _value(name: str, array: Array, limits: RequestLimits) -> Any:
    form = INPUTS.get(name)
    dims = (1,) if form is None else form.dims
    if len(dims) > 1:
        return array
    if dims == (1,) and array.size != 1:  # as a configuration with other dimensions lets it through
        raise InvalidArgumentError(f"input '{name}' must have one element for each text, not {array.size}")
    if name != "input_ids":
        limits.check_count(name, array.size)
    elements = array.ravel().tolist()
    if array.dtype.kind in "OSU":
        elements = [_text(name, element) for element in elements]
    return elements if dims == (-1,) else elements[0]


def _text(name: str, element: bytes | str) -> str:
    if isinstance(element, str):
        return element
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"input '{name}' is not UTF-8: {error}") from None


def _short(name: str) -> str:
    return name if len(name) <= 40 else f"{name[:40]}..."


def _sampling_parameters(text: str) -> dict[str, Any]:
    """Those of vLLM's names and meaning that there are here: text is drawn unless the temperature is 0."""
    try:
        values = read_json(text)
    except ValueError as error:
        raise InvalidArgumentError(f"input 'sampling_parameters' is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise InvalidArgumentError(f"input 'sampling_parameters' must be a JSON object, not a {kind}")
    unknown = sorted(values.keys() - _KNOWN)
    if unknown:
        raise InvalidArgumentError(
            f"sampling_parameters: {', '.join(map(_short, unknown[:5]))} is not known; there are "
            f"{', '.join(sorted(_KNOWN))}"
        )
    return _renamed({name: value for name, value in values.items() if value is not None})
