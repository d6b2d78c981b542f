"""The ``repoagent`` program: a group whose commands come from this package and from plug-ins.

Exit status: 0 all is well; 1 what was asked for failed (a model was refused, a digest differs); 2 the command line
itself is wrong, or a package is missing; 130 interrupted.
"""

import gc
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from io import TextIOWrapper
from typing import Any, Final, NoReturn

import click

from repoagent.api.hooks import CommandSpec
from repoagent.errors import RepoAgentError
from repoagent.installing import install_hint
from repoagent.public_text import printable

_OWN: Final[Mapping[str, CommandSpec]] = {
    "agents": CommandSpec("repoagent.cli.agents:agents", "List, inspect and create agents."),
    "audit": CommandSpec("repoagent.cli.audit:audit", "Verify the audit log of a server."),
    "check": CommandSpec("repoagent.cli.check:check", "Run the agents of a model without serving it."),
    "convert": CommandSpec("repoagent.cli.convert:convert", "Convert a model file, and print its configuration."),
    "doctor": CommandSpec("repoagent.cli.doctor:doctor", "Report what this machine can run, and what it lacks."),
    "fetch": CommandSpec("repoagent.cli.fetch:fetch", "Download models into the cache before they are needed."),
    "policy": CommandSpec("repoagent.cli.policy:policy", "Check and explain a policy for agents."),
    "prepare": CommandSpec("repoagent.cli.prepare:prepare", "Run agents, and leave the result for another server."),
    "run": CommandSpec("repoagent.cli.run:run", "Run agents, and give the result to a command for its life."),
    "version": CommandSpec("repoagent.cli.doctor:print_version", "Print the versions of repoagent and what it uses."),
}

# Commands that live in packages of their own: what to install when one is asked for and is not there.
_PACKAGES: Final[Mapping[str, str]] = {
    "access": "repoagent-server",
    "attest": "repoagent-attest",
    "bridge": "repoagent-capi",
    "checksum": "repoagent-checksum",
    "decrypt": "repoagent-decrypt",
    "encrypt": "repoagent-decrypt",
    "keygen": "repoagent-decrypt",
    "license": "repoagent-license",
    "rekey": "repoagent-decrypt",
    "reload": "repoagent-server",
    "scan": "repoagent-scan",
    "serve": "repoagent-server",
    "sign": "repoagent-verify",
    "verify": "repoagent-verify",
}


class PluginGroup(click.Group):
    """A group that knows its commands by name and help line, and imports one only when it is invoked."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self._specs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        spec = self._specs.get(cmd_name)
        if spec is not None:
            return load(spec.target)
        if cmd_name in _PACKAGES:
            package = _PACKAGES[cmd_name]
            raise click.UsageError(f"'{cmd_name}' comes with another package; {install_hint(package)}", ctx)
        if ctx.resilient_parsing:  # the shell completes a word, and knows best
            return None
        from repoagent.errors import did_you_mean

        known = sorted(
            {*self._specs, *_PACKAGES}
        )  # also a command whose package is missing, which states what to install
        raise click.UsageError(f"there is no command '{cmd_name}'{did_you_mean(cmd_name, known)}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, spec.help) for name, spec in sorted(self._specs.items())])

    @cached_property
    def _specs(self) -> Mapping[str, CommandSpec]:
        from repoagent.loader.plugins import PluginManager

        with PluginManager() as plugins:
            return plugins.registry("commands", _OWN)


def load(target: str) -> click.Command:
    """The command ``module:attribute``."""
    module, _, attribute = target.partition(":")
    with _without_collections():
        command: Any = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command), f"{target} is not a click command"
    return command


@contextmanager
def _without_collections() -> Iterator[None]:
    """What an import makes stays: looking through all of it for garbage again and again is a seventh of a start."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"repoagent {version('repoagent-core')}")
        ctx.exit()


@click.group(cls=PluginGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit; `repoagent version` prints those of the libraries, too.",
)
def program() -> None:
    """A model server that runs agents whenever it loads or unloads a model.

    Agents verify, decrypt, fetch or convert a model's files. `repoagent serve` runs them and serves the result.
    """


def main() -> None:
    """The console script ``repoagent``."""
    run(program, "repoagent")


def run(command: click.Command, name: str, **extra: Any) -> NoReturn:
    """End the process with what ``command`` makes of the command line, as the program ``name``.

    Errors of the project and of the machine become one line on stderr and exit status 1. ``extra`` goes to the
    context of the command, such as ``default_map``.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as of stderr: a name need not be text here
    try:
        sys.exit(command(prog_name=name, standalone_mode=False, **extra))
    except click.Abort:  # click's name for an interrupt
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RepoAgentError as error:
        click.echo(f"{name}: {_printable(error.message)}", err=True)
        sys.exit(1)
    except OSError as error:  # the disk under our output is full, a file of the machine's cannot be read
        click.echo(f"{name}: {_printable(str(error))}", err=True)
        sys.exit(1)


def _printable(text: str) -> str:
    """Messages of several lines keep them: the reasons of a converter's process, for example."""
    return "\n".join(printable(line) for line in text.splitlines())
