"""``repoagent access key | check``: keys for clients, and a look at an access file before a server uses it."""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Final

import click

from repoagent_server.access import Right

_KEY_BYTES: Final = 32
_PREFIX: Final = "ra_"
"""Scanners for leaked secrets find keys that begin alike."""


@click.group()
def access() -> None:
    """Make keys for the file that `repoagent serve --access` takes, and check that file."""


@access.command("key")
@click.argument("name")
@click.option(
    "--model",
    "models",
    multiple=True,
    default=("*",),
    show_default=True,
    help="A pattern of model names; repeat for more.",
)
@click.option(
    "--right",
    "rights",
    multiple=True,
    type=click.Choice([right.value for right in Right]),
    default=("infer", "metadata"),
    show_default=True,
    help="What the client may do; repeat for more.",
)
def make_key(name: str, models: tuple[str, ...], rights: tuple[str, ...]) -> None:
    """Make a random key for the client NAME.

    The key goes to standard error, the lines for the access file to standard output. The key is not kept anywhere.
    """
    from repoagent_server.access.access_file_reader import check_name

    check_name(name)
    for model in models:
        if "/" in model or model in ("", ".", ".."):
            raise click.BadParameter(
                f"'{model}' is a path, and this is for names: give the model's name, such as 'fraud-1', or a pattern, "
                "such as 'fraud-*'",
                param_hint="--model",
            )
    key = _PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    table = name if name.replace("-", "").replace("_", "").isalnum() else f'"{name}"'
    click.echo(f"key (give it to this client only): {key}", err=True)
    click.echo(f'[clients.{table}]\nkeys = ["sha256:{digest}"]')
    click.echo(f"models = {json.dumps(models, ensure_ascii=False)}\nrights = {json.dumps(rights)}")


@access.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Check FILE, and show each client's rights.

    Reads the access file FILE and the key sets that it names.

    Exits 1 if a server would not start with it.
    """
    from repoagent_server.access.access_file import AccessFile, count_of_clients

    with AccessFile(file) as read:
        for client in read.access.rules.clients:
            for grant in client.grants:
                click.echo(f"{client.name}: {', '.join(sorted(grant.rights))} for {', '.join(grant.models)}")
    click.echo(f"{file}: ok ({count_of_clients(read.access.rules)})")
