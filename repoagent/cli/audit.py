"""``repoagent audit verify | head``: whether the lines of an audit log are those that a server wrote."""

import re
from pathlib import Path
from typing import Final

import click

_HASH: Final = re.compile(r"[0-9a-f]{64}")
_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def audit() -> None:
    """Check the file that `repoagent serve --audit-log` writes."""


@audit.command("verify")
@click.argument("files", nargs=-1, required=True, type=_file, metavar="FILE...")
@click.option(
    "--head",
    "heads",
    multiple=True,
    metavar="SHA256",
    help="A head that was kept elsewhere: one line must have this hash; repeat for more.",
)
@click.option("--key", metavar="REF", help="The key of --audit-key (env:NAME, file:PATH): check the HMAC of each line.")
def verify(files: tuple[Path, ...], heads: tuple[str, ...], key: str | None) -> None:
    """Check the chain in one FILE or several.

    Several files follow each other in one chain. Give them in any order.

    Prints the first broken line and exits 1 if a line was changed, removed, added or moved. Lines that are missing at
    the end are found only with a --head. A last line that a kill cut short is reported, and is not a fault.
    """
    from repoagent.audit import lines
    from repoagent.audit.file import noted_losses

    for head in heads:
        if not _HASH.fullmatch(head):
            raise click.BadParameter(
                f"'{head}' is not a SHA-256 in 64 lower-case hexadecimal digits", param_hint="--head"
            )
    try:
        verdict = lines.verify(files, heads, _key(key))
    except lines.BrokenChain as error:
        click.echo(str(error), err=True)
        raise SystemExit(1) from None
    for path, size in verdict.torn.items():
        click.echo(f"{path}: the last line was cut short after {size} bytes, by a kill or a full disk", err=True)
    for path in files:
        if lost := noted_losses(path, verdict.head):
            click.echo(
                f"{path}: {lost} events after line {verdict.head.seq} could not be written, and are lost", err=True
            )
    missing = [head for head in heads if head not in verdict.heads_found]
    for head in missing:
        click.echo(f"no line has the head {head}: lines are missing at the end, or this is another chain", err=True)
    if missing:
        raise SystemExit(1)
    if not verdict.first:
        click.echo("ok: no lines")
        return
    click.echo(f"ok: lines {verdict.first} to {verdict.head.seq}, head {verdict.head.hash}")


@audit.command("head")
@click.argument("file", type=_file)
def head(file: Path) -> None:
    """Print number and SHA-256 of the last line.

    Keep them where the server cannot write.
    """
    import os

    from repoagent.audit.lines import LineError, read_tail

    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = read_tail(fd).head
    except LineError as error:
        click.echo(f"{file}: it does not end with a line of an audit log: {error}", err=True)
        raise SystemExit(1) from None
    finally:
        os.close(fd)
    if found is None:
        click.echo(f"{file}: there is no whole line", err=True)
        raise SystemExit(1)
    click.echo(str(found))


def _key(reference: str | None) -> bytes | None:
    if reference is None:
        return None
    from repoagent.audit.log import audit_key

    return audit_key(reference)
