"""``repoagent keygen``: key files as ``age-keygen`` writes them."""

import os
from datetime import datetime
from pathlib import Path

import click

from repoagent_decrypt.age.keys import parse_identities, recipients_of
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.cli.keys import read_secret
from repoagent_decrypt.cli.run import errors_to_exit_codes


@click.command()
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="The file to make (mode 0600).")
@click.option("--pq", is_flag=True, help="A post-quantum key (ML-KEM-768 with X25519); its recipient is 2 kB long.")
@click.option("-y", "--recipients-of", "known", metavar="FILE|REFERENCE", help="Only show the recipients of a key.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def keygen(out: Path | None, pq: bool, known: str | None, force: bool) -> None:
    """Make an age key pair.

    It goes to the file, and the recipient (the public half) to stderr; without --output both go to standard output.
    """
    with errors_to_exit_codes():
        if known is not None:
            for line in recipients_of(parse_identities(read_secret(known), known), known):
                click.echo(line)
            return
        identity = HybridIdentity.generate() if pq else X25519Identity.generate()
        created = datetime.now().astimezone().isoformat(timespec="seconds")
        text = f"# created: {created}\n# public key: {identity.recipient}\n{identity.export()}\n"
        if out is None:
            click.echo(text, nl=False)
            return
        _write(out, text, force=force)
        click.echo(f"Public key: {identity.recipient}", err=True)


def _write(out: Path, text: str, *, force: bool) -> None:
    if os.path.lexists(out) and not force:
        raise click.ClickException(f"{out} exists; give --force to replace it (and lose the key in it)")
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(text)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
