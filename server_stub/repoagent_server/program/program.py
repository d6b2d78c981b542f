"""``repoagent serve`` itself: start, wait for a signal, stop. Returns the exit status of the program."""

import gc
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Final

import click

from repoagent.api.hooks import LoadEvent, hookimpl
from repoagent.audit import NO_AUDIT, Audit
from repoagent.audit.log import AuditLog
from repoagent.cli.progress import ERASE, ProgressLine, progress_line
from repoagent.errors import RepoAgentError
from repoagent.loader.load_context import Progress
from repoagent.sentinel import marked
from repoagent.server.exposition.agents import WorkspaceMetrics
from repoagent.server.exposition.page import Source
from repoagent.serving.assembly import RateLimitMode
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import ModelId
from repoagent_server.access.access import Denials
from repoagent_server.access.access_file import AccessFile
from repoagent_server.handlers.shared_memory import Regions
from repoagent_server.program.auditing import AuditMetrics, audit_log, note_access_change
from repoagent_server.program.front_ends import (
    FrontEnd,
    certificate_metrics,
    clear_ready_file,
    front_ends,
    metrics_page,
    naming_the_flag,
    request_log,
    tls_files,
    write_ready_file,
)
from repoagent_server.program.logs import configure, table
from repoagent_server.program.options import READY_NAMES, ServeOptions
from repoagent_server.program.signals import StopRequest, hangup_calls, stop_signals, watchdog
from repoagent_server.shared.request_log import RequestLog, RequestLogMetrics
from repoagent_server.tls.certificates import Certificates

logger = logging.getLogger(__name__)

_FILES: Final = 1 << 16
_LAST_ANSWERS_SECONDS: Final = 1.0
_SWITCH_SECONDS: Final = 0.001
"""After which a thread that computes lets another have the interpreter. An event loop asks for it some fourteen times
per request: with Python's 5 ms, a port that is flooded would hold the other up by 70 ms each time."""


def run(options: ServeOptions) -> int:
    """Serve until a signal comes. 0: stopped as asked; 1: a model failed at the start, or stopping took too long."""
    with ExitStack() as stack:
        stack.enter_context(_of_this_server())
        line = progress_line()
        if line is not None:
            stack.callback(line.clear)
        _prepare_logs(options)
        stack.enter_context(configure(options.log, line))
        stop = stack.enter_context(stop_signals(ERASE.encode() if line else b""))
        for note in options.notes:
            logger.info("%s", note)
        for warning in options.warnings:
            logger.warning("%s", warning)
        _allow_many_connections()
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        let_threads_switch()
        audit: AuditLog | None = None
        try:
            if options.ready_file is not None:
                clear_ready_file(options.ready_file)
            audit = stack.enter_context(audit_log(options))
            if options.processes > 1:
                return _run_processes(options, line, audit, stop, stack)
            requests = stack.enter_context(request_log(options.request_log))
            logs = [log for log in (audit, requests) if log is not None]
            stack.enter_context(hangup_calls([log.reopen for log in logs], stop))
            core = _core(options, line, audit or NO_AUDIT)
            stack.callback(core.stop)  # a second time after all has gone well, which does nothing
            regions = Regions(allowed=options.allow_client_shm)
            stack.callback(regions.close)
            access, denials = None, Denials(core.audit)
            if options.access is not None:
                file = stack.enter_context(AccessFile(options.access))
                file.observe(partial(note_access_change, core.audit))
                access = file.access
                access.observe(denials.report)
            fronts: dict[str, FrontEnd] = {}
            sources: list[Source] = [
                WorkspaceMetrics(core),
                denials,
                certificate_metrics(fronts),
                *_sources(audit, requests),
            ]
            page = metrics_page(options, core, sources)
            tls = {name: Certificates(files) for name, files in tls_files(options).items()}
            fronts.update(front_ends(options, core, regions, access, requests, denials, page, tls))
            for name, front in fronts.items():
                stack.callback(front.stop)
                with naming_the_flag(name):
                    front.bind()
            stack.enter_context(watchdog(partial(_come_round, fronts)))
            return _serve(options, core, fronts, stop)
        except RepoAgentError as error:
            if audit is not None:
                audit.record("server", "failed", {"pid": os.getpid(), "error": str(error)})
            with line.hidden() if line else nullcontext():
                click.echo(f"error: creating server: {error.code.text} - {error}", err=True)
            return 1


