"""``--config-file``: the flags of ``repoagent serve`` in a TOML file, and the environment variables for them.

The command line comes before the environment, the environment before the file, the file before the default. A value
from a file is never repeated in a message: it may be a secret.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from repoagent.errors import did_you_mean
from repoagent.nested_text import read_toml

ENVIRONMENT_PREFIX: Final = "REPOAGENT_SERVE"

_LIMIT: Final = "limit-"
_SCALARS: Final = (str, int, float)


def config_file_option(command: Any) -> Any:
    """Give ``command`` the flag ``--config-file``."""
    return click.option(
        "--config-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_use,
        help="TOML file with flags: their names without '--', and their values.",
    )(command)


def environment_notes(ctx: click.Context) -> tuple[str, ...]:
    """One sentence for each variable that begins like those of the flags and is none of them."""
    names = {parameter.name for parameter in ctx.command.params if parameter.name}
    known = {f"{ENVIRONMENT_PREFIX}_{name.upper()}" for name in names}
    given = (name for name in os.environ if name.startswith(f"{ENVIRONMENT_PREFIX}_"))
    return tuple(
        f"environment variable {name} belongs to no flag{did_you_mean(name, known)}"
        for name in sorted(given)
        if name not in known
    )


def _use(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.default_map = {**(ctx.default_map or {}), **_read(path, ctx)}


def _read(path: Path, ctx: click.Context) -> dict[str, Any]:
    """The values of the file by the names of the parameters, each as the command line would have it.

    Raises:
        click.UsageError: it cannot be read, or has a key that is no flag or a value that the flag does not take.
    """
    try:
        text = path.read_text(encoding="utf-8")
        document = read_toml(text)
    except OSError as error:
        raise click.UsageError(f"--config-file: cannot read {path}: {error.strerror}", ctx) from error
    except ValueError as error:
        raise click.UsageError(f"--config-file: {path} is not TOML: {error}", ctx) from error
    options = _options(ctx)
    values: dict[str, Any] = {}
    for written, key, value in _flat(document):
        place = f"{path}:{_line(text, written)}"
        option = options.get(key)
        if option is None and key != written:
            limits = [name.removeprefix(_LIMIT).replace("-", "_") for name in options if name.startswith(_LIMIT)]
            raise click.UsageError(f"{place}: [limits] has no '{written}'{did_you_mean(written, limits)}", ctx)
        if option is None or option.name is None:
            meant = did_you_mean(key.lower().lstrip("-").replace("_", "-"), options)
            raise click.UsageError(f"{place}: there is no flag '{key}'{meant}", ctx)
        if option.name in values:
            raise click.UsageError(f"{place}: '{key}' is another name of a flag that is given above", ctx)
        values[option.name] = _value(option, value, f"{place}: '{key}'", ctx)
    for one in values.get("limit", ()):
        name = one.partition("=")[0].strip().replace("-", "_")
        if f"limit_{name}" in values:
            place = f"{path}:{_line(text, 'limit')}"
            raise click.UsageError(f"{place}: 'limit' has '{name}', which this file gives elsewhere as well", ctx)
    return values


def _flat(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """The keys of the file as they are written, as names of flags, and their values; ``[limits]`` is a table."""
    for key, value in document.items():
        if key == "limits" and isinstance(value, dict):
            yield from ((name, f"{_LIMIT}{name.replace('_', '-')}", limit) for name, limit in value.items())
        else:
            yield key, key, value


def _options(ctx: click.Context) -> Mapping[str, click.Option]:
    """The flags that a file may have, by every name without its dashes."""
    options = (parameter for parameter in ctx.command.params if isinstance(parameter, click.Option))
    return {name.lstrip("-"): option for option in options if option.name != "config_file" for name in option.opts}


def _value(option: click.Option, value: object, place: str, ctx: click.Context) -> Any:
    """``value`` as text, or texts for a flag that may be given again, which the flag was seen to take."""
    if isinstance(value, list) and not option.multiple:
        raise click.UsageError(f"{place} takes one value, not several", ctx)
    texts = [_text(each, place, ctx) for each in (value if isinstance(value, list) else [value])]
    for text in texts:
        _check(option, text, place, ctx)
    return texts if option.multiple else texts[0]


def _text(value: object, place: str, ctx: click.Context) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, _SCALARS):
        raise click.UsageError(
            f"{place} takes a text, a number or a boolean; the only table is [limits], and dates have no meaning", ctx
        )
    return str(value)


def _check(option: click.Option, text: str, place: str, ctx: click.Context) -> None:
    try:
        option.type.convert(text, option, ctx)
    except click.BadParameter as error:
        hidden = _without(text, error.message)
        raise click.UsageError(f"{place}: {_without(text.partition('=')[2], hidden)}", ctx) from None


def _without(text: str, message: str) -> str:
    """The message without the value; a number, which may stand for a limit as well, only where it comes first."""
    hidden = message.replace(repr(text), "the value")
    return re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "the value", hidden, count=text.isdigit()) if text else hidden


def _line(text: str, key: str) -> int:
    """The number of the line where ``key`` is given its value."""
    names = "|".join(_spellings(key))
    found = re.search(rf"^[ \t]*(?:\[+[ \t]*)?(?:{names})[ \t]*[=.\]]", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _spellings(key: str) -> Iterator[str]:
    for quote in ("", '"', "'"):
        yield re.escape(f"{quote}{key}{quote}")
