"""``repoagent encrypt``."""

import stat
from pathlib import Path

import click

from repoagent.api import AlreadyExistsError, NotFoundError, walk_beneath
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.keys import Recipients
from repoagent_decrypt.age.pyrage_keys import encrypt_file_foreign
from repoagent_decrypt.cli.keys import (
    FORCE,
    KEYSET,
    MODEL_DIR,
    OUT,
    load_keys,
    load_recipients,
    passphrase_options,
    read_passphrase,
    recipient_options,
)
from repoagent_decrypt.cli.run import errors_to_exit_codes, run_build
from repoagent_decrypt.decryption import wants_encryption
from repoagent_decrypt.formats import SUFFIXES
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.positional import Progress, Sizes, Workers
from repoagent_decrypt.tink.files import encrypt_file as encrypt_tink_file
from repoagent_decrypt.tink.keyset import StreamingKey
from repoagent_decrypt.tree import Transform, Tree, scan_tree

_CONFIG = "config.pbtxt"


@click.command()
@MODEL_DIR
@OUT
@recipient_options
@passphrase_options
@KEYSET
@click.option(
    "--files",
    multiple=True,
    metavar="GLOB",
    help="Encrypt these files, not all of the version directories; repeat for more.",
)
@click.option("--armor", is_flag=True, help="Write text instead of binary files (a third larger, and slow).")
@FORCE
def encrypt(
    model_dir: Path,
    out: Path,
    recipients: tuple[str, ...],
    recipient_files: tuple[Path, ...],
    ask: bool,
    passphrase_key: str | None,
    keysets: tuple[str, ...],
    files: tuple[str, ...],
    armor: bool,
    force: bool,
) -> None:
    """Copy MODEL_DIR to OUT with its files encrypted.

    Every file in a version directory becomes FILE.age, or FILE.tink with --keyset. Files beside the version directories
    are copied unchanged. Of a model without version directories, such as a checkpoint, every file is encrypted but
    licenses and the like. --files chooses other files, but config.pbtxt is never encrypted.
    """
    with errors_to_exit_codes():
        tree = _scan(model_dir, files, ".tink" if keysets else ".age")
        if keysets:
            key = _tink_key(keysets, other=bool(recipients or recipient_files or ask or passphrase_key or armor))
        else:
            secret = read_passphrase(ask=ask, reference=passphrase_key, confirm=True)
            people = load_recipients(recipients, recipient_files, secret)
        with Workers() as workers:
            transform = _sealing(key, workers) if keysets else _encrypting(people, workers, armor=armor)
            run_build(model_dir, tree, out, transform, "encrypted", force=force, keep_modes=True)


def _tink_key(keysets: tuple[str, ...], *, other: bool) -> StreamingKey:
    if len(keysets) > 1 or other:
        raise click.UsageError("--keyset stands alone: files are encrypted with one keyset, or for age's recipients")
    return load_keys({"keyset": keysets}).tink[0]


def _scan(model_dir: Path, files: tuple[str, ...], suffix: str) -> Tree:
    patterns = Patterns.of(files)
    names = [name for name, mode, _ in walk_beneath(model_dir) if not stat.S_ISDIR(mode)]
    wanted = patterns.match if files else wants_encryption(names)

    def choose(name: str) -> bool:
        return name != _CONFIG and wanted(name)

    tree = scan_tree(model_dir, choose, lambda name: name + suffix, lambda path, _name: path.stat().st_size)
    if not tree.chosen:
        where = f"matches {patterns}" if files else "holds weights"
        raise NotFoundError(f"no file of {model_dir} {where}: there is nothing to encrypt")
    for item in tree.chosen:
        if item.name.endswith(SUFFIXES):
            raise AlreadyExistsError(f"'{item.name}' seems to be encrypted already; choose the files with --files")
    return tree


def _encrypting(people: Recipients, workers: Workers, *, armor: bool) -> Transform:
    def transform(source: Path, target: Path, progress: Progress) -> Sizes:
        if people.foreign:
            return encrypt_file_foreign(source, target, people, armored=armor)
        return encrypt_file(source, target, people.native, armored=armor, workers=workers, progress=progress)

    return transform


def _sealing(key: StreamingKey, workers: Workers) -> Transform:
    def transform(source: Path, target: Path, progress: Progress) -> Sizes:
        return encrypt_tink_file(source, target, key, workers=workers, progress=progress)

    return transform