def _prepare_logs(options: ServeOptions) -> None:
    """Before this process opens them: workers of an earlier server may have put links in their places."""
    if options.worker_user is None:
        return
    from repoagent_server.processes.user import WorkerUser

    try:
        WorkerUser.of(options.worker_user).prepare_logs(options.log.file, options.request_log)
    except RepoAgentError as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def _of_this_server() -> Iterator[None]:
    """Code of models and agents in this process finds no command line, for this one is not theirs. It finds an
    environment by which what it starts ends with the server."""
    ours, sys.argv = sys.argv, [""]
    try:
        with marked():
            yield
    finally:
        sys.argv = ours


def let_threads_switch() -> None:
    """Have the event loops and the threads of models take turns quickly, for the life of a server's process."""
    sys.setswitchinterval(_SWITCH_SECONDS)


def _run_processes(
    options: ServeOptions, line: ProgressLine | None, audit: AuditLog | None, stop: StopRequest, stack: ExitStack
) -> int:
    """The same with the front ends in processes of their own."""
    from repoagent_server.program.keeper import Keeper

    keeper = Keeper(options, core_options(options, line.show if line else None, audit or NO_AUDIT))
    stack.callback(keeper.close)
    stack.enter_context(watchdog(keeper.turn))
    logs = [*([audit.reopen] if audit is not None else []), *([keeper.hang_up] if options.request_log else [])]
    stack.enter_context(hangup_calls(logs, stop))
    before = signal.signal(signal.SIGUSR2, keeper.reload)
    stack.callback(signal.signal, signal.SIGUSR2, before)
    if options.access is not None:
        file = stack.enter_context(AccessFile(options.access))
        keeper.follow(file)  # Before what is recorded: that is in force in all workers then.
        file.observe(partial(note_access_change, keeper.core.audit))
    if line is not None:
        keeper.core.observe(EndOfLoads(line), "repoagent-server-progress")
    sources = [WorkspaceMetrics(keeper.core), *_sources(audit, None)]
    keeper.start(metrics_page(options, keeper.core, sources, models=False))
    return _serve(options, keeper.core, keeper.fronts, stop)


def _core(options: ServeOptions, line: ProgressLine | None, audit: Audit) -> ServingCore:
    core = ServingCore(core_options(options, line.show if line else None, audit))
    if line is not None:
        core.observe(EndOfLoads(line), "repoagent-server-progress")
    return core


