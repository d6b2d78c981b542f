"""The configuration after an agent moved the model: what the new place has, and what it may not change."""

from collections.abc import Sequence
from dataclasses import dataclass

from repoagent.config import ModelConfig, copy, read_text
from repoagent.errors import ConfigError

_KEPT = ("name", "model_repository_agents")
"""Never taken from a file that an agent wrote: the load is of this name and with these agents."""


@dataclass(frozen=True, slots=True)
class Move:
    """What there is to know about one ``update_location``.

    ``before`` and ``after`` are the texts of the configuration file at the old and the new place, None where there is
    none. ``from_effective`` states that the agent wrote the new one from ``AgentModel.config`` and never looked at the
    old file; ``overridden`` that the load call brought a configuration of its own.
    """

    before: str | None
    after: str | None
    from_effective: bool = False
    overridden: bool = False


def reread(effective: ModelConfig | None, move: Move, *, source: str) -> ModelConfig | None:
    """Return the configuration that holds after ``move``; ``effective`` is the one before, and is not changed.

    No file at the new place, or an unchanged one: ``effective`` stands. Otherwise the file, called ``source`` in
    messages, is believed, except for name and agents. Under an override the file wins only in the top-level fields
    which the agent changed against its own input: the old file, or the effective configuration where the agent started
    from that. Raises ``ConfigError`` if the new file does not parse.
    """
    if move.after is None or move.after == move.before:
        return effective
    found = read_text(move.after, source=source)
    if effective is None:
        found.ClearField("model_repository_agents")
        return found
    if not move.overridden:
        return _with_fields(found, effective, _KEPT)
    baseline = effective if move.from_effective else _baseline(move.before, effective, source)
    changed = [name for name in _fields(found) if name not in _KEPT and not _same(found, baseline, name)]
    return _with_fields(effective, found, changed)


def _baseline(before: str | None, effective: ModelConfig, source: str) -> ModelConfig:
    if before is None:
        return effective
    try:
        return read_text(before, source=source)
    except ConfigError:
        # An override makes up for a broken file; then everything that the agent wrote counts as changed.
        return ModelConfig()


def _fields(config: ModelConfig) -> list[str]:
    return [field.name for field in config.DESCRIPTOR.fields]


def _same(one: ModelConfig, other: ModelConfig, field: str) -> bool:
    return _only(one, field) == _only(other, field)


def _only(config: ModelConfig, field: str) -> ModelConfig:
    """A copy of ``config`` with this one field left."""
    part = copy(config)
    for other in _fields(config):
        if other != field:
            part.ClearField(other)
    return part


def _with_fields(base: ModelConfig, other: ModelConfig, fields: Sequence[str]) -> ModelConfig:
    """A copy of ``base`` that has ``fields`` from ``other``, also where they are empty there."""
    result = copy(base)
    for field in fields:
        result.ClearField(field)
        result.MergeFrom(_only(other, field))
    return result
