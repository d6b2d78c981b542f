"""A policy as a value: rules, each for the models whose names match its patterns."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Final

__all__ = ["NO_RULE", "AllowedAgent", "DemandedAgent", "Mode", "Policy", "Rule"]


class Mode(enum.Enum):
    """What happens when a model breaks a rule."""

    OFF = "off"
    """The rule is not applied: its agents do not run, nothing is checked."""
    WARN = "warn"
    """Its agents run and everything is checked; what would be refused is logged, and the load goes on."""
    ENFORCE = "enforce"
    """The load is refused."""


@dataclass(frozen=True, slots=True)
class DemandedAgent:
    """An agent that runs whether the model names it or not."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class AllowedAgent:
    """An agent that may be used. A field that is None admits anything; ``version`` may end in ``.*``."""

    name: str
    distribution: str | None = None
    version: str | None = None
    record_sha256: str | None = None
    """SHA-256 (hex) of the distribution's ``RECORD``, which lists the digest of each of its files. For an agent of
    ``--repoagent-directory``: of the list of all files in its directory."""

    def describe(self) -> str:
        """The entry as a person reads it."""
        details = [
            f"distribution {self.distribution}" if self.distribution else "",
            f"version {self.version}" if self.version else "",
            f"RECORD {self.record_sha256[:12]}..." if self.record_sha256 else "",
        ]
        shown = ", ".join(detail for detail in details if detail)
        return f"{self.name} ({shown})" if shown else self.name


@dataclass(frozen=True, slots=True)
class Rule:
    """What holds for the models whose names match one of ``models`` (shell patterns). None allows anything."""

    models: tuple[str, ...]
    mode: Mode = Mode.ENFORCE
    before: tuple[DemandedAgent, ...] = ()
    after: tuple[DemandedAgent, ...] = ()
    agents: tuple[AllowedAgent, ...] | None = None
    backends: tuple[str, ...] | None = None
    platforms: tuple[str, ...] | None = None
    commands: tuple[str, ...] | None = None
    """Programs that ``repoagent run`` may give the model to, and ``prepare`` for that command; if None, any may have
    it, unless the rule limits backends or platforms."""
    members: tuple[str, ...] | None = None
    """Patterns for the models that an ensemble may have as steps."""
    trust_roots: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    overrides: bool | None = None
    """Whether a load may bring a configuration of its own; None: unless demanded agents guard the model's files."""

    @property
    def demanded(self) -> tuple[DemandedAgent, ...]:
        """The agents that always run, in order."""
        return (*self.before, *self.after)

    @property
    def allows_overrides(self) -> bool:
        """Whether a load may bring a configuration: what a guard verified in a file, it has not seen in a request."""
        return not self.demanded if self.overrides is None else self.overrides

    def matches(self, model_name: str) -> bool:
        """Whether the rule is for this model; case counts."""
        return any(fnmatchcase(model_name, pattern) for pattern in self.models)


#: What holds for a model that no rule is for.
NO_RULE: Final = Rule(models=("*",), mode=Mode.OFF)


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in order; the first that matches a model decides, and it alone."""

    rules: Sequence[Rule] = ()
    source: str = "<policy>"

    def rule_for(self, model_name: str) -> Rule:
        """The first matching rule, or one that demands nothing."""
        return next((rule for rule in self.rules if rule.matches(model_name)), NO_RULE)
