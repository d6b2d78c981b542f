"""``repoagent encrypt``."""

from pathlib import Path

import click

from repoagent.api import AlreadyExistsError, NotFoundError
from repoagent_decrypt.age.files import Sizes, encrypt_file
from repoagent_decrypt.age.foreign import encrypt_file_foreign
from repoagent_decrypt.age.keys import Recipients
from repoagent_decrypt.age.positional import Progress, Workers
from repoagent_decrypt.build import Transform
from repoagent_decrypt.cli.keys import (
    FORCE,
    MODEL_DIR,
    OUT,
    load_recipients,
    passphrase_options,
    read_passphrase,
    recipient_options,
)
from repoagent_decrypt.cli.run import errors_to_exit_codes, run_build
from repoagent_decrypt.decrypting import SUFFIX, in_version_directory
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.tree import Tree, scan_tree

__all__ = ["encrypt"]

_CONFIG = "config.pbtxt"


@click.command()
@MODEL_DIR
@OUT
@recipient_options
@passphrase_options
@click.option("--files", multiple=True, metavar="GLOB", help="Encrypt these files, not all of the version directories.")
@click.option("--armor", is_flag=True, help="Write text instead of binary files (a third larger, and slow).")
@FORCE
def encrypt(
    model_dir: Path,
    out: Path,
    recipients: tuple[str, ...],
    recipient_files: tuple[Path, ...],
    ask: bool,
    passphrase_key: str | None,
    files: tuple[str, ...],
    armor: bool,
    force: bool,
) -> None:
    """Copy MODEL_DIR to OUT with its files encrypted.

    Every file in a version directory becomes FILE.age; config.pbtxt and what else lies beside the version directories
    is copied as it is, unless --files says otherwise. config.pbtxt is never encrypted.
    """
    with errors_to_exit_codes():
        tree = _scan(model_dir, files)
        secret = read_passphrase(ask=ask, reference=passphrase_key, confirm=True)
        people = load_recipients(recipients, recipient_files, secret)
        with Workers() as workers:
            transform = _encrypting(people, workers, armor=armor)
            run_build(model_dir, tree, out, transform, "encrypted", force=force, keep_modes=True)


def _scan(model_dir: Path, files: tuple[str, ...]) -> Tree:
    patterns = Patterns.of(files)

    def choose(name: str) -> bool:
        if name == _CONFIG:
            return False
        return patterns.match(name) if files else in_version_directory(name)

    tree = scan_tree(model_dir, choose, lambda name: name + SUFFIX, lambda path, _name: path.stat().st_size)
    if not tree.chosen:
        where = f"matches {patterns}" if files else "lies in a version directory"
        raise NotFoundError(f"no file of {model_dir} {where}: there is nothing to encrypt")
    for item in tree.chosen:
        if item.name.endswith(SUFFIX):
            raise AlreadyExistsError(f"'{item.name}' seems to be encrypted already; choose the files with --files")
    return tree


def _encrypting(people: Recipients, workers: Workers, *, armor: bool) -> Transform:
    def transform(source: Path, target: Path, progress: Progress) -> Sizes:
        if people.foreign:
            return encrypt_file_foreign(source, target, people, armored=armor)
        return encrypt_file(source, target, people.native, armored=armor, workers=workers, progress=progress)

    return transform
