"""What all commands share: exit codes, progress, and an output directory that is whole or not there."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from repoagent.api import RepoAgentError
from repoagent_decrypt.files.errors import DecryptError
from repoagent_decrypt.files.positional import Progress
from repoagent_decrypt.tree import Totals, Transform, Tree, build_tree


@contextmanager
def errors_to_exit_codes() -> Iterator[None]:
    """One line on stderr and exit status 1 for everything that can go wrong with files and keys."""
    try:
        yield
    except (DecryptError, RepoAgentError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or ''}: {error.strerror}".lstrip(": ")) from error


def run_build(
    model: Path, tree: Tree, out: Path, transform: Transform, label: str, *, force: bool, keep_modes: bool
) -> Totals:
    """Build ``tree``, the files of ``model``, into the new directory ``out`` with a progress bar; print a summary."""
    _refuse_nesting(model, out)
    with new_directory(out, force=force) as target:
        with _progress_bar(label, tree.size) as progress:
            totals = build_tree(tree, target, transform, progress)
        if keep_modes:
            _copy_modes(tree, target)
    click.echo(f"{out}: {totals.transformed} {label}, {totals.copied} copied, {totals.bytes_written} bytes")
    return totals


def _refuse_nesting(model: Path, out: Path) -> None:
    """An output inside the model would be part of it next time; one around it would replace all that lies there."""
    ours, theirs = model.resolve(), out.resolve()
    if ours != theirs and (ours.is_relative_to(theirs) or theirs.is_relative_to(ours)):
        raise click.ClickException(f"one of {model} and {out} lies in the other; name an output that is apart from it")


@contextmanager
def new_directory(out: Path, *, force: bool) -> Iterator[Path]:
    """A directory beside ``out`` that becomes ``out`` when the block ends, and vanishes if it raises.

    An existing ``out`` stays until then; it is replaced only with ``force``.
    """
    out = Path(os.path.abspath(out))
    if os.path.lexists(out) and not force:
        raise click.ClickException(f"{out} exists; give --force to replace it")
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        made = beside / "new"
        made.mkdir(mode=0o700)
        yield made
        if os.path.lexists(out):
            out.rename(beside / "old")
        made.rename(out)
    finally:
        shutil.rmtree(beside)


@contextmanager
def _progress_bar(label: str, total: int) -> Iterator[Progress]:
    """Draws on stderr when that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr, show_pos=False) as bar:
        # Armored files turn out smaller than announced, so the bar may end early but never overshoots.
        yield lambda done: bar.update(max(0, min(done, total) - bar.pos))


def _copy_modes(tree: Tree, target: Path) -> None:
    # Ciphertext may be as public as its source was; plaintext stays for the owner only.
    for item in tree.items:
        (target / item.target).chmod(item.mode)
    target.chmod(0o755 & ~_umask())
    for name in tree.directories:
        (target / name).chmod(0o755 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
