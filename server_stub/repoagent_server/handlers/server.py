"""Health, metadata, configuration and statistics."""

from collections.abc import Sequence
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, NotFoundError
from repoagent_server.access import Caller
from repoagent_server.handlers.visible import visible
from repoagent_server.shared.core import Core

__all__ = ["ServerHandler", "check_version"]

_MAX_VERSION: Final = 2**63 - 1


def check_version(version: str) -> str:
    """``version`` as the core wants it.

    Raises:
        InvalidArgumentError: it is not a number, or too large a one (Triton's texts).
    """
    if version == "":
        return version
    if version.startswith("-") and version[1:].isascii() and version[1:].isdigit():
        raise InvalidArgumentError(
            f"invalid model version specified '{version}' , version should be an integral value > 0"
        )
    wrong = f"failed to get model version from specified version string '{version}'"
    if not (version.isascii() and version.isdigit() and _fits(version.lstrip("0"))):
        raise InvalidArgumentError(f"{wrong} (details: stol), version should be an integral value > 0")
    return version


def _fits(digits: str) -> bool:
    """Whether the number is none too large; Python refuses to look at one of more than 4,300 digits."""
    return len(digits) <= len(str(_MAX_VERSION)) and int(digits or "0") <= _MAX_VERSION


class ServerHandler:
    """Questions about the server and its models. All answers are values that JSON can carry."""

    def __init__(self, core: Core, extensions: Sequence[str] = ()) -> None:
        """``extensions`` are those that the front ends have beside the core's."""
        self._core = core
        self._extensions = extensions

    def live(self) -> bool:
        return self._core.live()

    def ready(self) -> bool:
        return self._core.ready()

    def metadata(self) -> dict[str, Any]:
        metadata = self._core.metadata()
        metadata["extensions"] = [*metadata["extensions"], *self._extensions]
        return metadata

    def model_ready(self, model: str, version: str) -> bool:
        """False also for a model or version that does not exist, as Triton answers."""
        try:
            return self._core.model_ready(model, check_version(version))
        except NotFoundError:
            return False

    def asks_model(self, model: str, version: str) -> bool:
        """Whether :meth:`model_ready` may take its time."""
        return self._core.asks_model(model, check_version(version))

    def model_metadata(self, model: str, version: str) -> dict[str, Any]:
        return self._core.model_metadata(model, check_version(version))

    def model_config(self, model: str, version: str) -> dict[str, Any]:
        return self._core.model_config(model, check_version(version))

    def statistics(self, model: str, version: str, caller: Caller | None = None) -> dict[str, Any]:
        """Of one version, all versions of ``model``, or all models that ``caller`` may see, as far as given."""
        statistics = self._core.statistics(model, check_version(version))
        return {**statistics, "model_stats": visible(statistics["model_stats"], caller)}
