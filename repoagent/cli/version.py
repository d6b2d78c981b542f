"""``repoagent version``."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

import click

__all__ = ["print_version"]

_SHOWN: Final = (
    "repoagent-core",
    "repoagent-server",
    "onnxruntime",
    "tensorrt",
    "numpy",
    "protobuf",
    "fsspec",
    "s3fs",
    "pluggy",
)


@click.command("version")
def print_version() -> None:
    """Print the versions of repoagent and of the libraries that it uses."""
    for name in _SHOWN:
        try:
            click.echo(f"{name} {version(name)}")
        except PackageNotFoundError:
            click.echo(f"{name} (not installed)")
