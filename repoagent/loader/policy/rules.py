"""A policy as a value: rules, each for the models whose names match its patterns; and the file that it is read from."""

import enum
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from repoagent.errors import ConfigError
from repoagent.nested_text import read_toml


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
    builders: Mapping[str, Path] = field(default_factory=lambda: MappingProxyType({}))
    """Public keys of those whose shared conversions are taken, by name."""
    builders_needed: int = 1
    """How many of them must have made the same result."""
    conversions: str = "build"
    """``build`` here, ``prefer-shared`` results, or ``shared-only``."""
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
    sha256: str = ""
    """That of the file, as it was read."""

    def rule_for(self, model_name: str) -> Rule:
        """The first matching rule, or one that demands nothing."""
        return next((rule for rule in self.rules if rule.matches(model_name)), NO_RULE)


_RULE_KEYS: Final = frozenset(
    {"models", "mode", "before", "after", "agents", "backends", "platforms", "commands", "members", "trust_roots"}
    | {"overrides", "builders", "builders_needed", "conversions"},
)
_CONVERSIONS: Final = ("build", "prefer-shared", "shared-only")
T = TypeVar("T")
_HEX64: Final = re.compile(r"[0-9a-f]{64}")


def read_policy(path: Path) -> Policy:
    """Read and check the policy at ``path``. Raises ``ConfigError`` if it cannot be read, is not TOML, or has something
    that is not part of a policy."""
    source = str(path)
    try:
        data = path.read_bytes()
        document = read_toml(data.decode())
    except OSError as error:
        raise ConfigError(f"the policy cannot be read: {error.strerror}", source=source) from error
    except ValueError as error:
        raise ConfigError(f"not a TOML file: {error}", source=source) from error
    return replace(_Reader(source, path.parent).policy(document), sha256=hashlib.sha256(data).hexdigest())


