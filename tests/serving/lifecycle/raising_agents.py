"""Agents that raise at random, in whatever they are called with, and the notes of what they were called with."""

import random
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, UnavailableError

AGENTS: Final = ("one", "two", "three", "four")

_MODULE: Final = "repoagent_soak_notes"

_CODE: Final = f"""
import shutil

import {_MODULE}
from repoagent.api import Agent, Action

class Raising(Agent):
    api_version = 1
    name = "NAME"

    def initialize(self):
        {_MODULE}.notes.agent(self, "initialize")

    def finalize(self):
        {_MODULE}.notes.agent(self, "finalize")

    def model_initialize(self, model):
        model.state = {_MODULE}.notes.begin(self.name, model.name)
        return {_MODULE}.notes.end("INITIALIZE")

    def model_finalize(self, model):
        model.state.append("FINALIZE")
        return {_MODULE}.notes.end("FINALIZE")

    def model_action(self, model, action):
        model.state.append(action.name)
        if action is Action.LOAD and {_MODULE}.notes.chance(0.3):
            target = model.acquire_location() / "model"
            shutil.copytree(model.localize(), target, dirs_exist_ok=True)
            model.update_location(target)
        if action is Action.LOAD_COMPLETE and {_MODULE}.notes.chance(0.02):
            model.request_unload("the soak asked")
        return {_MODULE}.notes.end(action.name)
"""

_LIVES: Final = re.compile(r"INITIALIZE (LOAD (LOAD_COMPLETE UNLOAD UNLOAD_COMPLETE |LOAD_FAIL ))?FINALIZE ")
_ERRORS: Final[tuple[Callable[[str], BaseException], ...]] = (
    ValueError, KeyError, OSError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError, RuntimeError,
    InvalidArgumentError, UnavailableError,
)  # fmt: skip


class Notes:
    """What agents were called with. They raise with the probability ``rate``."""

    def __init__(self, seed: int, rate: float) -> None:
        self.rate = rate
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._lives: list[list[str]] = []
        self._alive: Counter[int] = Counter()
        self.calls: Counter[str] = Counter()

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self._random.random() < probability

    def agent(self, agent: Any, call: str) -> None:
        """``initialize`` or ``finalize`` of an agent."""
        with self._lock:
            self._alive[id(agent)] += 1 if call == "initialize" else -1
        self._perhaps_raise(call)

    def begin(self, agent: str, model: str) -> list[str]:
        """A new life: its name, then what it is called with, to which the agent adds."""
        life = [f"agent {agent} of model {model}", "INITIALIZE"]
        with self._lock:
            self._lives.append(life)
        return life

    def end(self, call: str) -> object:
        """The end of a call. What this returns the agent returns, which refuses as much as raising does."""
        self._perhaps_raise(call)
        return "something" if self.chance(self.rate / 10) else None

    def _perhaps_raise(self, call: str) -> None:
        with self._lock:
            self.calls[call] += 1
        if self.chance(self.rate):
            raise self._random.choice(_ERRORS)(f"made on purpose in {call}")

    def judge(self) -> list[str]:
        """What is wrong with the lives, now that all must have ended; the next judgement begins with none."""
        with self._lock:
            lives, self._lives = self._lives, []
            alive, self._alive = self._alive, Counter()
        faults = [f"illegal life: {life}" for life in lives if not _LIVES.fullmatch("".join(f"{c} " for c in life[1:]))]
        return [*faults, *(f"an agent was not finalised once: {count}" for count in alive.values() if count)]


def write_agents(directory: Path, notes: Notes) -> None:
    """The agents ``AGENTS`` in a directory for repository agents; they write to ``notes``."""
    module = ModuleType(_MODULE)
    module.notes = notes  # type: ignore[attr-defined]
    sys.modules[_MODULE] = module
    for name in AGENTS:
        (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / name / "agent.py").write_text(_CODE.replace("NAME", name))