def _allow_many_connections() -> None:
    """Each takes a file descriptor, and the usual limit for those that do not ask for more is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def core_options(
    options: ServeOptions, on_progress: Callable[[Progress], None] | None = None, audit: Audit = NO_AUDIT
) -> CoreOptions:
    """What the flags mean for the serving core."""
    return CoreOptions(
        repositories=options.model_repository,
        control_mode=ControlMode[options.model_control_mode.upper()],
        poll_seconds=options.repository_poll_secs,
        startup_models=options.load_model,
        strict_model_config=options.strict_model_config,
        exit_on_error=options.exit_on_error,
        strict_readiness=options.strict_readiness,
        ready_models=options.ready_models,
        unload_idle_seconds=options.unload_idle_after or None,
        exit_timeout_seconds=options.exit_timeout_secs,
        load_threads=options.model_load_thread_count,
        load_retry_count=options.model_load_retry_count,
        repoagent_directory=options.repoagent_directory,
        repoagents_from_directory=options.repoagents_from_directory,
        allow_core_dumps=options.allow_core_dumps,
        on_demand=options.model_load_on_demand,
        memory_budget_bytes=options.model_memory_budget_bytes or None,
        model_namespacing=options.model_namespacing,
        rate_limit=RateLimitMode(options.rate_limit.lower()),
        rate_limit_resources=options.rate_limit_resource,
        trace=options.trace,
        cache_config=options.cache_config,
        server_id=options.server_id,
        backend_config=options.backend_config,
        on_progress=on_progress,
        latencies=options.metrics.kept,
        limits=options.limits,
        audit=audit,
        attest=options.attest.settings,
        **options.loader_options(),
    )


def _serve(options: ServeOptions, core: ServingCore, fronts: Mapping[str, FrontEnd], stop: StopRequest) -> int:
    if _start(core, stop):
        _show_models(core)
        for name, front in fronts.items():
            front.start()
            logger.info("Started %s at %s:%d", name, *front.bind())
        if options.ready_file is not None:
            write_ready_file(options.ready_file, {READY_NAMES[name]: f.bind() for name, f in fronts.items()})
        # What is in memory now stays there: the garbage collector need not look at it again and again.
        gc.collect()
        gc.freeze()
        stop.wait()
        if options.drain_delay:
            core.begin_drain()
            logger.info("Not ready any more; serving on for %d seconds.", options.drain_delay)
            stop.pause(options.drain_delay)
    return _stop(core, fronts, options.exit_timeout_secs)


def _sources(audit: AuditLog | None, requests: RequestLog | None) -> list[Source]:
    """What has metrics of its own."""
    found: list[Source] = [AuditMetrics(audit)] if audit is not None else []
    return [*found, RequestLogMetrics(requests)] if requests is not None else found


def _start(core: ServingCore, stop: StopRequest) -> bool:
    """Load the models, on a thread of its own so that a signal can break it off; False if one did."""
    started: Future[list[str]] = Future()

    def start() -> None:
        try:
            started.set_result(core.start())
        except BaseException as error:  # whatever it is, the main thread raises it
            started.set_exception(error)
        stop.wake()

    threading.Thread(target=start, name="start", daemon=True).start()
    while not (stop.made or started.done()):
        stop.rest()
    if not stop.made:
        for name in started.result():
            logger.error("failed to load '%s'; serving the others because --exit-on-error=false", name)
    return not stop.made


def _come_round(fronts: Mapping[str, FrontEnd]) -> None:
    for front in fronts.values():
        front.turn()


def _show_models(core: ServingCore) -> None:
    """The table of models that Triton shows."""
    try:
        index = core.index()
    except RepoAgentError:  # a repository cannot be listed yet, which has been logged
        return
    rows = [
        (
            str(ModelId(e["name"], e.get("namespace", ""))),
            e.get("version", "-"),
            e.get("state", "") + (f": {e['reason']}" if e.get("reason") else ""),
        )
        for e in index
    ]
    logger.info("%s", table(("Model", "Version", "Status"), rows), extra={"table": True})
    if not rows:
        logger.warning(
            "no model repository has a model: a model is a directory with a config.pbtxt, or with version directories "
            "such as 1; see --model-repository"
        )


def _stop(core: ServingCore, fronts: Mapping[str, FrontEnd], timeout: float) -> int:
    """Refuse what is new, let the core finish what runs and unload every model, then close the connections."""
    for front in fronts.values():
        front.refuse()
    logger.info("Waiting for in-flight requests to complete.")
    try:
        core.stop()
    except RepoAgentError as error:
        logger.error("failed to stop server: %s - %s", error.code.text, error)
        core.options.audit.record("server", "failed", {"pid": os.getpid(), "error": str(error)})
        for front in fronts.values():  # Who waits for what did not end has just been told so.
            front.drain(_LAST_ANSWERS_SECONDS)
        logging.shutdown()
        os._exit(1)  # a thread that does not come back would keep the interpreter from ending
    for front in fronts.values():
        front.drain(timeout)
    logger.info("All models are unloaded, the server has stopped")
    return 0


class EndOfLoads:
    """An observer that takes a load off the line when it has ended."""

    def __init__(self, line: ProgressLine) -> None:
        self._line = line

    @hookimpl
    def load_finished(self, event: LoadEvent) -> None:
        self._line.finished(event.model)

    @hookimpl
    def unload_finished(self, event: LoadEvent) -> None:
        self._line.finished(event.model)
