"""What is logged while ``repoagent serve`` runs, by its flags; clients may change it through the logging extension."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import click

from repoagent.cli.progress import ProgressLine
from repoagent.server.enums import LogLevel
from repoagent.server.logs import ServerLog, server_log
from repoagent_server.program.options import LogOptions

LOGGER: Final = "repoagent_server"
"""The name under which this distribution logs, beside the core's."""
_LOGGERS: Final = ("repoagent", LOGGER)


@contextmanager
def configure(options: LogOptions, line: ProgressLine | None = None) -> Iterator[None]:
    """Send what the project logs to the place that ``options`` name, as long as the block lasts; above ``line``."""
    log = server_log()
    _set(log, options)
    if line is not None:
        log.around = line.hidden
    log.attach(LOGGER)
    for name in _LOGGERS:
        logging.getLogger(name).propagate = False
    try:
        yield
    finally:
        log.detach()
        for name in _LOGGERS:
            logging.getLogger(name).propagate = True


def _set(log: ServerLog, options: LogOptions) -> None:
    try:
        log.set_file(None if options.file is None else str(options.file))
    except OSError as error:
        raise click.UsageError(f"--log-file: cannot write to '{options.file}': {error.strerror}") from error
    log.set_format(options.format)
    log.set_verbose(options.verbose)
    for level, on in (
        (LogLevel.INFO, options.info),
        (LogLevel.WARN, options.warning),
        (LogLevel.ERROR, options.error),
    ):
        log.enable(level, on)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their header, with rules; begins and ends with a line break."""
    rows = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = "+".join(["", *("-" * (width + 2) for width in widths), ""])
    lines = [rule, _row(header, widths), rule, *(_row(row, widths) for row in rows), rule]
    return "\n" + "\n".join(lines) + "\n"


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "|".join(["", *(f" {cell.ljust(width)} " for cell, width in zip(cells, widths, strict=True)), ""])


def _printable(cell: str) -> str:
    """``cell`` on one line, whatever a name or a reason may hold."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cell)
