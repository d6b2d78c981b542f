"""What was made of what: an in-toto statement beside every result, with the provenance predicate of SLSA."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from repoagent.api.converters import ConversionPlan, Product
from repoagent.beneath.digests import digest_files
from repoagent.errors import InternalError
from repoagent.nested_text import read_json

SUFFIX: Final = ".intoto.json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
_BUILD_TYPE: Final = "urn:repoagent:conversion:v1"
_BUILDER: Final = "urn:repoagent:converter"
_MOST_BYTES: Final = 16 << 20


def statement_name(plan: ConversionPlan) -> str:
    """The name of the file beside the result."""
    return f"{plan.output}{SUFFIX}"


def write_statement(
    directory: Path,
    pair: tuple[str, str],
    converter_version: str,
    plan: ConversionPlan,
    digests: Mapping[str, str],
    product: Product,
    started: datetime,
    proceed: Callable[[], None],
) -> dict[str, str]:
    """Describe the result that lies in ``directory``; SHA-256 of each of its files.

    ``proceed`` is called again and again, and may raise. Raises ``InternalError`` without the file that the plan names.
    """
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if not path.is_dir())
    if plan.output not in files:
        made = ", ".join(files) or "nothing"
        raise InternalError(f"the converter from '{pair[0]}' to '{pair[1]}' made {made}, but not {plan.output}")
    versions = {"repoagent-core": _own_version(), **tools_of(converter_version, plan)}
    subjects = _subjects(directory, files, plan, product, proceed)
    statement = {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": definition_of(pair, plan, digests),
            "runDetails": {
                "builder": {"id": _BUILDER, "version": versions},
                "metadata": {"startedOn": _time(started), "finishedOn": _time(datetime.now(UTC))},
                "byproducts": [{"name": "notes", "annotations": {"notes": list(product.notes)}}],
            },
        },
    }
    (directory / statement_name(plan)).write_text(f"{json.dumps(statement, indent=2)}\n", encoding="utf-8")
    return {one["name"]: one["digest"]["sha256"] for one in subjects}


def read_product(directory: Path, plan: ConversionPlan) -> Product:
    """What the build reported of the result in ``directory``, as its statement has it; raises ``InternalError`` if that
    cannot be read."""
    path = directory / statement_name(plan)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        statement = read_json(path.read_text(encoding="utf-8"))
        (subject,) = (one for one in statement["subject"] if one["name"] == plan.output)
        (byproduct,) = statement["predicate"]["runDetails"]["byproducts"]
        return Product(subject["annotations"], tuple(byproduct["annotations"]["notes"]))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InternalError(f"{path.name}, the statement beside a kept result, cannot be read: {error}") from error


def _subjects(
    directory: Path, files: Sequence[str], plan: ConversionPlan, product: Product, proceed: Callable[[], None]
) -> list[dict[str, Any]]:
    def cancelled() -> bool:
        proceed()
        return False

    found = digest_files(directory, dict.fromkeys(files, ("sha256",)), cancelled=cancelled)
    subjects = _descriptors({name: digests["sha256"] for name, digests in found.items()})
    next(one for one in subjects if one["name"] == plan.output)["annotations"] = dict(product.annotations)
    return subjects


def _descriptors(digests: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in digests.items()]


def definition_of(pair: tuple[str, str], plan: ConversionPlan, digests: Mapping[str, str]) -> dict[str, Any]:
    """What was to be made of what, as a statement has it."""
    return {
        "buildType": _BUILD_TYPE,
        "externalParameters": {"from": pair[0], "to": pair[1], "settings": plan.settings, "target": plan.target},
        "resolvedDependencies": _descriptors(digests),
    }


def tools_of(converter_version: str, plan: ConversionPlan) -> dict[str, str]:
    """The versions on which the result depends."""
    return {"converter": converter_version, **plan.tools}


def _own_version() -> str:
    try:
        return version("repoagent-core")
    except PackageNotFoundError:  # used from a checkout that is not installed
        return "unknown"


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
