"""``repoagent attest verify``: a receipt, the key of who made it, and what it should agree with."""

import re
import sys
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import click

from repoagent.api import InvalidArgumentError, RepoAgentError, UnavailableError, WebClient, read_small_file
from repoagent.api.envelopes import MOST_VALUES, read_document, read_public_key
from repoagent_attest.statements import DETAILS_SUFFIX, SUMMARY_SUFFIX
from repoagent_attest.verification import differences, read_receipt

_LARGEST: Final = 256 << 20
_SMALL: Final = 1 << 20
_PATH: Final = click.Path(path_type=Path)
_PATIENCE: Final = 30
"""Seconds of silence; the whole answer may take four times as long."""
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class _Age(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        match = re.fullmatch(r"([0-9]{1,9})([smhd])", value)
        if match is None:
            self.fail(f"{value!r} is not an age such as 90s, 15m, 12h or 30d", param, ctx)
        return timedelta(seconds=int(match[1]) * _UNITS[match[2]])


@click.group()
def attest_group() -> None:
    """Verify receipts of loads."""


@attest_group.command("verify")
@click.argument("receipt")
@click.option("--public-key", type=_PATH, required=True, help="The key of the server that made it (PEM or DER).")
@click.option("--model", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The model it is about.")
@click.option("--policy", type=_PATH, help="The policy by which the model should have been loaded.")
@click.option("--name", help="The name that the model should have.")
@click.option("--max-age", type=_Age(), help="Refuse a receipt that is older, such as 90s, 15m, 12h or 30d.")
@click.option("--level", "levels", multiple=True, help="A word of verifiedLevels that it must have; repeat for more.")
def verify_command(
    receipt: str,
    public_key: Path,
    model: Path | None,
    policy: Path | None,
    name: str | None,
    max_age: timedelta | None,
    levels: tuple[str, ...],
) -> None:
    """Verify a receipt, and compare it with a model and a policy.

    RECEIPT is FILE.vsa.json, what a server sent, or its URL: http://HOST/v2/models/M/attestation.

    Exits 1 at a signature that does not hold and at any difference, 2 if a file cannot be read.
    """
    try:
        key = read_public_key(_read(public_key, _SMALL))
        document = _document(receipt)
        beside = receipt.removesuffix(SUMMARY_SUFFIX) + DETAILS_SUFFIX
        linked = receipt.endswith(SUMMARY_SUFFIX) and Path(beside).exists()
        rules = None if policy is None else _read(policy, _SMALL)
    except (OSError, RepoAgentError) as error:
        click.echo(_printable(f"repoagent: {_reason(error)}"), err=True)
        sys.exit(2)
    try:
        found = read_receipt(document, _document(beside) if linked else None, key)
        faults = list(differences(found, model, rules, name=name, most_age=max_age, levels=levels))
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
    if found.audit:
        click.echo(_printable(f"after line {found.audit.get('seq')} of the audit log, {found.audit.get('hash')}"))
    click.echo(f"sha256:{found.digest}: OK")


def _document(receipt: str) -> dict[str, Any]:
    if not receipt.startswith(("http://", "https://")):
        return read_document(_read(Path(receipt), _LARGEST), Path(receipt).name, most_values=MOST_VALUES)
    client = WebClient.of_operator(receipt, timeout=_PATIENCE)
    try:
        answer = client.fetch(receipt, limit=_LARGEST)
    finally:
        client.close()
    if answer.status != HTTPStatus.OK:
        raise UnavailableError(f"{receipt} cannot be read: the server answered with status {answer.status}")
    return read_document(answer.body, receipt, most_values=MOST_VALUES)


def _read(path: Path, limit: int) -> bytes:
    return read_small_file(path, limit=limit)


def _printable(text: str) -> str:
    """One line: the model's owner names its files, and may name the source of the model."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return error.message if isinstance(error, InvalidArgumentError) else str(error)
