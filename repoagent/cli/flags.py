"""Flags that several commands have: where agents are found, settings of backends, limits."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from repoagent.errors import did_you_mean
from repoagent.limits import Limits

if TYPE_CHECKING:
    from repoagent.loader.attesting import AttestSettings
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


def take_attest_settings(values: dict[str, Any]) -> "AttestSettings | None":
    """What the flags for receipts ask for; they are taken out of ``values``.

    Raises:
        click.UsageError: one of them makes no sense without ``--attest-key``.
    """
    names = ("key", "directory", "required", "plaintext", "id")
    key, directory, required, plaintext, verifier = (values.pop(f"attest_{name}") for name in names)
    if key is None:
        if directory or required or plaintext or verifier:
            raise click.UsageError("--attest-directory, -required, -plaintext and -id need --attest-key")
        return None
    from repoagent.loader.attesting import AttestSettings

    named = {"verifier": verifier} if verifier else {}
    return AttestSettings(key=key, directory=directory, required=required, plaintext=plaintext, **named)


def converter_flags(command: _F) -> _F:
    """Give ``command`` ``--converter-environment`` and ``--allow-code-conversion``."""
    environment = click.option(
        "--converter-environment",
        multiple=True,
        metavar="FROM=DIR",
        help="The virtual environment in which models of the format FROM are converted; repeat for more.",
    )
    code = click.option(
        "--allow-code-conversion", is_flag=True, help="Convert models that are code, such as pickles, in a jail."
    )
    return environment(code(command))


def take_converter_settings(values: dict[str, Any]) -> "ConverterSettings":
    """What these flags ask for; they are taken out of ``values``.

    Raises:
        InvalidArgumentError: an environment is none.
    """
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
