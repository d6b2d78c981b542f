"""``repoagent run MODEL -- COMMAND...``: run a model's agents, and give the result to another server for its life."""

import math
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from repoagent.cli.interrupt import StopSignals
from repoagent.cli.loading import (
    load_model,
    loader_flags,
    open_model,
    open_options,
    show_report,
    take_charge,
)
from repoagent.errors import CancelledError, InternalError, InvalidArgumentError, RepoAgentError
from repoagent.public_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repoagent.handover.command import Command
    from repoagent.loader.chain import LoadedChain

_ASKED_TO_STOP: Final = 75
"""EX_TEMPFAIL of sysexits.h: an agent wanted the model unloaded, for example because its license has ended."""
_KEYS: Final = frozenset({signal.SIGINT, signal.SIGQUIT})


class _Seconds(click.FloatRange):
    """A number of seconds, with an end: no comparison with ``nan`` is ever true, and ``inf`` is no wait that ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds.", param, ctx)
        return seconds


@click.command()
@click.argument("model")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@loader_flags
@click.option("--at", type=click.Path(path_type=Path), help="A link to the model: a path that is the same each time.")
@click.option("--ready-url", metavar="URL", help="The command is ready when this URL answers. [default: at once]")
@click.option(
    "--ready-timeout",
    type=_Seconds(0, min_open=True),
    default=600,
    show_default=True,
    help="Seconds that the command may take to be ready; then it is stopped.",
)
@click.option(
    "--stop-timeout",
    type=_Seconds(0),
    default=25,
    show_default=True,
    help="Seconds that the command may take to stop; then it is killed.",
)
@click.option(
    "--remove-when-ready", is_flag=True, help="Remove the files when the command is ready: it reads them only once."
)
@click.option("--allow-unchecked", is_flag=True, help="Allow a model that no agent looked at.")
def run(model: str, command: tuple[str, ...], **values: Any) -> None:
    """Run the agents of MODEL (a directory or a URL), then COMMAND with the result.

    In COMMAND, {model} is the directory of the result, {version} the newest version directory in it, {name} the name of
    the model, and {repository} a directory with the one entry {name}; $REPOAGENT_MODEL is {model}, too. Signals go to
    COMMAND. When it ends, so does all that it started, and the files go.

    Exits with the status of COMMAND, 128 plus the number of the signal that ended it, 126 or 127 if it cannot be
    started, 1 if the model is refused or COMMAND is not ready in time, 75 if an agent asked for the end.
    """
    from repoagent.handover.command import CommandError, check_ready_url

    if values["ready_url"] is not None:
        try:
            check_ready_url(values["ready_url"])
        except InvalidArgumentError as error:
            raise click.BadParameter(error.message, param_hint="--ready-url") from None
    stop = take_charge()
    try:
        status = _run(model, command, values, stop)
    except CommandError as error:
        click.echo(f"repoagent: {printable(error.message)}", err=True)
        status = error.status
    except RepoAgentError as error:
        show_report(getattr(error, "report", None), err=True)
        if not stop.number:
            raise
        status = 128 + stop.number
    sys.exit(status)


def _run(model: str, words: "Sequence[str]", values: dict[str, Any], stop: StopSignals) -> int:
    from repoagent.config import default_config, select_versions
    from repoagent.handover.command import Command, fill_in, program_of, stable_link
    from repoagent.loader.assembly import open_loader

    requests = _Requests()
    with ExitStack() as resources:
        options, plugins = open_options(values, resources)
        loader = open_loader(options, plugins, resources, requests.ask)
        source = open_model(model, plugins.registry("filesystems"), options.limits)
        program = program_of(words[0])
        loader.admit_command(source.name, program)
        chain = load_model(loader, source, stop, allow_unchecked=values["allow_unchecked"])
        show_report(chain.report, err=True)
        with ExitStack() as linked:
            try:
                place, repository = _place(chain)
                if values["at"] is not None:
                    linked.enter_context(stable_link(values["at"], place))
                    place = values["at"].absolute()
                versions = select_versions(chain.config or default_config(chain.name), chain.version_dirs)
                newest = str(place / str(versions[-1])) if versions else None
                named = {"model": str(place), "version": newest, "name": chain.name, "repository": str(repository)}
                filled = fill_in(words, named)
                chain.attest(versions)
                stop.hold()
                if stop.is_set():
                    raise CancelledError("stopped before the command was started")
                if program == words[0]:  # perhaps the model has a part in it
                    program = filled[0]
                running = Command(
                    program, filled, model=str(place), stop_seconds=values["stop_timeout"], locks=loader.locks
                )
            except BaseException as error:
                chain.fail(error)
                raise
            stop.forward(running.send, but=_KEYS if running.shares_group else frozenset())
            requests.stop(running)
            status = _serve(chain, running, values)
    return _ASKED_TO_STOP if requests.reason else status


def _place(chain: "LoadedChain") -> tuple[Path, Path]:
    """The directory of the model, whose last part is its name, and one that holds nothing but it."""
    place = Path(chain.files.local_path())
    if chain.private and place.name == chain.name and [entry.name for entry in place.parent.iterdir()] == [chain.name]:
        return place, place.parent
    repository = chain.new_directory("repository")
    link = repository / chain.name
    link.symlink_to(place.absolute())
    return link, repository


def _serve(chain: "LoadedChain", running: "Command", values: dict[str, Any]) -> int:
    """Take ``chain`` through its life beside that of the command, and return the status to exit with."""
    from repoagent.handover.command import wait_until_ready

    ended, late = threading.Event(), threading.Event()

    def watch() -> None:
        url = values["ready_url"]
        if url is not None and not wait_until_ready(url, values["ready_timeout"], ended):
            if not ended.is_set():
                late.set()
                running.stop()
            return
        chain.complete()
        if values["remove_when_ready"]:
            chain.unlink_files()
        click.echo(f"repoagent: {printable(chain.name)}: ready", err=True)

    watcher = threading.Thread(target=watch, name="repoagent-ready")
    watcher.start()
    status = running.wait()
    ended.set()
    watcher.join()
    if late.is_set():
        error = InternalError(f"the command was not ready after {values['ready_timeout']:g} s")
    else:
        error = InternalError(f"the command ended before it was ready, with status {status}")
    if chain.report.outcome == "loading":
        chain.fail(error)
        click.echo(f"repoagent: {printable(str(error))}", err=True)
    else:
        chain.unload()
        chain.unload_complete()
        if any(action.error for entry in chain.report.entries for action in entry.actions):
            show_report(chain.report, err=True)
    return 1 if late.is_set() else status


class _Requests:
    """What agents ask for: the end of the command. They may ask before it has begun."""

    def __init__(self) -> None:
        self.reason = ""
        self._lock = threading.Lock()
        self._running: Command | None = None

    def ask(self, model: str, reason: str) -> None:
        """An agent wants its model unloaded."""
        with self._lock:
            self.reason = self.reason or reason
            if self._running is not None:
                self._running.stop()
        # Last: no one may read our output any more.
        click.echo(f"repoagent: {printable(model)}: the command is stopped: {printable(reason)}", err=True)

    def stop(self, running: "Command") -> None:
        """Stop ``running`` when one is asked for; now if one has been."""
        with self._lock:
            self._running = running
            if self.reason:
                running.stop()
