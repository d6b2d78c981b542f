"""Options that name keys, and what they lead to."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from repoagent.api import NotFoundError
from repoagent_decrypt import register_key_providers
from repoagent_decrypt.age.keys import Identities, Recipients, holds_secret_key, parse_recipients
from repoagent_decrypt.age.stanzas.scrypt import ScryptIdentity, ScryptRecipient
from repoagent_decrypt.agent import passphrase_of
from repoagent_decrypt.formats import KEY_PARAMETERS, Keys

MODEL_DIR: Final = click.argument(
    "model_dir", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="MODEL_DIR"
)
OUT: Final = click.option(
    "-o", "--output", "out", required=True, type=click.Path(path_type=Path), help="The directory to make."
)
IDENTITY: Final = click.option(
    "-i",
    "--identity",
    "identities",
    multiple=True,
    metavar="FILE|REFERENCE",
    help="An identity file ('-' for standard input) or a key reference (env:NAME, vault:kv/...); repeat for more.",
)
KEYSET: Final = click.option(
    "--keyset",
    "keysets",
    multiple=True,
    metavar="FILE|REFERENCE",
    help="A Tink keyset for streaming AEAD (JSON or binary), for files in Tink's format; repeat for more.",
)
JWE_KEY: Final = click.option(
    "--jwe-key",
    "jwe_keys",
    multiple=True,
    metavar="FILE|REFERENCE",
    help="A JWK, raw AES key or RSA key, for JWE; repeat for more.",
)
FORCE: Final = click.option("--force", is_flag=True, help="Replace OUT if it exists.")
_REFERENCE: Final = re.compile(r"([a-z][a-z0-9+.-]*):.+", re.DOTALL)


def recipient_options(command: Any) -> Any:
    """Add ``-r`` and ``-R``."""
    command = click.option(
        "-R",
        "--recipients-file",
        "recipient_files",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file with recipients, one per line; repeat for more.",
    )(command)
    return click.option(
        "-r",
        "--recipient",
        "recipients",
        multiple=True,
        help="A recipient: age1..., age1pq1..., ssh-...; repeat for more.",
    )(command)


def passphrase_options(command: Any) -> Any:
    """Add ``-p`` and ``--passphrase-key``."""
    command = click.option(
        "--passphrase-key",
        metavar="FILE|REFERENCE",
        help="A reference to the passphrase, such as env:NAME, instead of typing it.",
    )(command)
    return click.option("-p", "--passphrase", "ask", is_flag=True, help="Ask for a passphrase.")(command)


def load_recipients(texts: tuple[str, ...], files: tuple[Path, ...], secret: bytes | None = None) -> Recipients:
    """All recipients that the options name.

    Raises:
        UsageError: none, or a passphrase together with others.
    """
    found = Recipients()
    for text in texts:
        found += parse_recipients(text.encode(), "--recipient")
    for path in files:
        found += parse_recipients(path.read_bytes(), str(path))
    if secret is not None:
        if found:
            raise click.UsageError("a passphrase must be the only recipient")
        return Recipients((ScryptRecipient(secret),))
    if not found:
        raise click.UsageError("whom to encrypt to? Give -r, -R, -p or --passphrase-key")
    return found


def load_keys(references: Mapping[str, tuple[str, ...]], secret: bytes | None = None) -> Keys:
    """All keys that the options name; ``references`` has those of each parameter of the agent.

    Raises:
        UsageError: none.
    """
    found = Keys()
    for parameter, uris in references.items():
        for uri in uris:
            found += KEY_PARAMETERS[parameter](read_secret(uri), f"{parameter} {uri[:60]}")
    if secret is not None:
        found += Keys(age=Identities((ScryptIdentity(secret),)))
    if not found:
        raise click.UsageError("which key? Give -i, -p, --passphrase-key, --keyset or --jwe-key")
    return found


def load_identities(references: tuple[str, ...]) -> Identities:
    """All identities of age that the options name.

    Raises:
        UsageError: none.
    """
    if not references:
        raise click.UsageError("which key? Give -i")
    return load_keys({"identity": references}).age


def read_passphrase(*, ask: bool, reference: str | None, confirm: bool) -> bytes | None:
    """The passphrase of ``-p`` (typed) or ``--passphrase-key`` (read), or None."""
    if reference is not None:
        return passphrase_of(read_secret(reference))
    if ask:
        text: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
        return text.encode()
    return None


def read_secret(reference: str) -> bytes:
    """What lies in the file, on standard input for ``-``, or behind a key reference.

    Raises:
        NotFoundError: nothing is there.
        UsageError: it is a key itself.
    """
    if holds_secret_key(reference):
        raise click.UsageError("a key must not stand on the command line: give the file that it is in")
    match = _REFERENCE.fullmatch(reference)
    if match is None or match[1] not in {"env", "file", *register_key_providers()}:
        return sys.stdin.buffer.read() if reference == "-" else Path(reference).read_bytes()
    scheme, _, rest = reference.partition(":")
    if scheme == "file":
        return Path(rest.removeprefix("//")).read_bytes()
    if scheme == "env":
        if rest not in os.environ:
            raise NotFoundError(f"the environment variable {rest} is not set")
        return os.environb[rest.encode()]
    module, _, attribute = register_key_providers()[scheme].partition(":")
    fetch: Callable[[str], bytes] = getattr(import_module(module), attribute)
    return fetch(reference)
