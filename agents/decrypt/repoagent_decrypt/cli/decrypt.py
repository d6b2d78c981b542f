"""``repoagent decrypt``."""

from pathlib import Path

import click

from repoagent_decrypt.cli.keys import (
    FORCE,
    IDENTITY,
    JWE_KEY,
    KEYSET,
    MODEL_DIR,
    OUT,
    load_keys,
    passphrase_options,
    read_passphrase,
)
from repoagent_decrypt.cli.run import errors_to_exit_codes, run_build
from repoagent_decrypt.decryption import DEFAULT_FILES, decrypting, scan_encrypted
from repoagent_decrypt.patterns import Patterns
from repoagent_decrypt.positional import Workers


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
    with errors_to_exit_codes():
        secret = read_passphrase(ask=ask, reference=passphrase_key, confirm=False)
        keys = load_keys({"identity": identities, "keyset": keysets, "jwe_key": jwe_keys}, secret)
        tree = scan_encrypted(model_dir, Patterns.of(files or DEFAULT_FILES), keys)
        with Workers() as workers:
            run_build(model_dir, tree, out, decrypting(keys, workers), "decrypted", force=force, keep_modes=False)
