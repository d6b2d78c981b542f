"""``repoagent attest verify``: a receipt, the key of who made it, and what it should agree with."""

import sys
from pathlib import Path
from typing import Any, Final

import click

from repoagent.api import InvalidArgumentError, RepoAgentError, read_small_file
from repoagent_attest.attestor import DETAILS_SUFFIX, SUMMARY_SUFFIX
from repoagent_attest.envelope import read_document, read_public_key
from repoagent_attest.verification import differences, read_receipt

__all__ = ["attest_group"]

_LARGEST: Final = 256 << 20
_SMALL: Final = 1 << 20
_PATH: Final = click.Path(path_type=Path)


@click.group()
def attest_group() -> None:
    """Verify receipts of loads."""


@attest_group.command("verify")
@click.argument("receipt", type=_PATH)
@click.option("--public-key", type=_PATH, required=True, help="The key of the server that made it (PEM or DER).")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The model it is about.")
@click.option("--policy", type=_PATH, help="The policy by which the model should have been loaded.")
def verify_command(receipt: Path, public_key: Path, model: Path | None, policy: Path | None) -> None:
    """Verify a receipt, and compare it with a model and a policy.

    RECEIPT is FILE.vsa.json, or what a server sent.

    Exits 1 at a signature that does not hold and at any difference, 2 if a file cannot be read.
    """
    try:
        key = read_public_key(_read(public_key, _SMALL))
        document = _document(receipt)
        beside = receipt.with_name(receipt.name.removesuffix(SUMMARY_SUFFIX) + DETAILS_SUFFIX)
        linked = receipt.name.endswith(SUMMARY_SUFFIX) and beside.exists()
        rules = None if policy is None else _read(policy, _SMALL)
    except (OSError, RepoAgentError) as error:
        click.echo(_printable(f"repoagent: {_reason(error)}"), err=True)
        sys.exit(2)
    try:
        found = read_receipt(document, _document(beside) if linked else None, key)
        faults = list(differences(found, model, rules))
    except (OSError, RepoAgentError) as error:
        click.echo(_printable(f"repoagent: {_reason(error)}"), err=True)
        sys.exit(1)
    for fault in faults:
        click.echo(_printable(fault), err=True)
    if faults:
        sys.exit(1)
    click.echo(_printable(f"{found.predicate['resourceUri']}: verified by {found.predicate['verifier']['id']}"))
    click.echo(_printable(", ".join([found.predicate["timeVerified"], *found.predicate["verifiedLevels"]])))
    for subject in found.summary["subject"][1:]:
        click.echo(_printable(f"{subject.get('name')}: sha256:{subject['digest']['sha256']}"))
    if found.overridden:
        click.echo("loaded by a configuration that is not the model's own")
    click.echo(f"sha256:{found.digest}: OK")


def _document(path: Path) -> dict[str, Any]:
    return read_document(_read(path, _LARGEST), path.name)


def _read(path: Path, limit: int) -> bytes:
    return read_small_file(path, limit=limit)


def _printable(text: str) -> str:
    """One line: the model's owner names its files, and may name the source of the model."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return error.message if isinstance(error, InvalidArgumentError) else str(error)
