"""``repoagent license``: the vendor's side, and what an operator asks.

Exit status: 0 done, 1 the license does not hold or cannot be issued, 2 the command line is wrong or a file cannot be
read or written.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from repoagent.api import InvalidArgumentError, RepoAgentError, read_small_file
from repoagent_license.host import host_id, model_digest
from repoagent_license.license_file import LARGEST, issue_license, read_license, read_public_key
from repoagent_license.terms import Terms, now

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.group()
def license_group() -> None:
    """Issue and show licenses of models."""


@license_group.command()
@click.option("--key", type=_FILE, required=True, help="The vendor's private key (Ed25519, PEM).")
@click.option("--model", "models", multiple=True, required=True, help="A model's name or pattern; repeat for more.")
@click.option("--expires", type=_MOMENT, help="When it ends, in UTC.")
@click.option("--days", type=click.IntRange(1), help="How many days it lasts, instead of --expires.")
@click.option("--not-before", type=_MOMENT, help="When it begins, in UTC.  [default: now]")
@click.option(
    "--host", "hosts", multiple=True, help="A machine, as 'repoagent license host' prints it there; repeat for more."
)
@click.option(
    "--content",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The model's directory: the license is for this content only.",
)
@click.option("--licensee", default="", help="Whom it is issued to; shown in load reports.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The license file."
)
@click.option("--force", is_flag=True, help="Replace an existing license file.")
def issue(
    key: Path,
    models: tuple[str, ...],
    expires: datetime | None,
    days: int | None,
    not_before: datetime | None,
    hosts: tuple[str, ...],
    content: Path | None,
    licensee: str,
    output: Path,
    force: bool,
) -> None:
    """Issue a license and write it to a file."""
    for model in models:
        if "/" in model or model in ("", ".", ".."):
            raise click.BadParameter(
                f"'{model}' is a path, and this is for names: give the model's name, such as 'fraud-1', or a pattern, "
                "such as 'fraud-*'; --content binds the license to the files of a directory",
                param_hint="--model",
            )
    begin = not_before.replace(tzinfo=UTC) if not_before else now().replace(microsecond=0)
    end = _end(begin, expires, days)
    with _exit_codes():
        if output.exists() and not force:
            raise InvalidArgumentError(f"{output} exists; --force replaces it")
        digest = model_digest(content) if content else ""
        output.write_bytes(issue_license(_private_key(key), Terms(models, begin, end, hosts, digest, licensee)))
    click.echo(f"{output}: {', '.join(models)} until {end.isoformat()}")


@license_group.command()
@click.argument("file", type=_FILE)
@click.option("--public-key", type=_FILE, required=True, help="The vendor's public key (PEM).")
def show(file: Path, public_key: Path) -> None:
    """Verify the signature of FILE and print its terms."""
    with _exit_codes():
        key = read_public_key(public_key.read_bytes())
        terms = read_license(read_small_file(file, limit=LARGEST), key)
    click.echo(f"models      {', '.join(terms.models)}")
    click.echo(f"not before  {terms.not_before.isoformat()}")
    click.echo(f"expires     {terms.expires.isoformat()}{' (over)' if terms.expires <= now() else ''}")
    click.echo(f"hosts       {', '.join(terms.hosts) or 'any'}")
    click.echo(f"content     {terms.digest or 'any'}")
    click.echo(f"licensee    {terms.licensee or '-'}")


@license_group.command()
def host() -> None:
    """Print the identifier of this machine for a license."""
    with _exit_codes():
        click.echo(host_id())


def _end(begin: datetime, expires: datetime | None, days: int | None) -> datetime:
    if (expires is None) == (days is None):
        raise click.UsageError("give one of --expires and --days")
    end = expires.replace(tzinfo=UTC) if expires is not None else begin + timedelta(days=days or 0)
    if end <= begin:
        raise click.UsageError("the license would end before it begins")
    return end


def _private_key(path: Path) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidArgumentError(f"{path} is not a private Ed25519 key in PEM without a password")
    return key


@contextmanager
def _exit_codes() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        click.echo(f"repoagent license: {error.filename}: {error.strerror}", err=True)
        sys.exit(2)
    except RepoAgentError as error:
        click.echo(f"repoagent license: {error.message}", err=True)
        sys.exit(1)
