"""Agents that are shared libraries for Triton, as agents of this server."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from repoagent.api import Action, Agent, AgentModel
from repoagent.errors import InternalError, UnavailableError
from repoagent.loader.agent_directory import PINNED_CODE
from repoagent_capi import crossing
from repoagent_capi._crossing import ffi, lib
from repoagent_capi.agents import MODELS
from repoagent_capi.errors import as_bytes, check


def private_copy(library: Path) -> Path | None:
    """A private directory with the files that lie beside ``library``; None if no policy pins them.

    Raises:
        UnavailableError: a file is not the one that the policy allows.
    """
    if PINNED_CODE.digest_of(library) is None:
        return None
    target = Path(tempfile.mkdtemp(prefix="repoagent-native-"))
    try:
        _copy(library.parent, target)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return target


def _copy(source: Path, target: Path) -> None:
    for directory, _, names in os.walk(source):
        to = target / Path(directory).relative_to(source)
        to.mkdir(exist_ok=True)
        for name in names:
            content = (Path(directory) / name).read_bytes()
            if PINNED_CODE.digest_of(Path(directory) / name) != hashlib.sha256(content).hexdigest():
                raise UnavailableError(f"{name} is not the file that the policy allows; it was changed, or added")
            (to / name).write_bytes(content)
            (to / name).chmod(0o500)


class NativeAgent(Agent):
    """A repository agent in a shared library.

    The library is opened in :meth:`initialize` and closed in :meth:`finalize`, so it goes after the last model. It runs
    in this process: if it crashes, the server ends.
    """

    api_version = 1

    def __init__(self, name: str, library: Path) -> None:
        self._name = name
        self._library = library
        self._copy: Path | None = None
        self._handle: Any = None

    def initialize(self) -> None:
        """Open the library and call ``TRITONREPOAGENT_Initialize``."""
        crossing.ready()
        self._copy = private_copy(self._library)
        library = self._library if self._copy is None else self._copy / self._library.name
        handle = ffi.new("void**")
        check(lib.repoagent_agent_open(as_bytes(str(library.absolute())), handle))
        self._handle = handle[0]
        check(lib.repoagent_agent_initialize(self._handle))

    def finalize(self) -> None:
        """Call ``TRITONREPOAGENT_Finalize`` and close the library."""
        handle, self._handle = self._handle, None
        try:
            if handle is not None:
                try:
                    check(lib.repoagent_agent_finalize(handle))
                finally:
                    lib.repoagent_agent_close(handle)
        finally:
            if self._copy is not None:
                shutil.rmtree(self._copy)
                self._copy = None

    def model_initialize(self, model: AgentModel) -> None:
        """Make a handle for ``model``, kept as its state, and call ``TRITONREPOAGENT_ModelInitialize``."""
        model.state = _OpenModel(model)
        check(lib.repoagent_model_initialize(self._handle, model.state.handle))

    def model_action(self, model: AgentModel, action: Action) -> None:
        """Call ``TRITONREPOAGENT_ModelAction``."""
        check(lib.repoagent_model_action(self._handle, _handle_of(model), int(action)))

    def model_finalize(self, model: AgentModel) -> None:
        """Call ``TRITONREPOAGENT_ModelFinalize`` and end the handle."""
        if model.state is None:
            return  # There was no memory for it.
        try:
            check(lib.repoagent_model_finalize(self._handle, _handle_of(model)))
        finally:
            model.state.close()


class _OpenModel:
    """The handle of one model for one entry of its chain."""

    def __init__(self, model: AgentModel) -> None:
        self._number = MODELS.add(model)
        handle = ffi.new("void**")
        kept = [(ffi.new("char[]", as_bytes(key)), ffi.new("char[]", as_bytes(value))) for key, value in _pairs(model)]
        parameters = ffi.new("core_parameter[]", [{"name": key, "bytes": value} for key, value in kept])
        try:
            check(lib.repoagent_model_open(self._number, parameters, len(kept), handle))
        except BaseException:
            MODELS.remove(self._number)
            raise
        self.handle = handle[0]

    def close(self) -> None:
        lib.repoagent_model_close(self.handle)
        MODELS.remove(self._number)


def _pairs(model: AgentModel) -> list[tuple[str, str]]:
    return list(model.parameters.items())


def _handle_of(model: AgentModel) -> Any:
    if not isinstance(model.state, _OpenModel):
        raise InternalError("the model has no handle")
    return model.state.handle
