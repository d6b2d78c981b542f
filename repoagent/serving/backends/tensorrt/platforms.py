"""Where the plans of a server run, by the settings of the backend."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from repoagent.engines.cuda import finding
from repoagent.engines.protocol import Platform
from repoagent.errors import InvalidArgumentError

__all__ = ["Settings", "find_platform"]

logger = logging.getLogger(__name__)

_ENGINES: Final = ("tensorrt", "stand-in")


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``--backend-config=tensorrt,...`` sets."""

    allow_host_code: bool = False
    engine: str = "tensorrt"
    runtime_cache_directory: str = ""

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> "Settings":
        """Read them.

        Raises:
            InvalidArgumentError: a value makes no sense.
        """
        host_code = str(settings.get("allow-host-code", "false")).lower()
        if host_code not in ("true", "false"):
            raise InvalidArgumentError(f"allow-host-code must be true or false, not '{host_code}'")
        engine = settings.get("engine", "tensorrt")
        if engine not in _ENGINES:
            raise InvalidArgumentError(f"engine must be one of {', '.join(_ENGINES)}, not '{engine}'")
        return cls(host_code == "true", engine, str(settings.get("runtime-cache-directory", "")))

    def runtime_cache(self, plan: Any) -> str:
        """The file that keeps what was compiled for ``plan``; empty for none. Its name is the plan's digest."""
        if not self.runtime_cache_directory:
            return ""
        return str(Path(self.runtime_cache_directory) / f"{hashlib.sha256(plan).hexdigest()}.runtime-cache")


def find_platform(settings: Settings) -> Platform:
    """The place that ``settings`` ask for.

    Raises:
        UnsupportedError: TensorRT cannot be used here; the message is the probe's.
    """
    if settings.engine == "stand-in":
        from repoagent.engines.standin import StandInPlatform

        logger.warning("TensorRT plans run on the stand-in, which is for development: it opens no real plan")
        return StandInPlatform()
    return finding.find_platform()
