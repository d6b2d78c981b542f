"""``repoagent reload READY_FILE``: replace the worker processes of a server that runs, without a lost request."""

import os
import signal
from pathlib import Path

import click

from repoagent.beneath.opening import read_beneath
from repoagent.errors import NotFoundError, UnavailableError, UnsupportedError
from repoagent.nested_text import read_json

_LARGEST = 1 << 16


@click.command("reload")
@click.argument("ready_file", type=click.Path(path_type=Path))
def reload(ready_file: Path) -> None:
    """Have the server that wrote READY_FILE replace its worker processes.

    Start it with --processes and --ready-file. New workers take the places of the others one after the other, with the
    code that is installed now. Nothing is asked of the agents, and no request is lost.
    """
    process = _process(ready_file)
    if not _takes(process):
        raise UnsupportedError(
            f"process {process} of {ready_file} replaces no workers: start the server with --processes=N"
        )
    try:
        os.kill(process, signal.SIGUSR2)
    except PermissionError:
        raise UnavailableError(f"process {process} of {ready_file} belongs to another user") from None
    click.echo(f"process {process} replaces its workers; its log has the end of it")


def _process(ready_file: Path) -> int:
    try:
        document = read_json(read_beneath(ready_file.absolute().parent, ready_file.name, limit=_LARGEST))
    except FileNotFoundError:
        raise NotFoundError(f"there is no {ready_file}: the server writes it once it serves (--ready-file)") from None
    except (OSError, ValueError) as error:
        raise NotFoundError(f"{ready_file} is not what --ready-file writes: {error}") from None
    process = document.get("pid") if isinstance(document, dict) else None
    if type(process) is not int or process <= 1:
        raise NotFoundError(f"{ready_file} is not what --ready-file writes: it has no 'pid'")
    return process


def _takes(process: int) -> bool:
    """Whether it has a handler of the signal, which would end it otherwise.

    Raises:
        NotFoundError: there is no such process.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        raise NotFoundError(f"process {process} has ended") from None
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(caught >> (signal.SIGUSR2 - 1) & 1)
