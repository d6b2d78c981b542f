"""Ports from which strangers could replace the models of a server."""

from collections.abc import Iterator

from repoagent_server.handlers.restrictions import Api, Restrictions
from repoagent_server.http.origins import is_loopback
from repoagent_server.program.options import ServeOptions

__all__ = ["open_ports"]


def open_ports(options: ServeOptions) -> list[str]:
    """Why the server must not start unless the operator accepts it; a line for each such port, none if all is well.

    A port is open if other machines reach it, clients may load and unload through it, and need nothing for that:
    neither a key (``--access``) nor a certificate nor the header of a restricted repository.
    """
    if options.access is not None or options.model_control_mode.lower() != "explicit":
        return []
    return list(_open_ports(options))


def _open_ports(options: ServeOptions) -> Iterator[str]:
    http, grpc = options.http_tls.http, options.grpc
    # Vertex AI's port has no TLS, and its redirects reach the whole API. SageMaker's routes do not.
    if options.vertex is not None or (options.allow_http and not (http is not None and http.mutual)):
        yield from _open("http", options.http_address, options.http_restrictions, "restricted-api")
    if options.allow_grpc and not grpc.use_mutual_auth:
        yield from _open("grpc", grpc.address, options.grpc_restrictions, "restricted-protocol")


def _open(kind: str, address: str, restrictions: Restrictions, flag: str) -> Iterator[str]:
    local = address.startswith(("unix:", "unix-abstract:")) or is_loopback(address.removeprefix("[").removesuffix("]"))
    if local or Api.MODEL_REPOSITORY in restrictions:
        return
    yield (
        f"--{kind}-address={address}: anyone who reaches the port can load and unload models. Give clients keys and "
        f"rights (--access=FILE), require certificates (--{kind}-use-ssl-mutual) or a header "
        f"(--{kind}-{flag}=model-repository:KEY=VALUE), or accept it with --allow-open"
    )
