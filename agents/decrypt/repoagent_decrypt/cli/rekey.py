"""``repoagent rekey``."""

from pathlib import Path
from typing import Final

import click

from repoagent.api import NotFoundError
from repoagent_decrypt.age.keys import Identities, Recipients
from repoagent_decrypt.age.writer import rewrap_file
from repoagent_decrypt.cli.keys import (
    FORCE,
    IDENTITY,
    MODEL_DIR,
    OUT,
    load_identities,
    load_recipients,
    recipient_options,
)
from repoagent_decrypt.cli.run import errors_to_exit_codes, run_build
from repoagent_decrypt.errors import InvalidKeyError
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.positional import Progress, Sizes
from repoagent_decrypt.tree import Transform, Tree, scan_tree

_AGE_FILES: Final = ("*.age",)
"""Headers with recipients are age's."""


@click.command()
@MODEL_DIR
@OUT
@IDENTITY
@recipient_options
@click.option("--files", multiple=True, metavar="GLOB", help="Change these files; repeat for more.  [default: *.age]")
@FORCE
def rekey(
    model_dir: Path,
    out: Path,
    identities: tuple[str, ...],
    recipients: tuple[str, ...],
    recipient_files: tuple[Path, ...],
    files: tuple[str, ...],
    force: bool,
) -> None:
    """Copy MODEL_DIR to OUT with its files encrypted to the given recipients only.

    Only the headers are replaced, so no plaintext is written, and the command is as fast as copying. The payloads and
    their keys stay the same: a former recipient who kept a file can still decrypt it. To revoke a recipient for good,
    decrypt and encrypt.
    """
    with errors_to_exit_codes():
        tree = _scan(model_dir, Patterns.of(files or _AGE_FILES))
        ours = load_identities(identities)
        people = load_recipients(recipients, recipient_files)
        run_build(model_dir, tree, out, _rewrapping(ours, people), "rekeyed", force=force, keep_modes=True)


def _scan(model_dir: Path, patterns: Patterns) -> Tree:
    tree = scan_tree(model_dir, patterns.match, lambda name: name, lambda path, _name: path.stat().st_size)
    if not tree.chosen:
        raise NotFoundError(f"no file of {model_dir} matches {patterns}: there is nothing to rekey")
    return tree


def _rewrapping(ours: Identities, people: Recipients) -> Transform:
    if ours.foreign or people.foreign:
        raise InvalidKeyError("ssh and plug-in keys cannot be used here, because pyrage does not give out file keys: "
                              "decrypt and encrypt instead")  # fmt: skip

    def transform(source: Path, target: Path, _progress: Progress) -> Sizes:
        return rewrap_file(source, target, ours.native, people.native)

    return transform
