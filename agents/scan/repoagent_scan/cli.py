"""``repoagent scan``: what the agent does, for a directory.

Exit status: 0 nothing found, 1 something found, 2 the command line is wrong or a file cannot be read.
"""

import sys
from pathlib import Path

import click

from repoagent.api import ConfigError, InvalidArgumentError, opened_files
from repoagent_scan.formats.format import ACCEPTED, Format
from repoagent_scan.scan_options import Options
from repoagent_scan.scanning import scan

_REFUSED = sorted(format_.value for format_ in Format if format_ not in ACCEPTED)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--allow", type=click.Choice(_REFUSED), multiple=True, help="A format to accept as well; repeat for more."
)
@click.option("--allow-file", multiple=True, help="A pattern of paths that are not scanned; repeat for more.")
@click.option(
    "--allow-operator",
    multiple=True,
    help="A domain of ONNX operators, or one operator (domain::type); repeat for more.",
)
@click.option("--quiet", is_flag=True, help="Print only what is wrong.")
def scan_command(
    directory: Path,
    allow: tuple[str, ...],
    allow_file: tuple[str, ...],
    allow_operator: tuple[str, ...],
    quiet: bool,
) -> None:
    """Look for files in DIRECTORY that run code, or whose format is unknown."""
    formats = ACCEPTED | {Format(name) for name in allow}
    try:
        root = directory.resolve()
        opened = opened_files(root, name=root.name)
        scanned = scan(root, Options(formats, allow_file, frozenset(allow_operator)), opened=opened)
    except (OSError, ConfigError, InvalidArgumentError) as error:
        click.echo(f"repoagent scan: {error}", err=True)
        sys.exit(2)
    for finding in scanned.findings:
        click.echo(f"{finding}" + (f" ({finding.remedy} accepts it)" if finding.remedy else ""), err=True)
    if not quiet:
        for name, count in sorted(scanned.formats.items()):
            click.echo(f"{count:6} {name}")
    sys.exit(1 if scanned.findings else 0)
