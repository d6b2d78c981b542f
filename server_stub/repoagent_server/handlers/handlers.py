"""The handlers of one server, put together: what HTTP and gRPC translate to and from."""

from dataclasses import dataclass

from repoagent_server.handlers.log_settings import LogSettingsHandler
from repoagent_server.handlers.repository import RepositoryHandler
from repoagent_server.handlers.server import ServerHandler
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions
from repoagent_server.handlers.trace_settings import TraceSettingsHandler
from repoagent_server.shared.core import Core

__all__ = ["Handlers"]


@dataclass(frozen=True, slots=True)
class Handlers:
    """One of each kind. All of their methods may be called from any thread."""

    server: ServerHandler
    repository: RepositoryHandler
    log: LogSettingsHandler
    trace: TraceSettingsHandler
    regions: Regions

    @classmethod
    def over(cls, core: Core, *, allow_load_parameters: bool, regions: Regions = NO_REGIONS) -> "Handlers":
        """Those that ask ``core``; ``allow_load_parameters``: see :class:`RepositoryHandler`.

        ``regions`` are those of all front ends of the server.
        """
        return cls(
            ServerHandler(core, regions.extensions),
            RepositoryHandler(core, allow_load_parameters=allow_load_parameters),
            LogSettingsHandler(core.audit),
            TraceSettingsHandler(core),
            regions,
        )
