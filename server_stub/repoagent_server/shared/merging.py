"""What several servers report of their models, put together: the workers of one, or the replicas of a cluster."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

#: States of a version, the one that counts first.
_ORDER: Final = ("READY", "LOADING", "UNLOADING", "UNAVAILABLE", "")
_HELP: Final = "# HELP "
_MOST: Final = (1 << 64) - 1
"""What gRPC's messages have room for."""
_LATEST: Final = frozenset({"last_inference"})


def merged_index(indexes: Iterable[Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """One entry for each version: of the server that is furthest with it."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for entry in (entry for index in indexes for entry in index):
        key = (entry["name"], entry.get("namespace", ""), entry.get("version", ""))
        if key not in found or _rank(entry) < _rank(found[key]):
            found[key] = dict(entry)
    loaded = {key[:2] for key in found if key[2]}
    return [found[key] for key in sorted(found) if key[2] or key[:2] not in loaded]


def _rank(entry: Mapping[str, Any]) -> int:
    return _ORDER.index(entry.get("state", ""))


def merged_statistics(statistics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of each version, added up over the servers."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in (entry for one in statistics for entry in one["model_stats"]):
        key = (entry["name"], entry["version"])
        found[key] = _sum(found[key], entry) if key in found else dict(entry)
    return {"model_stats": [found[key] for key in sorted(found)]}


def _sum(one: Any, other: Any, name: str = "") -> Any:
    """Numbers added, the later of two times, mappings and lists by their entries; else what the first has."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        both = {key: _sum(one[key], other[key], key) for key in one if key in other}
        return {**other, **one, **both}
    if isinstance(one, list) and isinstance(other, list):
        return _summed_batches(one, other)
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool):
        return max(one, other) if name in _LATEST else min(one + other, _MOST)
    return one


def _summed_batches(one: list[Any], other: list[Any]) -> list[Any]:
    """Statistics by the size of the batch, which is their key and no number to add."""
    sizes: dict[Any, Any] = {}
    for entry in (*one, *other):
        size = entry.get("batch_size")
        sizes[size] = {**_sum(sizes[size], entry), "batch_size": size} if size in sizes else entry
    return [sizes[size] for size in sorted(sizes)]


def merged_metrics(pages: Iterable[tuple[str, str]], label: str) -> str:
    """One page of metrics from several: each value gets the name of its server as the label ``label``."""
    families: dict[str, list[str]] = {}
    for server, page in pages:
        lines, own = list[str](), tuple[str, ...]()
        for line in filter(None, page.split("\n")):  # Python sees the end of a line also within a label's text
            if line.startswith(_HELP):
                family = line.split(" ", 3)[2]
                lines, own = families.setdefault(family, []), _lines_of(family)
            if not line.startswith(own):
                continue
            if not line.startswith("#"):
                lines.append(_labelled(line, f'{label}="{server}"'))
            elif not any(one.startswith(line[: len(_HELP)]) for one in lines[:2]):  # one HELP and one TYPE
                lines.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def _lines_of(family: str) -> tuple[str, ...]:
    """How the lines begin that collectors expect below the name of a family."""
    ends = [f"{family}{suffix}{end}" for suffix in ("", "_bucket", "_sum", "_count") for end in " {"]
    return (f"{_HELP}{family} ", f"# TYPE {family} ", *ends)


def _labelled(line: str, label: str) -> str:
    """A line of a value, with another label first."""
    end = next(index for index, character in enumerate(line) if character in "{ ")
    name, rest = line[:end], line[end:]
    label_name = label[: label.index("=") + 2]
    if label_name in rest:  # A model's own metrics may have it; a collector refuses a page with a label that is twice.
        rest = re.sub(rf"(?<=[{{,]){label_name}", f"exported_{label_name}", rest)
    own = f"{{{label}"
    return f"{name}{own},{rest[1:]}" if rest.startswith("{") else f"{name}{own}}}{rest}"
