"""``repoagent serve``: the command line. Names and meanings are Triton's wherever it has the same thing."""

import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import click

from repoagent.cli.flags import (
    BOOLEAN,
    PAIR,
    BackendSetting,
    agents_from_directory,
    boolean,
    flags_of,
    limit_flags,
    merge_settings,
    take,
    take_limits,
)
from repoagent.loader.settings import AttestOptions, AuditOptions
from repoagent_server.flags.config_file import ENVIRONMENT_PREFIX, config_file_option, environment_notes
from repoagent_server.flags.endpoint_flags import (
    RESTRICTED_API,
    RESTRICTED_PROTOCOL,
    HttpTlsOptions,
    hosting_flags,
    metrics_flags,
    restrictions,
    take_http_tls,
    take_metrics_settings,
    take_port,
    take_sagemaker,
    take_vertex,
)
from repoagent_server.flags.ineffective_flags import ineffective_flags, ineffective_warnings, take_strictness
from repoagent_server.flags.trace_flags import take_trace_settings, trace_flags
from repoagent_server.flags.values import HEADER_PATTERN
from repoagent_server.program.options import LogOptions, ServeOptions, open_ports
from repoagent_server.shared.grpc_options import GrpcOptions


class AbbreviatingCommand(click.Command):
    """A command whose flags may be shortened."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``, with every flag in full.

        Raises:
            click.UsageError: also for a flag that several begin like.
        """
        options = [parameter for parameter in self.get_params(ctx) if isinstance(parameter, click.Option)]
        names = {name: option for option in options for name in option.opts if name.startswith("--")}
        return super().parse_args(ctx, _in_full(args, names, ctx))


def _in_full(args: Sequence[str], names: Mapping[str, click.Option], ctx: click.Context) -> list[str]:
    result: list[str] = []
    rest = iter(args)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if argument == "--" or not flag.startswith("--"):
            result.append(argument)
            continue
        name = _full_name(flag, names, ctx)
        result.append(name + equals + value)
        option = names.get(name)
        if option is not None and not equals and not _stands_alone(option):
            result += islice(rest, 1)  # its value, whatever it looks like
    return result


def _full_name(flag: str, names: Mapping[str, click.Option], ctx: click.Context) -> str:
    """The one name that begins with ``flag``; ``flag`` itself if none does, for click to complain about."""
    if flag in names or flag == "--":
        return flag
    meant = {name: option for name, option in names.items() if name.startswith(flag)}
    if len({option.name for option in meant.values()}) > 1:
        raise click.UsageError(f"flag '{flag}' is ambiguous; it may be {', '.join(sorted(meant))}", ctx)
    return next(iter(meant), flag)


def _stands_alone(option: click.Option) -> bool:
    """Whether ``option`` can be given without a value, so that what looks like a flag after it is one."""
    return option.is_flag or option.type is BOOLEAN


@click.command(cls=AbbreviatingCommand, context_settings={"auto_envvar_prefix": ENVIRONMENT_PREFIX})
@config_file_option
@flags_of(ServeOptions)
@boolean("--strict-model-config", default=False, help="Deprecated: use --disable-auto-complete-config.")
@click.option("--disable-auto-complete-config", is_flag=True, help="Do not complete configurations from model files.")
@agents_from_directory
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
@click.option(
    "--http-restricted-api",
    type=RESTRICTED_API,
    multiple=True,
    metavar="API[,API]:KEY=VALUE",
    help="Parts of the HTTP API that need the header KEY with this value: health, metadata, inference, shared-memory, "
    "model-config, model-repository, statistics, trace, logging; repeat for more.",
)
@flags_of(HttpTlsOptions)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    help="Port for gRPC; 0 takes a free one.  [default: 8001, or a free one beside --http-port=0]",
)
@flags_of(GrpcOptions, kinds={"pattern": HEADER_PATTERN})
@click.option(
    "--grpc-restricted-protocol",
    type=RESTRICTED_PROTOCOL,
    multiple=True,
    metavar="PROTOCOL[,PROTOCOL]:KEY=VALUE",
    help="--http-restricted-api for gRPC; the header is triton-grpc-protocol-KEY; repeat for more.",
)
@hosting_flags
@metrics_flags
@flags_of(LogOptions)
@flags_of(AuditOptions)
@flags_of(AttestOptions)
@limit_flags
@ineffective_flags
def serve(**values: Any) -> None:
    """Serve model repositories over HTTP and gRPC: every model goes through its agents first.

    SIGTERM and SIGINT stop the server: new requests are refused, running ones finish, every model is unloaded through
    its agents; a second signal ends it at once. Exit status: 0 after such a stop, 1 if a model failed at the start or
    the time to stop was too short.

    Every flag can also be set by an environment variable (REPOAGENT_SERVE_HTTP_PORT for --http-port) or in the file
    that --config-file names. The command line takes precedence, then the environment, then the file.
    """
    from repoagent_server.program.program import run

    strict, warnings = take_strictness(values.pop("strict_model_config"), values.pop("disable_auto_complete_config"))
    http_tls, tls_warnings = take_http_tls(values)
    free = values["http_port"] == 0
    options = ServeOptions(
        grpc=take(GrpcOptions, values, port=take_port(values, "grpc_port", 0 if free else 8001)),
        audit=take(AuditOptions, values),
        attest=take(AttestOptions, values),
        log=take(LogOptions, values),
        backend_config=merge_settings(values.pop("backend_config")),
        cache_config=_cache_settings(values.pop("cache_config"), values.pop("response_cache_byte_size")),
        limits=take_limits(values),
        metrics=take_metrics_settings(values),
        metrics_port=take_port(values, "metrics_port", 0 if free else 8002),
        notes=environment_notes(click.get_current_context()),
        trace=take_trace_settings(values),
        strict_model_config=strict,
        warnings=(*warnings, *ineffective_warnings(), *tls_warnings),
        sagemaker=take_sagemaker(values),
        vertex=take_vertex(values),
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
