"""What the commands share that run a model's agents: the flags of a loader, the model, the report of its load."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from repoagent.cli.flags import (
    agent_flags,
    converter_flags,
    limit_flags,
    take_attest_settings,
    take_converter_settings,
    take_limits,
)
from repoagent.cli.interrupt import StopSignals
from repoagent.cli.progress import shown_progress
from repoagent.errors import InternalError, InvalidArgumentError, NotFoundError
from repoagent.public_text import printable

if TYPE_CHECKING:
    from repoagent.api.report import LoadReport
    from repoagent.audit import Audit
    from repoagent.limits import Limits
    from repoagent.loader.assembly import LoaderOptions
    from repoagent.loader.chain import LoadedChain
    from repoagent.loader.loader import Loader
    from repoagent.loader.plugins import PluginManager
    from repoagent.storage import ModelSource

_F = TypeVar("_F", bound=Callable[..., Any])
_PATH: Final = click.Path(path_type=Path)
_SAME: Final = (
    "agent_policy",
    "allow_exec_keys",
    "allow_swap",
    "cache_directory",
    "confidential_directory",
    "conversion_cache",
    "conversion_sign_key",
    "model_config_name",
    "repoagents_from_directory",
    "workspace_directory",
)
"""The options whose flags have their names and values."""
_UNCHECKED: Final = (
    "no agent looked at model '{}': neither its configuration nor a policy names one; name one, or use "
    "--allow-unchecked"
)
_FLAGS: Final = (
    click.option("--agent-policy", type=_PATH, help="The operator's policy (a TOML file)."),
    click.option(
        "--workspace-directory", type=_PATH, help="Where loads keep private directories. [default: below /tmp]"
    ),
    click.option(
        "--cache-directory",
        type=_PATH,
        help="Where results are kept between loads. [default: below the user's cache directory]",
    ),
    click.option("--model-config-name", help="Read configs/NAME.pbtxt of the model, if it exists."),
    click.option(
        "--allow-config-variables",
        multiple=True,
        metavar="NAME",
        help="A variable that config.pbtxt may use; repeat for more.",
    ),
    click.option(
        "--cache-quota-bytes",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="The largest size of the cache; 0 means no limit.",
    ),
    click.option(
        "--repository-timeout",
        type=click.IntRange(1),
        default=15,
        show_default=True,
        help="Seconds that a remote store may take to answer.",
    ),
    click.option("--confidential-directory", type=_PATH, help="Memory filesystem for plaintext. [default: /dev/shm]"),
    click.option("--allow-swap", is_flag=True, help="Allow confidential plaintext in memory that may be swapped."),
    click.option("--allow-exec-keys", is_flag=True, help="Allow key references that run programs (exec:COMMAND)."),
    click.option("--audit-log", type=_PATH, metavar="FILE", help="Record loads, decisions and uses of keys in FILE."),
    click.option("--audit-required", is_flag=True, help="Refuse the load while the audit log cannot be written."),
    click.option("--audit-key", metavar="REF", help="Key reference for an HMAC on each line of the audit log."),
    click.option("--conversion-cache", metavar="URL", help="Where builders put conversions that a policy may take."),
    click.option("--conversion-sign-key", metavar="REF", help="Key reference; conversions are signed and put there."),
    click.option("--attest-key", metavar="REF", help="Key reference; loads leave receipts signed with this key."),
    click.option("--attest-directory", type=_PATH, help="Where receipts are written."),
    click.option("--attest-required", is_flag=True, help="Refuse the load while its receipt cannot be made."),
    click.option("--attest-plaintext", is_flag=True, help="Allow digests of confidential plaintext in receipts."),
    click.option("--attest-id", metavar="URI", help="The name of this server in receipts."),
)


def loader_flags(command: _F) -> _F:
    """Give ``command`` the flags of a loader, which mean what they mean to ``repoagent serve``."""
    command = converter_flags(limit_flags(command))
    for flag in reversed(_FLAGS):
        command = flag(command)
    return agent_flags(command)


def open_options(values: dict[str, Any], resources: ExitStack) -> "tuple[LoaderOptions, PluginManager]":
    """What these flags ask for, and the plug-ins, until ``resources`` is closed; processes started meanwhile end with
    this one. The flags are taken out of ``values``.

    Raises:
        click.UsageError: one of them makes no sense without another.
        RepoAgentError: the audit log cannot be opened, or a value is not valid.
    """
    from repoagent.loader.assembly import LoaderOptions
    from repoagent.loader.plugins import PluginManager
    from repoagent.sentinel import marked

    options = LoaderOptions(**_loader_options(values, resources.enter_context(_opened_audit(values))))
    resources.enter_context(marked())
    return options, resources.enter_context(PluginManager())


def _loader_options(values: dict[str, Any], audit: "Audit") -> dict[str, Any]:
    from repoagent.config.pbtxt import config_variables
    from repoagent.loader.agent_directory import DEFAULT_DIRECTORY

    return {name: values.pop(name) for name in _SAME} | {
        "repoagent_directory": values.pop("repoagent_directory") or DEFAULT_DIRECTORY,
        "cache_quota_bytes": values.pop("cache_quota_bytes") or None,
        "config_variables": config_variables(values.pop("allow_config_variables")),
        "repository_timeout_seconds": values.pop("repository_timeout"),
        "converters": take_converter_settings(values),
        "limits": take_limits(values),
        "audit": audit,
        "attest": take_attest_settings(values),
    }


@contextmanager
def _opened_audit(values: dict[str, Any]) -> "Iterator[Audit]":
    from repoagent.audit import NO_AUDIT

    file, required, key = (values.pop(name) for name in ("audit_log", "audit_required", "audit_key"))
    if file is None:
        if required or key:
            raise click.UsageError("--audit-required and --audit-key need --audit-log")
        yield NO_AUDIT
        return
    from repoagent.audit.log import AuditLog, audit_key

    log = AuditLog(file, required=required, key=None if key is None else audit_key(key))
    try:
        yield log
    finally:
        log.close()


def open_model(model: str, filesystems: Mapping[str, str], limits: "Limits") -> "ModelSource":
    """The model in the directory, or at the URL, ``model``, as a repository of its parent directory sees it.

    Raises:
        NotFoundError: there is none.
        InvalidArgumentError: it is a repository.
    """
    from repoagent.storage import Repository

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
    """The chain of a model whose files are here; only the last location of its files is left.

    Raises:
        RepoAgentError: it is refused, for example as no agent looked at it; its chain has failed.
    """
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
    """A server would go on after a failure in an unload; who runs a command wants to know.

    Raises:
        InternalError: an agent failed after the load.
    """
    failed = [(entry.agent, action) for entry in report.entries for action in entry.actions if action.error]
    if failed:
        agent, action = failed[0]
        raise InternalError(f"the model loads, but agent '{agent}' failed in {action.action}: {action.error}")
