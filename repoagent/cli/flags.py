"""Flags that several commands have: where agents are found, settings of backends, limits."""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_origin, get_type_hints

import click
from click.core import ParameterSource

from repoagent.errors import did_you_mean
from repoagent.limits import Limits
from repoagent.loader.settings import SETTING, LoaderSettings, Setting

if TYPE_CHECKING:
    from repoagent.loader.converting.environments import ConverterSettings
    from repoagent.loader.discovery import AgentRegistry

_F = TypeVar("_F", bound=Callable[..., Any])

BackendSetting = tuple[str, str, str]
"""The name of a backend ("" for all), of a setting, and its value."""

_PAIR: Final = re.compile(r"(?:(?P<backend>[^,=]*),)?(?P<setting>[^,=]+)=(?P<value>.*)", re.DOTALL)


class _Pair(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``BACKEND,SETTING=VALUE``, or ``SETTING=VALUE`` for all backends."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> BackendSetting:
        if isinstance(value, tuple):
            return value
        match = _PAIR.fullmatch(str(value))
        if match is None:
            # Not repeated, as it may be a secret.
            self.fail("the value is not of the form <backend>,<setting>=<value>", param, ctx)
        return match["backend"] or "", match["setting"], match["value"]


PAIR: Final = _Pair()


_TRUE: Final = frozenset({"true", "on", "1"})
_FALSE: Final = frozenset({"false", "off", "0"})


class _Boolean(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``true``, ``on``, ``1``, ``false``, ``off`` or ``0``, in any case."""

    name = "boolean"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        if isinstance(value, bool):
            return value
        text = str(value).lower()
        if text not in _TRUE | _FALSE:
            self.fail(f"invalid value for bool option: {value}", param, ctx)
        return text in _TRUE


BOOLEAN: Final = _Boolean()


def boolean(*names: str, default: bool, help: str) -> Callable[[_F], _F]:  # noqa: A002 - click's own word
    """An option that takes a boolean, or none for true: ``--x``, ``--x=false``, ``--x 0``."""
    return click.option(
        *names, type=BOOLEAN, is_flag=False, flag_value="true", default=default, show_default=True, help=help
    )


_PATH: Final = click.Path(path_type=Path)
_O = TypeVar("_O")


def flags_of(
    options: type, *names: str, alone: bool = False, kinds: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[_F], _F]:
    """Give a command a flag for each field of the dataclass ``options`` that is a ``setting``.

    Args:
        options: A class of options.
        names: Only these fields; without any, all.
        alone: Whether flags of booleans take no value, in a command whose arguments would be taken for one.
        kinds: Types of values for the kinds that settings name.
    """
    hints = get_type_hints(options)

    def decorate(command: _F) -> _F:
        for one in reversed(_settings(options)):
            if not names or one.name in names:
                command = _flag(one, hints[one.name], alone, kinds)(command)
        return command

    return decorate


def take(options: type[_O], values: dict[str, Any], **given: Any) -> _O:
    """Take the values of these flags out of ``values`` and make options of them, and of what is ``given``."""
    flags = {one.name: _spellings(one)[0].removeprefix("--").replace("-", "_") for one in _settings(options)}
    return options(**{name: values.pop(flag) for name, flag in flags.items() if flag in values}, **given)


def _settings(options: Any) -> list["Field[Any]"]:
    """Its own come before those that it inherits."""
    found = [one for one in fields(options) if SETTING in one.metadata]
    return sorted(found, key=lambda one: one.name not in options.__annotations__)


def _spellings(one: "Field[Any]") -> tuple[str, ...]:
    return one.metadata[SETTING].flags or (f"--{one.name.replace('_', '-')}",)


def _flag(one: "Field[Any]", hint: Any, alone: bool, kinds: Mapping[str, Any]) -> Callable[[_F], _F]:
    declared: Setting = one.metadata[SETTING]
    if hint is bool and alone:
        return click.option(*_spellings(one), is_flag=True, help=declared.text)
    if hint is bool:
        return boolean(*_spellings(one), default=one.default is True, help=declared.text)
    several, required = get_origin(hint) is tuple, one.default is MISSING and one.default_factory is MISSING
    default = one.default_factory if one.default is MISSING else one.default
    return click.option(
        *_spellings(one),
        type=kinds[declared.kind] if declared.kind in kinds else _kind(declared, hint),
        default=None if several or required else default,
        multiple=several,
        required=required,
        show_default=not callable(default) and default not in (None, "", (), MISSING),
        metavar=declared.metavar,
        help=declared.text,
    )


def _kind(declared: Setting, hint: Any) -> Any:
    match declared.kind:
        case None:
            whole = click.IntRange(declared.least, declared.most)
            return whole if hint is int else _PATH if hint == Path | None else None
        case tuple():
            return click.Choice(declared.kind, case_sensitive=False)
        case kind:
            return kind


converter_flags: Final = flags_of(LoaderSettings, "converter_environment", "allow_code_conversion", alone=True)


def take_converter_settings(values: dict[str, Any]) -> "ConverterSettings":
    """What these flags ask for, taken out of ``values``; raises ``InvalidArgumentError`` if an environment is none."""
    from repoagent.loader.converting.environments import ConverterSettings

    return ConverterSettings.parse(values.pop("converter_environment"), values.pop("allow_code_conversion"))


def merge_settings(settings: tuple[BackendSetting, ...]) -> dict[str, dict[str, str]]:
    """Settings by backend and name; the last value wins."""
    merged: dict[str, dict[str, str]] = {}
    for backend, name, value in settings:
        merged.setdefault(backend, {})[name] = value
    return merged


class _Limit(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``NAME=VALUE`` with the name of a limit, in dashes or underscores."""

    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, number = str(value).partition("=")
        one = _LIMITS.get(name.strip().replace("-", "_"))
        if one is None or not equals:
            self.fail(f"'{name}' is not a limit; write NAME=VALUE{did_you_mean(name, _LIMITS)}", param, ctx)
        kind: Any = click.IntRange(one.metadata["least"])
        return one.name, kind.convert(number.strip(), param, ctx)


_LIMITS: Final = {one.name: one for one in fields(Limits)}


def limit_flags(command: _F) -> _F:
    """Give ``command`` the flag ``--limit``, and for each limit a flag of its own, which its help leaves out."""
    for one in reversed(_LIMITS.values()):
        kind = click.IntRange(one.metadata["least"], None)
        command = click.option(
            Limits.flag(one.name), type=kind, default=one.default, help=one.metadata["help"], hidden=True
        )(command)
    text = "A limit on what one model, file or request may take, such as model_files=1000; repeat for more."
    return click.option("--limit", type=_Limit(), multiple=True, metavar="NAME=VALUE", help=text)(command)


def take_limits(values: dict[str, Any]) -> Limits:
    """Take the values of the flags out of ``values``; inside a command only.

    ``--limit`` counts before a limit's own flag, unless that comes from a place of higher rank, as the command line.
    """
    context = click.get_current_context()
    own = {name: values.pop(f"limit_{name}") for name in _LIMITS}
    given = {
        name: value for name, value in values.pop("limit") if _rank(context, "limit") >= _rank(context, f"limit_{name}")
    }
    return Limits(**own | given)


def _rank(context: click.Context, name: str) -> int:
    """Where the value of a flag comes from: the command line ranks highest, then the environment, then the file."""
    sources = (ParameterSource.DEFAULT_MAP, ParameterSource.ENVIRONMENT, ParameterSource.COMMANDLINE)
    source = context.get_parameter_source(name)
    return sources.index(source) if source in sources else -1


agents_from_directory: Final = click.option(
    "--repoagent-from-directory",
    "repoagents_from_directory",
    multiple=True,
    metavar="NAME",
    help="An agent to take from there, though a package offers it too; repeat for more.",
)


def agent_flags(command: _F) -> _F:
    """Give ``command`` ``--repoagent-directory`` and ``--repoagent-from-directory``."""
    directory = click.option(
        "--repoagent-directory",
        type=click.Path(path_type=Path),
        help="Directory of further agents (NAME/agent.py). [default: /opt/tritonserver/repoagents, if it exists]",
    )
    return directory(agents_from_directory(command))


def registry_of(repoagent_directory: Path | None, repoagents_from_directory: tuple[str, ...]) -> "AgentRegistry":
    """The agents that the flags mean."""
    from repoagent.loader.agent_directory import DEFAULT_DIRECTORY
    from repoagent.loader.discovery import AgentRegistry

    return AgentRegistry(repoagent_directory or DEFAULT_DIRECTORY, preferred=repoagents_from_directory)
