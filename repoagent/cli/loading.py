"""What the commands share that run a model's agents: the flags of a loader, the model, the report of its load."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from repoagent.cli.flags import agent_flags, flags_of, limit_flags, take, take_limits
from repoagent.cli.interrupt import StopSignals
from repoagent.cli.progress import shown_progress
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError
from repoagent.loader.settings import AttestOptions, AuditOptions, LoaderSettings
from repoagent.public_text import printable

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport
    from repoagent.audit import Audit
    from repoagent.limits import Limits
    from repoagent.loader.assembly import LoaderOptions
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.loader import Loader
    from repoagent.loader.plugins import PluginManager
    from repoagent.storage.repositories.sources import ModelSource

_F = TypeVar("_F", bound=Callable[..., Any])
_UNCHECKED: Final = (
    "no agent looked at model '{}': neither its configuration nor a policy names one; name one, or use "
    "--allow-unchecked"
)
_AUDIT: Final = ("file", "required", "key")
_ATTEST: Final = ("key", "directory", "required", "plaintext", "verifier")


def loader_flags(command: _F) -> _F:
    """Give ``command`` the flags of a loader, which mean what they mean to ``repoagent serve``."""
    command = flags_of(AttestOptions, *_ATTEST, alone=True)(limit_flags(command))
    command = flags_of(AuditOptions, *_AUDIT, alone=True)(command)
    return agent_flags(flags_of(LoaderSettings, alone=True)(command))


def open_options(values: dict[str, Any], resources: ExitStack) -> "tuple[LoaderOptions, PluginManager]":
    """What these flags ask for, and the plug-ins, until ``resources`` is closed; processes started meanwhile end with
    this one. The flags are taken out of ``values``.

    Raises:
        click.UsageError: one of them makes no sense without another.
        RepoAgentError: the audit log cannot be opened, or a value is not valid.
    """
    from repoagent.loader.agent_directory import DEFAULT_DIRECTORY
    from repoagent.loader.assembly import LoaderOptions
    from repoagent.loader.plugins import PluginManager
    from repoagent.sentinel import marked

    attest = take(AttestOptions, values)
    if attest.key is None and attest != AttestOptions():
        raise click.UsageError("--attest-directory, -required, -plaintext and -id need --attest-key")
    options = LoaderOptions(
        repoagent_directory=values.pop("repoagent_directory") or DEFAULT_DIRECTORY,
        repoagents_from_directory=values.pop("repoagents_from_directory"),
        audit=resources.enter_context(_opened_audit(take(AuditOptions, values))),
        attest=attest.settings,
        limits=take_limits(values),
        **take(LoaderSettings, values).loader_options(),
    )
    resources.enter_context(marked())
    return options, resources.enter_context(PluginManager())


@contextmanager
def _opened_audit(options: AuditOptions) -> "Iterator[Audit]":
    from repoagent.audit import NO_AUDIT

    if options.file is None:
        if options != AuditOptions():
            raise click.UsageError("--audit-required and --audit-key need --audit-log")
        yield NO_AUDIT
        return
    from repoagent.audit.log import AuditLog, audit_key

    key = None if options.key is None else audit_key(options.key)
    log = AuditLog(options.file, required=options.required, key=key)
    try:
        yield log
    finally:
        log.close()


def open_model(model: str, filesystems: Mapping[str, str], limits: "Limits") -> "ModelSource":
    """The model in the directory, or at the URL, ``model``, as a repository of its parent directory sees it. Raises
    ``NotFoundError`` without one, and ``InvalidArgumentError`` for a repository."""
    from repoagent.storage.repositories.sources import Repository

    trimmed = model.rstrip("/")
    if "://" not in trimmed:
        trimmed = os.path.abspath(trimmed)
        _refuse_a_repository(Path(trimmed))
    parent, _, name = trimmed.rpartition("/")
    if parent.endswith(":/"):
        parent += "/"  # a model at the top of a filesystem
    source = Repository.open(parent or "/", filesystems=filesystems, limits=limits).model(name)
    if source is None:
        raise NotFoundError(f"there is no model directory {model}")
    return source


def _refuse_a_repository(directory: Path) -> None:
    """A directory that is not a model, and whose directories are models, has been taken for one of them."""
    if not directory.is_dir() or _is_model(directory):
        return
    models = sorted(entry.name for entry in directory.iterdir() if entry.is_dir() and _is_model(entry))
    if models:
        raise InvalidArgumentError(
            f"{directory} is a model repository, not a model; name one of its models, such as {directory / models[0]}"
        )


def _is_model(directory: Path) -> bool:
    return (directory / "config.pbtxt").is_file() or any(
        entry.name.isdecimal() and entry.is_dir() for entry in directory.iterdir()
    )


def load_model(loader: "Loader", source: "ModelSource", stop: StopSignals, *, allow_unchecked: bool) -> "LoadedChain":
    """The chain of a model whose files are here; only their last location is left. It has failed if this raises."""
    source.fingerprint()  # looks at every file, as a server does before it loads one
    with shown_progress() as show:
        chain = loader.load(source, on_progress=show, cancelled=stop.is_set)
        try:
            if not (chain.report.entries or allow_unchecked):
                raise InvalidArgumentError(_UNCHECKED.format(chain.name))
            chain.remove_former_locations()
        except BaseException as error:
            chain.fail(error)
            raise
    return chain


def quiet_tracebacks() -> None:
    """The report has what agents raise on purpose; only what surprised them is worth a traceback. A Ctrl-C is not."""
    filter_log(lambda record: bool(record.exc_info) and not isinstance(sys.exc_info()[1], KeyboardInterrupt))


def filter_log(wanted: Callable[[logging.LogRecord], bool]) -> None:
    """Until the command ends, the loader logs nothing but what is ``wanted``."""
    logger = logging.getLogger("repoagent.loader")
    logger.addFilter(wanted)
    click.get_current_context().call_on_close(lambda: logger.removeFilter(wanted))


def take_charge() -> StopSignals:
    """Until the command ends, this program decides how: signals to stop are noted, and no agent ends the process with
    status 0, which would start what waits for a model.
    """
    # Where a standard stream is closed, no lock or file gets its number, by which a child would have it.
    while (stream := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(stream, True)
    os.close(stream)
    quiet_tracebacks()
    process, leave = os.getpid(), os._exit

    def leave_with_an_error(status: int) -> NoReturn:
        leave(status or int(os.getpid() == process))  # a fork may have its own end

    os._exit = leave_with_an_error
    click.get_current_context().call_on_close(lambda: setattr(os, "_exit", leave))
    return StopSignals()


def show_report(report: "LoadReport | None", more: Iterable[str] = (), *, err: bool = False) -> None:
    """Print the report for people, and the lines ``more``."""
    if report is not None:
        for line in (*report.lines(), *more):
            click.echo(printable(line), err=err)


def require_unload(report: "LoadReport") -> None:
    """Raise ``InternalError`` if an agent failed after the load: a server would go on, a command reports it."""
    failed = [(entry.agent, action) for entry in report.entries for action in entry.actions if action.error]
    if failed:
        agent, action = failed[0]
        raise InternalError(f"the model loads, but agent '{agent}' failed in {action.action}: {action.error}")
