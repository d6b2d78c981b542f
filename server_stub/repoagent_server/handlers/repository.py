"""The model repository: index, load, unload, and the report of the last load."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from repoagent.errors import InternalError, NotFoundError, RepoAgentError, UnsupportedError
from repoagent.public_text import public_values
from repoagent_server.access import Access, Caller, Right
from repoagent_server.handlers.server import check_version
from repoagent_server.handlers.visible import visible
from repoagent_server.shared.core import Core

__all__ = ["LoadParameters", "RepositoryHandler"]

_FILE: Final = "file:"


@dataclass(slots=True)
class LoadParameters:
    """The parameters of a load request: an overriding configuration, and the contents of files by path."""

    config: str | None = None
    files: dict[str, bytes] = field(default_factory=dict)

    def add(self, name: str, value: str | bytes) -> None:
        """Take one parameter: ``config``, or ``file:PATH`` with its contents.

        Raises:
            InternalError: any other name (Triton's code and text).
        """
        if name == "config" and isinstance(value, str):
            self.config = value
        elif name.startswith(_FILE) and isinstance(value, bytes):
            self.files[name.removeprefix(_FILE).lstrip("/")] = value  # a leading slash means nothing, as in Triton
        else:
            raise InternalError("unexpected error on creating Triton parameter")

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


class RepositoryHandler:
    """Loads and unloads by request. These calls take as long as the agents and the backend take."""

    def __init__(self, core: Core, *, allow_load_parameters: bool = False) -> None:
        self._core = core
        self._allow_load_parameters = allow_load_parameters

    def index(self, ready_only: bool, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The models that ``caller`` may see."""
        entries: list[dict[str, Any]] = public_values(visible(self._core.index(ready_only=ready_only), caller))
        return entries

    def load(self, model: str, parameters: LoadParameters, caller: Caller | None = None, *, version: str = "") -> None:
        """Load or reload ``model``, or one ``version`` of it beside those that are loaded.

        Raises:
            UnsupportedError: there are parameters, and the operator has not allowed them.
            NotPermittedError: there are parameters, with which a model can call and become any other, and ``caller``
                may not manage all models.
        """
        if parameters and caller is not None:
            Access.require_all(caller, Right.MANAGE)
        with self._refusals(model):
            if parameters and not self._allow_load_parameters:
                raise UnsupportedError(
                    f"failed to load '{model}': a configuration or files in a load request are refused, because "
                    "their sender can replace a model and its checks. To accept them, start the server with "
                    "'--allow-load-parameters=true'"
                )
        files: Mapping[str, bytes] | None = parameters.files or None
        self._core.load(model, config=parameters.config, files=files, version=_number(version))

    def unload(self, model: str, *, unload_dependents: bool, caller: Caller | None = None, version: str = "") -> None:
        """Unload ``model``, or one ``version`` of it, with which nothing else goes.

        Raises:
            NotPermittedError: models that it is made of are to go as well, and ``caller`` may not manage all models.
        """
        number = _number(version)
        dependents = unload_dependents and number is None
        if dependents and caller is not None:
            Access.require_all(caller, Right.MANAGE)
        self._core.unload(model, unload_dependents=dependents, version=number)

    @contextmanager
    def _refusals(self, model: str) -> Iterator[None]:
        """Record a load that is refused. What a client may not do is no such load: its front end reports it."""
        try:
            yield
        except RepoAgentError as error:
            self._core.audit.record("load", "refused", {"model": model, "error": str(error)})
            raise

    def report(self, model: str) -> dict[str, Any]:
        """What the agents did when ``model`` was last loaded, or failed to load."""
        report = self._core.report(model)
        if report is None:
            raise NotFoundError(f"no load of model '{model}' has been reported yet")
        document: dict[str, Any] = public_values(report.to_dict())
        return document


def _number(version: str) -> int | None:
    """The number of a version as clients write it; None for "", which means the whole model."""
    text = check_version(version)
    return int(text) if text else None
