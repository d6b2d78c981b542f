"""``repoagent sign`` and ``repoagent verify``: signatures of model directories in the OpenSSF Model Signing format.

Exit status: 0 done, 1 the model does not hold or cannot be signed, 2 the command line is wrong, a package is missing,
or a file cannot be read or written.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import click

from repoagent.api import InvalidArgumentError, RepoAgentError, UnsupportedError, read_small_file, replace_file
from repoagent_verify.bundle import LARGEST_SIGNATURE
from repoagent_verify.keyless import check_identity, check_root, sign_keyless
from repoagent_verify.manifest import DIGEST_SIZES, Serialization, printable
from repoagent_verify.signing import Identity, read_identity, sign_statement, statement_of
from repoagent_verify.trust_roots import read_trust
from repoagent_verify.verification import Coverage, Verified, verify
from repoagent_verify.verify_options import plain_path

_DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SIGNATURE = click.option(
    "--signature",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The signature.  [default: DIRECTORY/model.sig]",
)


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--key", type=_FILE, help="The private key (PEM; P-256, P-384 or P-521).")
@click.option("--keyless", is_flag=True, help="Sign with an identity, at Sigstore: the signature becomes public.")
@click.option("--identity-token", type=_FILE, help="A file with the token of the identity.  [default: that of CI]")
@click.option("--trust-config", type=_FILE, help="The services of a private Sigstore.  [default: the public one]")
@click.option("--password-file", type=_FILE, help="A file with the password of the key.")
@click.option(
    "--certificate",
    type=_FILE,
    multiple=True,
    help="The signer's certificate, then those above it (PEM); repeat for more.",
)
@_SIGNATURE
@click.option(
    "--algorithm",
    type=click.Choice(list(DIGEST_SIZES)),
    default="sha256",
    show_default=True,
    help="The digest of every file.",
)
@click.option("--shard-size", type=click.IntRange(1), help="Hash ranges of this many bytes instead of whole files.")
@click.option("--ignore", multiple=True, help="A path in DIRECTORY that the signature does not cover; repeat for more.")
@click.option("--allow-symlinks", is_flag=True, help="Follow links to files in DIRECTORY.")
@click.option("--force", is_flag=True, help="Replace an existing signature.")
def sign_command(
    directory: Path,
    key: Path | None,
    keyless: bool,
    identity_token: Path | None,
    trust_config: Path | None,
    password_file: Path | None,
    certificate: tuple[Path, ...],
    signature: Path | None,
    algorithm: str,
    shard_size: int | None,
    ignore: tuple[str, ...],
    allow_symlinks: bool,
    force: bool,
) -> None:
    """Sign every file of DIRECTORY."""
    if (key is None) != keyless:
        raise click.UsageError("give either --key or --keyless: who signs")
    if (key is None and (password_file or certificate)) or (key is not None and (identity_token or trust_config)):
        raise click.UsageError(
            "--password-file and --certificate belong to --key, --identity-token and --trust-config to --keyless"
        )
    with _exit_codes("sign"):
        target = signature or directory / "model.sig"
        if target.exists() and not force:
            raise InvalidArgumentError(f"{target} exists; --force replaces it")
        identity = None if key is None else _identity(key, password_file, certificate)
        paths = tuple(plain_path(path, "--ignore") for path in ignore)
        how = Serialization(algorithm, shard_size, allow_symlinks=allow_symlinks, ignore_paths=paths)
        with _progress_bar("sign") as progress:
            statement = statement_of(directory, how, signature=_inside(directory, target), progress=progress)
        if identity is None:
            bundle = sign_keyless(statement, token=_text(identity_token), trust_config=_text(trust_config))
        else:
            bundle = sign_statement(statement, identity)
        replace_file(target, bundle)
    click.echo(f"{target}: {len(bundle)} bytes")


def _identity(key: Path, password_file: Path | None, certificates: tuple[Path, ...]) -> Identity:
    password = password_file.read_bytes().removesuffix(b"\n") if password_file else None
    return read_identity(key.read_bytes(), password, [path.read_bytes() for path in certificates])


def _text(path: Path | None) -> str | None:
    return None if path is None else path.read_text(encoding="utf-8").strip()


@click.command()
@click.argument("directory", type=_DIRECTORY)
@click.option("--public-key", type=_FILE, multiple=True, help="A public key to trust (PEM); repeat for more.")
@click.option(
    "--certificate", type=_FILE, multiple=True, help="A certificate or revocation list to trust (PEM); repeat for more."
)
@click.option("--sigstore-root", type=_FILE, help="A trusted_root.json, for keyless signatures.")
@click.option("--identity", help="Who signs without a key, such as 'release@vendor.example' or a workflow.")
@click.option("--issuer", help="The provider that vouches for the identity, such as 'https://accounts.google.com'.")
@click.option("--subject", help="The subject that the signer's certificate must have, such as 'CN=Models,O=Vendor'.")
@click.option("--at", type=click.DateTime(), help="When certificates must be valid, in UTC.  [default: now]")
@_SIGNATURE
@click.option(
    "--unsigned", multiple=True, help="A path in DIRECTORY that need not be signed; '*' for any; repeat for more."
)
@click.option("--strict", is_flag=True, help="Refuse files that the specification or the signer ignores.")
@click.option("--quiet", is_flag=True, help="Print only what is wrong.")
def verify_command(
    directory: Path,
    public_key: tuple[Path, ...],
    certificate: tuple[Path, ...],
    sigstore_root: Path | None,
    identity: str | None,
    issuer: str | None,
    subject: str | None,
    at: datetime | None,
    signature: Path | None,
    unsigned: tuple[str, ...],
    strict: bool,
    quiet: bool,
) -> None:
    """Verify that DIRECTORY is what a trusted signer signed, as the agent does when it loads it."""
    roots = (*public_key, *certificate, *((sigstore_root,) if sigstore_root else ()))
    if not roots:
        raise click.UsageError("give --public-key, --certificate or --sigstore-root: whom to trust")
    with _exit_codes("verify"):
        check_identity(identity, issuer)
        trust = read_trust([(str(path), path.read_bytes()) for path in roots])
        check_root(trust, identity)
        moment = at.replace(tzinfo=UTC) if at else None
        trust = replace(trust, subject=subject, at=moment, identity=identity, issuer=issuer)
        source = signature or directory / "model.sig"
        paths = tuple(plain_path(path, "--unsigned") for path in unsigned if path != "*")
        coverage = Coverage(_inside(directory, source), paths, strict, "*" in unsigned)
        with _progress_bar("verify") as progress:
            verified = verify(directory, _read(source), trust, coverage, progress=progress)
    if not quiet:
        _print(verified)


def _print(verified: Verified) -> None:
    click.echo(f"signed by {printable(verified.signer.name)} (method {verified.signer.method})")
    files = f"{verified.files} file{'' if verified.files == 1 else 's'}"
    click.echo(f"{files}, {verified.bytes_read} bytes, sha256:{verified.manifest.root_digest}: OK")
    for path in verified.unsigned:
        click.echo(f"not signed: {printable(path)}")


def _inside(directory: Path, path: Path) -> str:
    """``path`` below ``directory`` with ``/``, or empty if it lies elsewhere."""
    real = path.parent.resolve() / path.name
    base = directory.resolve()
    return real.relative_to(base).as_posix() if real.is_relative_to(base) else ""


def _read(path: Path) -> bytes:
    if not path.exists():
        raise InvalidArgumentError(f"the model is not signed: there is no {path}")
    return read_small_file(path, limit=LARGEST_SIGNATURE)


@contextmanager
def _progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Draws a bar on stderr if a person is looking."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    with click.progressbar(length=1, file=sys.stderr, label=label) as bar:

        def progress(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield progress


@contextmanager
def _exit_codes(command: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        _fail(command, f"{error.filename}: {error.strerror}", 2)
    except UnsupportedError as error:
        _fail(command, error.message, 2)
    except RepoAgentError as error:
        _fail(command, error.message, 1)


def _fail(command: str, message: str, status: int) -> NoReturn:
    click.echo(f"repoagent {command}: {message}", err=True)
    sys.exit(status)
