"""The order in which models go: ensembles before what they call, and what was loaded only for them after."""

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.serving.ensembles.plan import Dependencies
from repoagent.serving.lifecycle.loaded_model import Retirements
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.lifecycle.model_states import UNLOADED, ModelState
from repoagent.serving.lifecycle.model_table import ModelTable

_FOR_AGENTS: Final = 0.25
"""Of the exit timeout, what remains when requests that run are given up."""

logger = logging.getLogger(__name__)


class Unloader:
    """Unloads models of ``table`` with what depends on them."""

    def __init__(self, table: ModelTable, dependencies: Dependencies, retirements: Retirements) -> None:
        self._table = table
        self._dependencies = dependencies
        self._retirements = retirements

    def unload(self, name: str, *, with_members: bool = False, wait: bool = True, reason: str = UNLOADED) -> None:
        """Unload a model; one that is not loaded is fine. Ensembles that call it go first, they cannot do without.

        ``with_members`` also unloads the members of an ensemble that were not asked for by name and that no other one
        calls. Without ``wait`` this returns as soon as no new request reaches the model. ``reason`` is for the index.
        Nothing is unloaded if this raises ``UnavailableError``: one of these models is leased.
        """
        for slot in self._slots(self._dependencies.users(name, pending=False)):
            slot.follow_members().result()  # Its member may be another one by now: one in another repository.
        users = self._dependencies.all_users(name)
        for slot in self._slots([*users, name]):
            slot.refuse_if_leased()
        self._dependencies.adopt(name)
        for slot in self._slots(users):
            slot.orphan()
            logger.warning("unloading ensemble '%s': it calls model '%s', which is being unloaded", slot.name, name)
            slot.unload().result().wait()
        members = sorted(self._dependencies.members(name)) if with_members else []
        for slot in self._slots([name]):
            gone = slot.unload(reason=reason).result()
            if wait or members:  # The requests inside an ensemble still need its members.
                gone.wait()
        for member in members:
            self._unload_member(member, wait=wait)

    def unload_for_good(self, name: str, reason: str) -> None:
        """Unload a model that must not be used any more, as :meth:`unload` does; leases only put it off.

        Does nothing more once another load has taken the place of what is loaded now.
        """
        slot = self._table.get(name)
        loaded = slot.loaded if slot is not None else None
        while True:
            try:
                self.unload(name, reason=reason)
            except UnavailableError:
                leased = [slot for slot in self._slots([*self._dependencies.all_users(name), name]) if slot.leases]
                if slot is None or slot.loaded is not loaded:
                    return
                if not leased:
                    raise
                logger.warning("model '%s' is leased, and unloaded when that has ended: %s", name, reason)
                for holder in leased:
                    held = holder.loaded
                    if held is not None:
                        holder.wait_released(held)
            else:
                return

    def _unload_member(self, name: str, *, wait: bool) -> None:
        slot = self._table.get(name)
        if slot is None or slot.loaded is None or slot.explicit or self._dependencies.users(name):
            return
        try:
            self.unload(name, with_members=True, wait=wait)
        except RepoAgentError as error:
            logger.info("model '%s' stays loaded: %s", name, error)

    def _slots(self, names: Iterable[str]) -> list[ModelSlot]:
        return [slot for name in names if (slot := self._table.get(name)) is not None]

    def unload_everything(self, deadline: float) -> bool:
        """Cancel all loads and unload all models, leased or not; False if ``deadline`` (monotonic) was not enough."""
        self._table.close()
        # What does not end by itself is ended in time for its agents to hear of it.
        self._retirements.hurry(deadline - _FOR_AGENTS * _left(deadline))
        if loads := self._in_state(ModelState.LOADING):
            logger.info("cancelling these loads, which have to end first: %s", ", ".join(loads))
        try:
            while outermost := self._outermost():
                self._unload_all(outermost, deadline)
            self._unload_all(self._table.slots(), deadline)
            in_time = self._retirements.wait(deadline)
        except FutureTimeoutError:
            in_time = False
        if not in_time:
            left = ", ".join(self._still_there())
            logger.error("the exit timeout is over, and these models are not unloaded: %s", left)
        return in_time

    def _still_there(self) -> list[str]:
        gone = ModelState.UNAVAILABLE
        states = {slot.name: {status.state for _, status in slot.statuses()} - {gone} for slot in self._table.slots()}
        return [f"{name} ({'/'.join(s.value for s in found)})" for name, found in sorted(states.items()) if found]

    def _in_state(self, state: ModelState) -> list[str]:
        slots = self._table.slots()
        return sorted(slot.name for slot in slots if any(status.state is state for _, status in slot.statuses()))

    def _outermost(self) -> list[ModelSlot]:
        """The loaded ensembles that no other one calls."""
        ensembles = self._dependencies.loaded()
        called = frozenset[str]().union(*ensembles.values())
        return self._slots(ensembles.keys() - called)

    @staticmethod
    def _unload_all(slots: list[ModelSlot], deadline: float) -> None:
        unloads = [slot.unload(force=True) for slot in slots]
        for unload in unloads:
            _wait(unload.result(_left(deadline)), deadline)


def _wait(event: threading.Event, deadline: float) -> None:
    if not event.wait(_left(deadline)):
        raise FutureTimeoutError


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
