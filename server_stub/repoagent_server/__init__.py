"""HTTP, gRPC and metrics front ends for repoagent.

``KServeHttp``, ``KServeGrpc`` and ``Metrics`` put them over an in-process server, and ``asgi_app`` makes an
application of it that others can mount; ``AccessFile`` controls who may use them. They are loaded on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_server.access.access_file import AccessFile
    from repoagent_server.frontends import KServeGrpc, KServeHttp, Metrics, asgi_app

__all__ = ["AccessFile", "KServeGrpc", "KServeHttp", "Metrics", "asgi_app"]


def __getattr__(name: str) -> Any:
    if name == "AccessFile":
        from repoagent_server.access.access_file import AccessFile

        return AccessFile
    if name in __all__:
        from repoagent_server import frontends

        return getattr(frontends, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
