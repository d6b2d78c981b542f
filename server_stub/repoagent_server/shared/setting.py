"""A setting of the server, declared once: a field of an option class, with its default, bounds and text.

``repoagent serve`` makes the flag, the environment variable and the key of the configuration file from it. Embedders
use the class alone, so this module imports nothing of the command line.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Final

from repoagent.loader.attesting import AttestSettings

SETTING: Final = "setting"
"""The key of a :class:`Setting` in the metadata of a field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a flag is made of, besides the field's name, type and default."""

    text: str
    flags: tuple[str, ...] = ()
    """The spellings of the flag, where the field's name with dashes is not the only one."""
    least: int | None = None
    most: int | None = None
    kind: Any = None
    """A tuple of choices, a type of click's, or "pattern" for a regular expression on names of headers."""
    metavar: str | None = None


def setting(
    default: Any,
    text: str,
    *flags: str,
    least: int | None = None,
    most: int | None = None,
    kind: Any = None,
    metavar: str | None = None,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """A field with a flag; see :class:`Setting`. A ``default`` of ``...`` is none: the flag is required."""
    one = Setting(text=text, flags=flags, least=least, most=most, kind=kind, metavar=metavar)
    metadata: Mapping[str, Any] = {SETTING: one}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=MISSING if default is ... else default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """Where the audit log is, and how much depends on it. Without a ``file`` there is none."""

    file: Path | None = setting(
        None,
        "Record in FILE who did what: loads, unloads, decisions of the policy, uses of keys, changes of settings, "
        "denied requests.",
        "--audit-log",
        metavar="FILE",
    )
    required: bool = setting(
        False, "Refuse loads and changes of settings while the audit log cannot be written.", "--audit-required"
    )
    sync: bool = setting(True, "Write each line of the audit log to disk before its event proceeds.", "--audit-sync")
    rotate_bytes: int = setting(
        0,
        "Bytes after which a new audit log begins; the former one is kept as FILE.N. 0 means never.",
        "--audit-rotate-bytes",
        least=0,
    )
    key: str | None = setting(
        None,
        "Key reference (env:NAME, file:PATH): each line of the audit log carries an HMAC made with this key.",
        "--audit-key",
        metavar="REF",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestOptions:
    """How loads leave receipts. Without a ``key`` there are none."""

    key: str | None = setting(
        None,
        "Key reference (env:NAME, file:PATH): each load leaves a receipt that is signed with this private key.",
        "--attest-key",
        metavar="REF",
    )
    directory: Path | None = setting(None, "Write receipts into DIR, as files.", "--attest-directory", metavar="DIR")
    required: bool = setting(False, "Refuse a load while its receipt cannot be made.", "--attest-required")
    plaintext: bool = setting(
        False, "Allow receipts to have digests of the plaintext of encrypted models.", "--attest-plaintext"
    )
    verifier: str = setting("urn:repoagent:server", "The server's name in receipts.", "--attest-id", metavar="URI")
    header: bool = setting(
        False, "Send the header repoagent-attestation, the digest of the receipt, with answers.", "--attest-header"
    )

    @property
    def settings(self) -> AttestSettings | None:
        """The same for a loader."""
        if self.key is None:
            return None
        return AttestSettings(
            key=self.key,
            directory=self.directory,
            required=self.required,
            plaintext=self.plaintext,
            verifier=self.verifier,
            in_answers=self.header,
        )
