"""``repoagent serve``: the command line. Names and meanings are Triton's wherever it has the same thing."""

import sys
from pathlib import Path
from typing import Any, Final

import click

from repoagent.cli.flags import agents_from_directory, limit_flags, take_limits
from repoagent_server.flags.abbreviations import AbbreviatingCommand
from repoagent_server.flags.audit_flags import audit_flags, take_audit_options
from repoagent_server.flags.config_file import ENVIRONMENT_PREFIX, config_file_option, environment_notes
from repoagent_server.flags.grpc_flags import grpc_flags, take_grpc_options
from repoagent_server.flags.hosting_flags import hosting_flags, take_sagemaker, take_vertex
from repoagent_server.flags.http_tls_flags import http_tls_flags, take_http_tls
from repoagent_server.flags.ineffective_flags import ineffective_flags, ineffective_warnings, take_strictness
from repoagent_server.flags.metrics_flags import metrics_flags, take_metrics_port, take_metrics_settings
from repoagent_server.flags.restricted_flags import RESTRICTED_API, RESTRICTED_PROTOCOL, restrictions
from repoagent_server.flags.trace_flags import take_trace_settings, trace_flags
from repoagent_server.flags.values import (
    HEADER_PATTERN,
    LEVEL,
    PAIR,
    RESOURCE,
    BackendSetting,
    boolean,
    merge_settings,
    number,
)
from repoagent_server.program.options import LogOptions, ServeOptions, open_ports

__all__ = ["serve"]

_DIRECTORY: Final = click.Path(path_type=Path)


