"""The chat templates of a model, and the special tokens that they name: files beside its tokenizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from repoagent.beneath.opening import list_beneath, read_beneath
from repoagent.errors import ConfigError
from repoagent.limits import Limits
from repoagent.nested_text import read_json

_TEMPLATE: Final = "chat_template.jinja"
_FURTHER: Final = "additional_chat_templates"
_CONFIG: Final = "tokenizer_config.json"
_SPECIAL: Final = "special_tokens_map.json"
_TOKENS: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MOST: Final = 64
"""Templates of one model."""


@dataclass(frozen=True, slots=True)
class ChatSource:
    """Templates by name, ``default`` first of all, and texts of special tokens by theirs."""

    templates: Mapping[str, str]
    special: Mapping[str, str]


def read_source(folder: Path, limits: Limits) -> ChatSource | None:
    """What is in ``folder``; None if there is no template.

    Raises:
        ConfigError: a file cannot be read, or a template is too large.
    """
    config = _json(folder, _CONFIG, limits)
    templates = _named(folder, config.get("chat_template"))
    if (text := _text(folder, _TEMPLATE, limits)) is not None:
        templates = {"default": text}
    templates |= _further(folder, limits)
    if not templates:
        return None
    for name, template in templates.items():
        _check_size(folder, name, template, limits)
    special = _special(_json(folder, _SPECIAL, limits)) | _special(config)
    return ChatSource(templates, special)


def _named(folder: Path, given: object) -> dict[str, str]:
    """The member ``chat_template``: a text, or a list of named ones."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        pairs = {item.get("name"): item.get("template") for item in given}
        if all(isinstance(name, str) and isinstance(text, str) for name, text in pairs.items()):
            return pairs
    raise ConfigError(
        f"'{folder.name}/{_CONFIG}': chat_template must be a text, or a list of objects with name and template"
    )


def _further(folder: Path, limits: Limits) -> dict[str, str]:
    """``additional_chat_templates/NAME.jinja``, as transformers writes them."""
    try:
        names = sorted(list_beneath(folder, _FURTHER))
    except OSError:
        return {}
    found: dict[str, str] = {}
    for name in names:
        if name.endswith(".jinja") and len(found) < _MOST:
            text = _text(folder, f"{_FURTHER}/{name}", limits)
            found[name.removesuffix(".jinja")] = text or ""
    return found


def _special(values: Mapping[str, Any]) -> dict[str, str]:
    """Those that templates may name; files have them as texts, or as objects with one."""
    found = {}
    for name in _TOKENS:
        value = values.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _check_size(folder: Path, name: str, template: str, limits: Limits) -> None:
    size = len(template.encode(errors="replace"))
    if size > limits.chat_template_bytes:
        raise ConfigError(
            f"'{folder.name}': chat template '{name[:60]}' has {size} bytes, more than {limits.chat_template_bytes}; "
            f"{Limits.flag('chat_template_bytes')} of the server sets the limit"
        )


def _json(folder: Path, name: str, limits: Limits) -> dict[str, Any]:
    text = _text(folder, name, limits)
    if text is None:
        return {}
    try:
        found = read_json(text)
    except ValueError as error:
        raise ConfigError(f"'{folder.name}/{name}' is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"'{folder.name}/{name}' must be a JSON object")
    return found


def _text(folder: Path, name: str, limits: Limits) -> str | None:
    try:
        return read_beneath(folder, name, limit=limits.text_file_bytes).decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{folder.name}/{name}' is not UTF-8: {error}") from None
    except OSError as error:
        raise ConfigError(f"'{folder.name}/{name}' cannot be read: {error.strerror or error}") from error
