"""Every command and every flag of the command line is documented."""

import re
from collections.abc import Iterator
from typing import Any

import click
import pytest

from repoagent.cli.main import program


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command below ``group``, of this package and of plug-ins, with what a person types."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(program, "repoagent"))
_REPEATED = re.compile(r"\brepeat\b|several|again")
_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
_UNIT = re.compile(r"(?i)second|bytes|days|count|rate|port\b|level|most|how (deeply|long)|longest|pings|size|factor")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_is_on_one_page(name: str, pages: dict[str, Any]) -> None:
    mentioned = [page for page in pages.values() if re.search(rf"{name}(?![\w-])", page.text)]
    assert mentioned, f"no page mentions '{name}'"
    missing = [undocumented(COMMANDS[name], page.text) for page in mentioned]
    assert min(missing, key=len) == [], f"no page that mentions '{name}' has all of its flags"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_flag_has_a_help_text(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert [option.opts[0] for option in options(command) if not option.help] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_has_the_default_and_whether_a_flag_can_be_repeated(name: str) -> None:
    context = click.Context(COMMANDS[name])
    helps = {option: (option.get_help_record(context) or ("", ""))[1] for option in options(COMMANDS[name])}
    hidden = [
        option.opts[0]
        for option, text in helps.items()
        if option.to_info_dict()["default"] and not option.is_flag and "default: " not in text.lower()
    ]
    assert hidden == []
    assert [option.opts[0] for option, text in helps.items() if option.multiple and not _REPEATED.search(text)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_has_a_unit(name: str) -> None:
    numbers = [option for option in options(COMMANDS[name]) if isinstance(option.type, _NUMBERS)]
    assert [option.opts[0] for option in numbers if not _UNIT.search(f"{option.name} {option.help}")] == []


@pytest.mark.parametrize("name", ["agents", "check", "policy", "prepare", "run", "serve", "version"])
def test_every_command_of_the_project_is_in_the_overview(name: str, pages: dict[str, Any]) -> None:
    assert f"| `repoagent {name}`" in pages["docs/reference/cli.md"].text


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]


def undocumented(command: click.Command, text: str) -> list[str]:
    """The options of which no spelling is in ``text``; one line may stand for all limits of ``serve``."""
    limits = "`--limit-...`" in text
    return [
        option.opts[0]
        for option in options(command)
        if not (limits and option.opts[0].startswith("--limit-"))
        and not any(re.search(rf"(?<![\w-]){spelling}(?![\w-])", text) for spelling in option.opts)
    ]


@pytest.mark.parametrize(
    "name", ["repoagent check", "repoagent agents list", "repoagent agents inspect", "repoagent agents new"]
)
def test_the_page_of_the_command_line_has_every_flag_where_the_command_is(name: str, pages: dict[str, Any]) -> None:
    heading = " ".join(name.split()[:2])
    section = pages["docs/reference/cli.md"].text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert undocumented(COMMANDS[name], section) == []
