"""``tpm:HANDLE``: a secret that the TPM of this machine has sealed, of at most 128 bytes, such as an age identity.

``HANDLE`` is a persistent one, ``0x81000000`` to ``0x81ffffff``. ``?pcrs=sha256:0,7`` unseals by the policy of these
platform registers. The program ``tpm2_unseal`` of tpm2-tools does the work; ``TPM2TOOLS_TCTI`` states which TPM.
"""

import logging
import os
import re
import subprocess
from typing import Final

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError
from repoagent_decrypt.providers.reference import parse_reference

logger = logging.getLogger("repoagent.agents.decrypt")

_PROGRAM: Final = "tpm2_unseal"
_HANDLE: Final = re.compile(r"0x81[0-9a-fA-F]{6}")
_REGISTERS: Final = re.compile(r"sha(1|256|384|512):[0-9]{1,2}(,[0-9]{1,2}){0,23}")
_SECONDS: Final = 30.0
_INHERITED: Final = frozenset({"PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "REPOAGENT_STARTED_BY"})
_SETTINGS: Final = ("TPM2TOOLS_", "TSS2_")


def fetch(uri: str) -> bytes:
    """The secret that ``uri`` names."""
    reference = parse_reference(uri, options={"pcrs"})
    if reference.host or reference.field or not _HANDLE.fullmatch(reference.path):
        raise InvalidArgumentError(
            f"the key reference {reference} should look like tpm:0x81000001 (a persistent handle)"
        )
    command = [_PROGRAM, "-c", reference.path]
    registers = reference.options.get("pcrs")
    if registers is not None:
        if not _REGISTERS.fullmatch(registers):
            raise InvalidArgumentError(f"'pcrs' in the key reference {reference} should look like sha256:0,7")
        command += ["-p", f"pcr:{registers}"]
    return _run(command, str(reference))


def _run(command: list[str], reference: str) -> bytes:
    try:
        # A fixed program; the handle and the registers have been matched as a whole.
        done = subprocess.run(  # noqa: S603
            command,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    except FileNotFoundError:
        raise UnsupportedError(f"tpm: needs the program {_PROGRAM}; install tpm2-tools") from None
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"the TPM did not answer for the key reference {reference}") from None
    if done.returncode != 0:
        # What it prints names the machine and its settings, and goes to the operator only.
        logger.warning(
            "%s failed for %s: %s", _PROGRAM, reference, done.stderr.decode(errors="replace").strip()[-2000:]
        )
        raise UnavailableError(f"the TPM does not unseal the key reference {reference}; the log has the reason")
    return done.stdout


def _environment() -> dict[str, str]:
    """What the program needs. The others may be secrets."""
    return {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_SETTINGS)}