class _Reader:
    """Walks the document; every error names the place in it."""

    def __init__(self, source: str, base: Path) -> None:
        self._source = source
        self._base = base

    def policy(self, document: Mapping[str, Any]) -> Policy:
        self._only(document, {"mode", "rule"}, "the file")
        mode = self._mode(document.get("mode", Mode.ENFORCE.value), "mode")
        rules = self._tables(document.get("rule", []), "rule")
        return Policy(tuple(self._rule(rule, f"rule {i + 1}", mode) for i, rule in enumerate(rules)), self._source)

    def _rule(self, table: Mapping[str, Any], where: str, default_mode: Mode) -> Rule:
        self._only(table, _RULE_KEYS, where)
        models = self._texts(table.get("models", []), f"{where}: models")
        if not models:
            raise self._error(where, 'it needs "models", a list of name patterns such as ["fraud-*"]')
        return Rule(
            models=models,
            mode=self._mode(table.get("mode", default_mode.value), where),
            before=self._demanded(table.get("before", []), f"{where}: before"),
            after=self._demanded(table.get("after", []), f"{where}: after"),
            agents=self._optional(table, "agents", where, self._allowed),
            backends=self._optional(table, "backends", where, self._texts),
            platforms=self._optional(table, "platforms", where, self._texts),
            commands=self._optional(table, "commands", where, self._texts),
            members=self._optional(table, "members", where, self._texts),
            overrides=self._flag(table, "overrides", where),
            trust_roots=self._trust_roots(table.get("trust_roots", {}), f"{where}: trust_roots"),
            **self._shared(table, where),
        )

    def _shared(self, table: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Whose conversions are taken, and whether any but those."""
        builders = self._trust_roots(table.get("builders", {}), f"{where}: builders")
        needed, mode = table.get("builders_needed", 1), table.get("conversions", _CONVERSIONS[bool(builders)])
        if mode not in _CONVERSIONS:
            raise self._error(where, f'"conversions" must be one of {", ".join(_CONVERSIONS)}, not {mode!r}')
        if type(needed) is not int or not 1 <= needed <= max(1, len(builders)):
            raise self._error(where, f'"builders_needed" must be a number from 1 to {max(1, len(builders))}')
        if mode != _CONVERSIONS[0] and not builders:
            raise self._error(where, f'conversions = "{mode}" needs "builders", the keys of those that make them')
        return {"builders": builders, "builders_needed": needed, "conversions": mode}

    def _optional(
        self, table: Mapping[str, Any], key: str, where: str, read: Callable[[Any, str], tuple[T, ...]]
    ) -> tuple[T, ...] | None:
        return read(table[key], f"{where}: {key}") if key in table else None

    def _flag(self, table: Mapping[str, Any], key: str, where: str) -> bool | None:
        value = table.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._error(where, f'"{key}" must be true or false, not {value!r}')
        return value

    def _demanded(self, value: Any, where: str) -> tuple[DemandedAgent, ...]:
        """``["checksum"]`` or ``[{ agent = "checksum", parameters = { manifest = "SHA256SUMS" } }]``, or mixed."""
        return tuple(self._demand(entry, f"{where}, entry {i + 1}") for i, entry in enumerate(self._list(value, where)))

    def _demand(self, entry: Any, where: str) -> DemandedAgent:
        if isinstance(entry, str):
            return DemandedAgent(entry)
        table = self._table(entry, where)
        self._only(table, {"agent", "parameters"}, where)
        return DemandedAgent(
            self._name(table.get("agent"), where), self._parameters(table.get("parameters", {}), where)
        )

    def _parameters(self, value: Any, where: str) -> tuple[tuple[str, str], ...]:
        """A table, or a list of ``[key, value]`` pairs where a key is repeated."""
        pairs: Iterable[Any] = value.items() if isinstance(value, Mapping) else self._list(value, where)
        read = [tuple(pair) for pair in pairs if isinstance(pair, list | tuple)]
        if len(read) != len(value) or any(len(p) != 2 or not all(isinstance(x, str) for x in p) for p in read):
            raise self._error(where, "parameters must be a table of texts or a list of [key, value] pairs of texts")
        return tuple((key, text) for key, text in read)

    def _allowed(self, value: Any, where: str) -> tuple[AllowedAgent, ...]:
        """``["checksum"]`` or ``[{ name = "checksum", distribution = ..., version = ..., record_sha256 = ... }]``."""
        return tuple(self._allow(entry, f"{where}, entry {i + 1}") for i, entry in enumerate(self._list(value, where)))

    def _allow(self, entry: Any, where: str) -> AllowedAgent:
        if isinstance(entry, str):
            return AllowedAgent(entry)
        table = self._table(entry, where)
        self._only(table, {"name", "distribution", "version", "record_sha256"}, where)
        for key, text in table.items():
            if not isinstance(text, str):
                raise self._error(where, f'"{key}" must be a text')
        record = table.get("record_sha256")
        if record is not None and not _HEX64.fullmatch(record):
            raise self._error(where, '"record_sha256" must be 64 lower-case hexadecimal digits')
        return AllowedAgent(
            self._name(table.get("name"), where), table.get("distribution"), table.get("version"), record
        )

    def _trust_roots(self, value: Any, where: str) -> dict[str, Path]:
        """Name -> file, relative to the policy; a root that is not there could only fail later, so it fails now."""
        roots = {}
        for name, text in self._table(value, where).items():
            path = self._base / self._name(text, f"{where}: {name}")
            if not path.is_file():
                raise self._error(f"{where}: {name}", f"there is no file {path}")
            roots[name] = path
        return roots

    def _mode(self, value: Any, where: str) -> Mode:
        try:
            return Mode(value)
        except ValueError:
            raise self._error(where, f"the mode must be off, warn or enforce, not {value!r}") from None

    def _texts(self, value: Any, where: str) -> tuple[str, ...]:
        return tuple(self._name(entry, where) for entry in self._list(value, where))

    def _tables(self, value: Any, where: str) -> list[Mapping[str, Any]]:
        return [self._table(entry, where) for entry in self._list(value, where)]

    def _name(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value:
            raise self._error(where, f"expected a text that is not empty, found {value!r}")
        return value

    def _list(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self._error(where, f"expected a list, found {value!r}")
        return value

    def _table(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._error(where, f"expected a table, found {value!r}")
        return value

    def _only(self, table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        unknown = sorted(set(table) - set(known))
        if unknown:
            raise self._error(where, f"unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")

    def _error(self, where: str, message: str) -> ConfigError:
        return ConfigError(f"{where}: {message}", source=self._source)
