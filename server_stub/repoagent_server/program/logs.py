"""What is logged while ``repoagent serve`` runs, as its flags say; clients may change it by the logging extension."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from repoagent.cli.progress import ProgressLine
from repoagent.server.enums import LogLevel
from repoagent.server.logs import ServerLog, server_log
from repoagent_server.program.options import LogOptions

__all__ = ["LOGGER", "configure"]

#: The name under which this distribution logs, beside the core's.
LOGGER: Final = "repoagent_server"
_LOGGERS: Final = ("repoagent", LOGGER)


@contextmanager
def configure(options: LogOptions, line: ProgressLine | None = None) -> Iterator[None]:
    """Send what the project logs to the place that ``options`` say, as long as the block lasts; above ``line``."""
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
