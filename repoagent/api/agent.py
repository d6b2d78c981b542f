"""The base class of every agent."""

from collections.abc import Sequence
from typing import ClassVar, Final

from repoagent.api.model import AgentModel, Parameters
from repoagent.api.report import Action

SUPPORTED_API_VERSIONS: Final = frozenset({1})


class Agent:
    """Code that runs when a model is loaded or unloaded.

    One object serves every model that names the agent: ``initialize`` comes before the first model, ``finalize``
    after the last. Keep what belongs to one load in the :class:`AgentModel` that each call is given.

    Raising from ``initialize``, ``model_initialize`` or ``load`` refuses the load, and the text of the exception is
    the reason that the operator and the client read. Raising later is logged and noted in the load report, and
    stops nothing. A method that returns something counts as one that raised: only an exception refuses a model.

    Calls for one ``AgentModel`` never overlap. Calls for different ones may run at the same time, each on a worker
    thread of the server process. State that models share needs a lock.

    The smallest useful agent::

        class ReadmeAgent(Agent):
            api_version = 1

            def load(self, model: AgentModel) -> None:
                if not (model.localize() / "README.md").exists():
                    raise ValueError("the model has no README.md")
    """

    api_version: ClassVar[int]
    """The version of this interface that the agent was written for (now 1). Every agent states it."""

    guard: ClassVar[bool] = False
    """True for an agent that judges files (a digest, a signature): the loader then hands it a private snapshot, and
    what it judged is what is loaded."""

    compares_digests: ClassVar[bool] = False
    """True for a guard that asks for SHA-256 of most files (:meth:`AgentModel.digests`): they are computed while the
    snapshot is written."""

    judges_digests: ClassVar[bool] = False
    """True for a guard that takes the content of files from :meth:`AgentModel.digests` alone, asked before ``load``
    returns, but for small files that it reads once. It may be given the model where others can change it:
    :meth:`AgentModel.isolate` asks for the private copy."""

    reads_once: ClassVar[bool] = False
    """True for an agent that makes a new location of every file of the model, leaves the configuration as it is, and
    states with :meth:`AgentModel.keep_read_digests` what it read. Its ``load`` may be called while a guard before it
    judges (see ``judges_digests``), so that the files are read only once."""

    @classmethod
    def weaknesses(cls, parameters: Parameters) -> Sequence[str]:  # noqa: ARG003 - the base has none
        """What the owner of a model could still do if the operator's policy demanded this agent with ``parameters``.

        ``repoagent policy check`` prints these: one sentence each, with what closes it. A guard that returns none
        is assumed to check every file of the model. May raise for parameters that the agent would refuse.
        """
        return ()

    def initialize(self) -> None:
        """Prepare what all models share. Called once, before the first model that names the agent."""

    def finalize(self) -> None:
        """Undo ``initialize``. Called once, after the last model is gone, and also when ``initialize`` raised."""

    def model_initialize(self, model: AgentModel) -> None:
        """Prepare for one load of one model; ``model.state`` is yours."""

    def model_finalize(self, model: AgentModel) -> None:
        """The last call for ``model``, also when ``model_initialize`` raised."""

    def model_action(self, model: AgentModel, action: Action) -> None:
        """The one entry point of the life cycle. The default hands ``action`` to the method of the same name."""
        match action:
            case Action.LOAD:
                return self.load(model)
            case Action.LOAD_COMPLETE:
                return self.load_complete(model)
            case Action.LOAD_FAIL:
                return self.load_fail(model)
            case Action.UNLOAD:
                return self.unload(model)
            case Action.UNLOAD_COMPLETE:
                return self.unload_complete(model)

    def load(self, model: AgentModel) -> None:
        """The model is about to be loaded from ``model.location``. Raise to refuse it."""

    def load_complete(self, model: AgentModel) -> None:
        """The model is ready and serves."""

    def load_fail(self, model: AgentModel) -> None:
        """The load failed: in this agent, later in the chain, or in the backend."""

    def unload(self, model: AgentModel) -> None:
        """The model is about to be unloaded; it may still answer its last requests."""

    def unload_complete(self, model: AgentModel) -> None:
        """The model has been unloaded."""
