"""What happens to ensembles when the models that they call change, go, or come back."""

from contextlib import suppress

from repoagent.errors import UnavailableError
from repoagent.serving.ensembles.dependencies import Dependencies
from repoagent.serving.lifecycle.load_request import LoadRequest
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.requests.model_id import ModelId

__all__ = ["EnsembleFollowers"]


class EnsembleFollowers:
    """Makes the ensembles in ``table`` follow their members. Every method may be called from any thread."""

    def __init__(self, table: ModelTable, dependencies: Dependencies) -> None:
        self._table = table
        self._dependencies = dependencies

    def changed(self, model: str) -> None:
        """``model`` has been loaded, or lost its members: queue what its ensembles have to do, and return at once.

        Those that are loaded are rebuilt from what it is now. Those that went because it had gone come back.
        """
        if not self._dependencies.any:
            return
        orphans = self._dependencies.orphans_of(model)  # Before others become orphans by this very change.
        for name in self._dependencies.users_of_namesakes(model):
            slot = self._table.get(name)
            if slot is not None:
                slot.follow_members()
        for name, (members, explicit) in orphans.items():
            if all(map(self._available, members)):  # It must not bring others back that someone has unloaded.
                with suppress(UnavailableError):  # The server is stopping.
                    self._table.load(name, LoadRequest(needed=not explicit))

    def _available(self, model: str) -> bool:
        """Whether ``model``, or one of its name in another repository, is loaded."""
        return any(slot.loaded is not None for slot in self._table.named(ModelId.of(model).name))

    def settle(self, model: str) -> None:
        """Wait until the ensembles that need ``model``, directly or not, have followed it."""
        if not self._dependencies.any:
            return
        queue = [model]
        known: set[tuple[str, str]] = set()
        while queue:
            name = queue.pop(0)
            # Asked for only now: what an ensemble does may let others come back, or go.
            for user in {*self._dependencies.users_of_namesakes(name), *self._dependencies.orphans_of(name)}:
                slot = self._table.get(user)
                if slot is not None and (name, user) not in known:
                    known.add((name, user))
                    slot.settled().result()
                    queue.append(user)
