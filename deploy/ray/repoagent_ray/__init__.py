"""repoagent on Ray Serve: one application whose replicas load models through their agents.

``application`` builds it from :class:`Settings`, for ``serve run``, ``serve deploy`` and ``ray.serve.run``. They are
loaded on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repoagent_ray.app import application
    from repoagent_ray.settings import Settings

__all__ = ["Settings", "application"]


def __getattr__(name: str) -> Any:
    if name == "Settings":
        from repoagent_ray.settings import Settings

        return Settings
    if name == "application":
        from repoagent_ray.app import application

        return application
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
