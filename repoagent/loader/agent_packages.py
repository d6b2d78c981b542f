"""Agents that installed packages offer through an entry-point group."""

from collections.abc import Iterator
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, metadata

from repoagent.errors import AgentError
from repoagent.loader.candidates import Candidate

__all__ = ["AGENTS_GROUP", "distribution_metadata", "package_candidates"]

AGENTS_GROUP = "repoagent.agents"
_SHOWN = ("Name", "Version", "Summary", "Author", "Author-email", "License-Expression", "License", "Home-page")


def package_candidates(group: str = AGENTS_GROUP) -> Iterator[Candidate]:
    """Everything the group offers, in the order the packages are found. Imports nothing."""
    for point in entry_points(group=group):
        yield _candidate(point)


def _candidate(point: EntryPoint) -> Candidate:
    distribution = point.dist
    return Candidate(
        name=point.name,
        origin="package",
        target=point.value,
        resolve=partial(_resolve, point),
        distribution=distribution.name if distribution else None,
        version=distribution.version if distribution else None,
    )


def _resolve(point: EntryPoint) -> object:
    if point.pattern.match(point.value) is None:
        owner = f" of package {point.dist.name}" if point.dist else ""
        text = f"the entry point {point.value!r}{owner} is not valid; an entry point is 'module:Class'"
        raise AgentError(point.name, text)
    return point.load()


def distribution_metadata(distribution: str) -> dict[str, str]:
    """The fields of an installed distribution's metadata that a person wants to see; empty if it is gone."""
    try:
        fields = metadata(distribution)
    except PackageNotFoundError:
        return {}
    return {key: fields[key] for key in _SHOWN if key in fields}
