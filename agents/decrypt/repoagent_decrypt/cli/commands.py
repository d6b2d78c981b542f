"""The commands: ``repoagent encrypt``, ``decrypt``, ``rekey`` and ``keygen``. What they write is whole or not there."""

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

import click

from repoagent.api import AlreadyExistsError, NotFoundError, RepoAgentError, walk_beneath
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.keys import Identities, Recipients, parse_identities, recipients_of
from repoagent_decrypt.age.pyrage_keys import encrypt_file_foreign
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.writer import rewrap_file
from repoagent_decrypt.cli.keys import (
    FORCE,
    IDENTITY,
    JWE_KEY,
    KEYSET,
    MODEL_DIR,
    OUT,
    load_identities,
    load_keys,
    load_recipients,
    passphrase_options,
    read_passphrase,
    read_secret,
    recipient_options,
)
from repoagent_decrypt.decryption import DEFAULT_FILES, decrypting, scan_encrypted, wants_encryption
from repoagent_decrypt.files.errors import DecryptError, InvalidKeyError
from repoagent_decrypt.files.positional import Progress, Sizes, Workers
from repoagent_decrypt.formats import SUFFIXES
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.tink.files import encrypt_file as encrypt_tink_file
from repoagent_decrypt.tink.keyset import StreamingKey
from repoagent_decrypt.tree import Totals, Transform, Tree, build_tree, scan_tree

_CONFIG: Final = "config.pbtxt"
_AGE_FILES: Final = ("*.age",)
"""Headers with recipients are age's."""


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
    with _errors_to_exit_codes():
        tree = _chosen(model_dir, files, ".tink" if keysets else ".age")
        if keysets:
            key = _tink_key(keysets, other=bool(recipients or recipient_files or ask or passphrase_key or armor))
        else:
            secret = read_passphrase(ask=ask, reference=passphrase_key, confirm=True)
            people = load_recipients(recipients, recipient_files, secret)
        with Workers() as workers:
            transform = _sealing(key, workers) if keysets else _encrypting(people, workers, armor=armor)
            _run_build(model_dir, tree, out, transform, "encrypted", force=force, keep_modes=True)


def _tink_key(keysets: tuple[str, ...], *, other: bool) -> StreamingKey:
    if len(keysets) > 1 or other:
        raise click.UsageError("--keyset stands alone: files are encrypted with one keyset, or for age's recipients")
    return load_keys({"keyset": keysets}).tink[0]


def _chosen(model_dir: Path, files: tuple[str, ...], suffix: str) -> Tree:
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


@click.command()
@MODEL_DIR
@OUT
@IDENTITY
@KEYSET
@JWE_KEY
@passphrase_options
@click.option(
    "--files",
    multiple=True,
    metavar="GLOB",
    help="Decrypt these files; repeat for more.  [default: *.age, *.jwe, *.tink]",
)
@FORCE
def decrypt(
    model_dir: Path,
    out: Path,
    identities: tuple[str, ...],
    keysets: tuple[str, ...],
    jwe_keys: tuple[str, ...],
    ask: bool,
    passphrase_key: str | None,
    files: tuple[str, ...],
    force: bool,
) -> None:
    """Copy MODEL_DIR to OUT with its encrypted files decrypted, as the agent does when it loads the model.

    OUT is plaintext on disk, unless you choose a memory filesystem. Only its owner can read it.
    """
    with _errors_to_exit_codes():
        secret = read_passphrase(ask=ask, reference=passphrase_key, confirm=False)
        keys = load_keys({"identity": identities, "keyset": keysets, "jwe_key": jwe_keys}, secret)
        tree = scan_encrypted(model_dir, Patterns.of(files or DEFAULT_FILES), keys)
        with Workers() as workers:
            _run_build(model_dir, tree, out, decrypting(keys, workers), "decrypted", force=force, keep_modes=False)


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
    with _errors_to_exit_codes():
        tree = _rekeyed(model_dir, Patterns.of(files or _AGE_FILES))
        ours = load_identities(identities)
        people = load_recipients(recipients, recipient_files)
        _run_build(model_dir, tree, out, _rewrapping(ours, people), "rekeyed", force=force, keep_modes=True)


def _rekeyed(model_dir: Path, patterns: Patterns) -> Tree:
    tree = scan_tree(model_dir, patterns.match, lambda name: name, lambda path, _name: path.stat().st_size)
    if not tree.chosen:
        raise NotFoundError(f"no file of {model_dir} matches {patterns}: there is nothing to rekey")
    return tree


def _rewrapping(ours: Identities, people: Recipients) -> Transform:
    if ours.foreign or people.foreign:
        raise InvalidKeyError(
            "ssh and plug-in keys cannot be used here, because pyrage does not give out file keys: "
            "decrypt and encrypt instead"
        )

    def transform(source: Path, target: Path, _progress: Progress) -> Sizes:
        return rewrap_file(source, target, ours.native, people.native)

    return transform


@click.command()
@click.option("-o", "--output", "out", type=click.Path(path_type=Path), help="The file to make (mode 0600).")
@click.option("--pq", is_flag=True, help="A post-quantum key (ML-KEM-768 with X25519); its recipient is 2 kB long.")
@click.option("-y", "--recipients-of", "known", metavar="FILE|REFERENCE", help="Only show the recipients of a key.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
def keygen(out: Path | None, pq: bool, known: str | None, force: bool) -> None:
    """Make an age key pair.

    It goes to the file, and the recipient (the public half) to stderr; without --output both go to standard output.
    """
    with _errors_to_exit_codes():
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
        _write_key(out, text, force=force)
        click.echo(f"Public key: {identity.recipient}", err=True)


def _write_key(out: Path, text: str, *, force: bool) -> None:
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


@contextmanager
def _errors_to_exit_codes() -> Iterator[None]:
    """One line on stderr and exit status 1 for everything that can go wrong with files and keys."""
    try:
        yield
    except (DecryptError, RepoAgentError) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename or ''}: {error.strerror}".lstrip(": ")) from error


def _run_build(
    model: Path, tree: Tree, out: Path, transform: Transform, label: str, *, force: bool, keep_modes: bool
) -> Totals:
    """Build ``tree``, the files of ``model``, into the new directory ``out`` with a progress bar; print a summary."""
    _refuse_nesting(model, out)
    with _new_directory(out, force=force) as target:
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
def _new_directory(out: Path, *, force: bool) -> Iterator[Path]:
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
