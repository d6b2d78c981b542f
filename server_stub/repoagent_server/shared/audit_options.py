"""Settings of the audit log, and of receipts of loads."""

from dataclasses import dataclass
from pathlib import Path

from repoagent.loader.attesting import AttestSettings
from repoagent_server.shared.setting import setting


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