@click.command(cls=AbbreviatingCommand, context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX})
@config_file_option
@click.option(
    "--model-repository",
    "--model-store",
    multiple=True,
    required=True,
    metavar="PATH|URL",
    help="Model repository; repeat for more.",
)
@click.option(
    "--model-control-mode",
    type=click.Choice(["none", "poll", "explicit"], case_sensitive=False),
    default="none",
    show_default=True,
    help="none: load every model at the start, then change nothing. poll: follow changes in the repositories. "
    "explicit: load what --load-model names and what clients request.",
)
@click.option(
    "--load-model",
    multiple=True,
    metavar="NAME",
    help="Model to load at the start, in explicit mode only; repeat for more, or use '*' alone for all.",
)
@number("--repository-poll-secs", default=15, low=1, help="Seconds between two polls of the repositories (poll mode).")
@number(
    "--repository-timeout",
    default=15,
    low=1,
    help="Seconds that a remote repository may take to answer, and a download may be silent.",
)
@boolean("--exit-on-error", default=True, help="Exit if a model cannot be loaded at the start.")
@boolean("--strict-readiness", default=True, help="Report 'ready' only while every model is ready.")
@boolean("--strict-model-config", default=False, help="Deprecated: use --disable-auto-complete-config.")
@click.option("--disable-auto-complete-config", is_flag=True, help="Do not complete configurations from model files.")
@click.option("--model-config-name", metavar="NAME", help="Read configs/NAME.pbtxt of a model, if it exists.")
@boolean(
    "--model-namespacing", default=False, help="Let models in different repositories have the same name (see the docs)."
)
@number("--model-load-thread-count", default=4, low=1, help="How many models are loaded at once.")
@number("--model-load-retry-count", default=0, low=0, help="How often a load that failed in the backend is retried.")
@boolean(
    "--model-load-on-demand",
    default=False,
    help="Load a model when the first request for it arrives; explicit mode only.",
)
@number(
    "--model-memory-budget-bytes",
    default=0,
    low=0,
    help="Bytes of model files that may be loaded on demand before the least recently used models are unloaded; "
    "0 means no limit.",
)
@click.option(
    "--rate-limit",
    type=click.Choice(["off", "execution_count"], case_sensitive=False),
    default="off",
    show_default=True,
    help="Whether executions wait for the resources that instance groups name in 'rate_limiter'.",
)
@click.option(
    "--rate-limit-resource",
    type=RESOURCE,
    multiple=True,
    metavar="NAME:COUNT[:DEVICE]",
    help="How much of a resource there is, on one device or on each; repeat for more. Without the flag, as much as "
    "the neediest instance needs.",
)
@number(
    "--unload-idle-after",
    default=0,
    low=0,
    help="Seconds without a request after which a model that was loaded on demand is unloaded; 0 means never.",
)
@number(
    "--drain-delay",
    default=0,
    low=0,
    help="Seconds to keep serving after SIGTERM, while the server reports that it is not ready.",
)
@click.option(
    "--ready-models",
    multiple=True,
    metavar="MODEL",
    help="A model that must be loaded for the server to be ready, instead of all; repeat for more.",
)
@click.option(
    "--allow-config-variables",
    multiple=True,
    metavar="NAME",
    help="An environment variable that config.pbtxt may use as ${NAME}; repeat for more.",
)
@number("--exit-timeout-secs", default=30, low=0, help="Seconds to wait for running requests and agents at the end.")
@click.option(
    "--repoagent-directory",
    type=_DIRECTORY,
    default=Path("/opt/tritonserver/repoagents"),
    show_default=True,
    help="Directory of agents that are not installed as packages.",
)
@agents_from_directory
@click.option("--agent-policy", type=_DIRECTORY, metavar="FILE", help="File with the operator's policy.")
@click.option("--access", type=_DIRECTORY, metavar="FILE", help="File with the clients, their keys and their rights.")
@click.option(
    "--workspace-directory", type=_DIRECTORY, help="Where agents get private directories. [default: below /tmp]"
)
@click.option(
    "--cache-directory",
    type=_DIRECTORY,
    help="Where downloads and conversions are kept between starts. [default: below the user's cache directory]",
)
@number("--cache-quota-bytes", default=0, low=0, help="The largest size of the cache; 0 means no limit.")
@boolean("--allow-swap", default=False, help="Allow confidential plaintext in memory that may be swapped to disk.")
@click.option(
    "--confidential-directory",
    type=_DIRECTORY,
    help="Memory filesystem for confidential plaintext.  [default: /dev/shm]",
)
@boolean("--allow-core-dumps", default=False, help="Allow core dumps of a server that holds confidential plaintext.")
@boolean("--allow-exec-keys", default=False, help="Allow key references of models that run programs (exec:COMMAND).")
@click.option(
    "--backend-config",
    type=PAIR,
    multiple=True,
    metavar="BACKEND,SETTING=VALUE",
    help="Setting of a backend; repeat for more.",
)
@trace_flags
@click.option(
    "--cache-config",
    type=PAIR,
    multiple=True,
    metavar="CACHE,SETTING=VALUE",
    help="Setting of the response cache, for models that enable it: local,size=BYTES; repeat for more.",
)
@click.option(
    "--response-cache-byte-size",
    type=click.IntRange(0),
    metavar="BYTES",
    help="Triton's former name for --cache-config=local,size=BYTES.",
)
@click.option("--server-id", "--id", default="triton", show_default=True, help="The name in the server's metadata.")
@boolean("--allow-http", default=True, help="Serve HTTP.")
@click.option("--http-address", default="127.0.0.1", show_default=True, help="Address to listen on for HTTP.")
@number("--http-port", default=8000, low=0, high=65535, help="Port for HTTP; 0 takes a free one.")
@boolean("--reuse-http-port", "--reuse-port", default=False, help="Let other servers listen on the same HTTP port.")
@number("--http-thread-count", default=8, low=1, help="Accepted, without effect: one event loop serves HTTP.")
@number("--http-max-input-size", default=1 << 26, low=1, help="The largest body of a request, in bytes.")
@click.option(
    "--http-allowed-host",
    multiple=True,
    metavar="NAME",
    help="Another name under which browsers may reach the server, or '*' for any; repeat for more.",
)
@boolean("--allow-ui", default=False, help="Serve a web page about the models over HTTP, at /ui.")
@boolean("--allow-openai", default=False, help="Serve OpenAI's API over HTTP, below /v1.")
@click.option(
    "--http-header-forward-pattern",
    type=HEADER_PATTERN,
    default="",
    help="Regular expression; headers whose names match it reach the model as parameters.",
)
@click.option(
    "--http-restricted-api",
    type=RESTRICTED_API,
    multiple=True,
    metavar="API[,API]:KEY=VALUE",
    help="Parts of the HTTP API that need the header KEY with this value: health, metadata, inference, shared-memory, "
    "model-config, model-repository, statistics, trace, logging; repeat for more.",
)
@http_tls_flags
@grpc_flags
@click.option(
    "--grpc-restricted-protocol",
    type=RESTRICTED_PROTOCOL,
    multiple=True,
    metavar="PROTOCOL[,PROTOCOL]:KEY=VALUE",
    help="--http-restricted-api for gRPC; the header is triton-grpc-protocol-KEY; repeat for more.",
)
@hosting_flags
@metrics_flags
@boolean(
    "--allow-open",
    default=False,
    help="Listen beyond this machine in explicit mode even if clients need no credential to load and unload models.",
)
@boolean(
    "--allow-load-parameters",
    default=False,
    help="Accept 'config' and 'file:' parameters in load requests: any client of the port can then replace models.",
)
@boolean(
    "--allow-client-shm",
    default=False,
    help="Let clients register POSIX shared memory of this machine, to pass tensors through it.",
)
@click.option("--ready-file", type=_DIRECTORY, help="File with the addresses in JSON, written once the server serves.")
@click.option(
    "--log-verbose",
    type=LEVEL,
    default=0,
    show_default=True,
    metavar="INTEGER",
    help="Level of detail; 0 for none, 'true' for 1.",
)
@boolean("--log-info", default=True, help="Log events.")
@boolean("--log-warning", default=True, help="Log warnings.")
@boolean("--log-error", default=True, help="Log errors.")
@click.option(
    "--log-format",
    type=click.Choice(["default", "ISO8601", "json"], case_sensitive=False),
    default="default",
    show_default=True,
    help="How a line begins: 'I1121 10:00:00.123456', or '2026-11-21T10:00:00Z I'; or one JSON object per line.",
)
@click.option("--log-file", type=_DIRECTORY, help="Log to this file instead of standard error.")
@click.option(
    "--request-log",
    type=_DIRECTORY,
    metavar="FILE",
    help="Write a line of JSON for each inference request to FILE, or to standard error for '-': client, model, "
    "version, status, milliseconds, bytes.",
)
@audit_flags
@limit_flags
@ineffective_flags
def serve(
    log_verbose: int,
    log_info: bool,
    log_warning: bool,
    log_error: bool,
    log_format: str,
    log_file: Path | None,
    backend_config: tuple[BackendSetting, ...],
    cache_config: tuple[BackendSetting, ...],
    response_cache_byte_size: int | None,
    disable_auto_complete_config: bool,
    strict_model_config: bool,
    http_port: int,
    **values: Any,
) -> None:
    """Serve model repositories over HTTP and gRPC: every model goes through its agents first.

    SIGTERM and SIGINT stop the server: new requests are refused, running ones finish, every model is unloaded through
    its agents; a second signal ends it at once. Exit status: 0 after such a stop, 1 if a model failed at the start or
    the time to stop was too short.

    Every flag can also be set by an environment variable (REPOAGENT_SERVE_HTTP_PORT for --http-port) or in the file
    that --config-file names. The command line takes precedence, then the environment, then the file.
    """
    from repoagent_server.program.program import run

    strict, warnings = take_strictness(strict_model_config, disable_auto_complete_config)
    audit = take_audit_options(values)
    grpc = take_grpc_options(values, default_port=8001 if http_port else 0)
    http_tls, tls_warnings = take_http_tls(values)
    options = ServeOptions(
        http_port=http_port,
        grpc=grpc,
        audit=audit,
        backend_config=merge_settings(backend_config),
        cache_config=_cache_settings(cache_config, response_cache_byte_size),
        limits=take_limits(values),
        metrics=take_metrics_settings(values),
        metrics_port=take_metrics_port(values, default_port=8002 if http_port else 0),
        notes=environment_notes(click.get_current_context()),
        trace=take_trace_settings(values),
        strict_model_config=strict,
        warnings=(*warnings, *ineffective_warnings(), *tls_warnings),
        sagemaker=take_sagemaker(values),
        vertex=take_vertex(values),
        log=LogOptions(
            verbose=log_verbose,
            info=log_info,
            warning=log_warning,
            error=log_error,
            format=log_format,
            file=log_file,
        ),
        http_tls=http_tls,
        http_restrictions=restrictions("--http-restricted-api", values.pop("http_restricted_api")),
        grpc_restrictions=restrictions("--grpc-restricted-protocol", values.pop("grpc_restricted_protocol")),
        **values,
    )
    options.check()
    if not options.allow_open and (found := open_ports(options)):
        raise click.UsageError("\n".join(found))
    sys.exit(run(options))


def _cache_settings(pairs: tuple[BackendSetting, ...], byte_size: int | None) -> dict[str, dict[str, str]]:
    if byte_size is None:
        return merge_settings(pairs)
    if pairs:
        raise click.UsageError(
            "Incompatible flags --response-cache-byte-size and --cache-config both provided. "
            "Please provide one or the other."
        )
    return {"local": {"size": str(byte_size)}}
