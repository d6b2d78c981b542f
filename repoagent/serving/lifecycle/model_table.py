"""All models of a server by name."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from repoagent.api.report import LoadReport
from repoagent.errors import InvalidArgumentError, NotFoundError, RepoAgentError, UnavailableError
from repoagent.serving.lifecycle.load_attempt import LoadRequest
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.served_model import ServedModel

_DIGITS: Final = 19
"""Of the largest number that a version can be."""


class ModelTable:
    """The slots of a server, by identity. Looking a model up takes no lock."""

    def __init__(self, make_slot: Callable[[ModelId], ModelSlot]) -> None:
        self._make_slot = make_slot
        self._slots: dict[str, ModelSlot] = {}
        self._namesakes: dict[str, tuple[ModelSlot, ...]] = {}
        """The slots that have a namespace, by name alone."""
        self.wait_for: Callable[[str], bool] = lambda _name: False
        """Called with a model that cannot be found; True: look again."""
        self._lock = threading.Lock()
        self._closed = False

    def slots(self) -> list[ModelSlot]:
        """Every slot, by name."""
        with self._lock:
            return [slot for _, slot in sorted(self._slots.items())]

    def get(self, name: str) -> ModelSlot | None:
        """The slot of a model that was ever asked for, by its identity."""
        return self._slots.get(str(name))

    def named(self, name: str) -> list[ModelSlot]:
        """All slots of that name, and the one of that identity."""
        slot = self._slots.get(str(name))
        return [*([slot] if slot is not None else []), *self._namesakes.get(name, ())]

    def meant(self, name: str) -> ModelSlot | None:
        """The one slot that ``name``, or an identity, means; None if there is none. ``InvalidArgumentError`` if several
        namespaces have models of that name."""
        slot = self._slots.get(str(name))
        if slot is not None:
            return slot
        namesakes = self._namesakes.get(name, ())
        there = [slot for slot in namesakes if slot.present]
        if len(there) > 1:
            raise InvalidArgumentError(
                f"There are {len(there)} identifiers of model '{name}' in global map, model namespace must be provided "
                "to resolve ambiguity."
            )
        return next(iter(there or namesakes), None)

    def load(self, name: str, order: LoadRequest) -> Future[LoadReport]:
        """Queue a load, in a new slot if the model has none; ``UnavailableError`` once :meth:`close` was called."""
        with self._lock:
            if self._closed:
                raise UnavailableError(f"failed to load '{name}': the server is stopping")
            return self._slot(name).load(order)

    def slot(self, name: str) -> ModelSlot:
        """The slot of a model, a new one if it has none."""
        with self._lock:
            return self._slot(name)

    def _slot(self, name: str) -> ModelSlot:
        slot = self._slots.get(str(name))
        if slot is None:
            slot = self._slots[str(name)] = self._make_slot(ModelId.of(name))
            if slot.id.namespace:
                self._namesakes[slot.id.name] = (*self._namesakes.get(slot.id.name, ()), slot)
        return slot

    def close(self) -> None:
        """Take no further loads and cancel those that have not ended."""
        with self._lock:
            self._closed = True
            for slot in self._slots.values():
                slot.cancel("the server is stopping")

    def abandon(self) -> None:
        """End the calls whose loads and unloads have not ended: the server does not wait for them any longer."""
        for slot in self.slots():
            slot.abandon(UnavailableError(f"model '{slot.name}': the server has stopped without waiting any longer"))

    def members(self, name: str) -> frozenset[str]:
        """The models that a loaded ensemble calls; none if it is not loaded, or is no ensemble."""
        slot = self._slots.get(name)
        loaded = slot.loaded if slot is not None else None
        return loaded.members if loaded is not None else frozenset()

    def forget_if_empty(self, name: str) -> None:
        """Drop the slot of a name that turned out to be no model, so that wrong names do not pile up."""
        self._forget_if(name, lambda slot: slot.empty)

    def forget_if_gone(self, name: str) -> None:
        """Drop the slot of a model that no repository has any more, once nothing of it is loaded."""
        self._forget_if(name, lambda slot: slot.gone)

    def _forget_if(self, name: str, condition: Callable[[ModelSlot], bool]) -> None:
        with self._lock:
            slot = self._slots.get(str(name))
            if slot is not None and condition(slot):
                del self._slots[str(name)]
                if slot.id.namespace:
                    self._namesakes[slot.id.name] = tuple(s for s in self._namesakes[slot.id.name] if s is not slot)

    def find(self, name: str, version: str) -> ServedModel:
        """The version that requests for ``name`` and ``version`` go to; an empty version is the highest one.

        Raises:
            NotFoundError: there is no such model, or no such version.
            UnavailableError: that version is not ready.
            InvalidArgumentError: ``version`` is not a number.
        """
        slot = self._slots.get(name) or self.meant(name)
        loaded = slot.loaded if slot is not None else None
        if loaded is not None:
            served = loaded.by_name.get(version)
            if served is not None:
                return served
        return self._find_slowly(name, version)

    def _find_slowly(self, name: str, version: str) -> ServedModel:
        """The same for versions in other spellings; else the error that states what is wrong."""
        number = _version_number(version)
        if self.wait_for(name):
            return self.find(name, version)
        slot = self.meant(name)
        if slot is None or not slot.statuses():
            raise _unknown(f"'{name}' is not found")
        loaded = slot.loaded
        if loaded is not None and number is not None and number in loaded.versions:
            return loaded.versions[number]
        if number is None:
            if loaded is not None:
                return loaded.by_name[""]
            if [found for found, _ in slot.statuses()] == [None]:  # Nothing but a load that goes on, or failed early.
                raise _unknown(f"'{name}' is not found")
            raise _unknown(f"'{name}' has no available versions")
        if number not in dict(slot.statuses()):
            raise _unknown(f"'{name}' version {number} is not found")
        raise UnavailableError(f"Request for unknown model: '{name}' version {number} is not at ready state")


def _unknown(text: str) -> RepoAgentError:
    return NotFoundError(f"Request for unknown model: {text}")


def _version_number(text: str) -> int | None:
    if text in ("", "-1"):
        return None
    digits = text.lstrip("0")
    if not (text.isascii() and text.isdigit() and len(digits) <= _DIGITS):
        raise InvalidArgumentError(f"failed to get model version from specified version string '{text}'")
    return int(digits or "0")
