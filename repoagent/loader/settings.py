"""Settings that commands and the server share, declared once: fields with their defaults, bounds and texts.

A command makes a flag from each, ``repoagent serve`` also an environment variable and a key of the configuration file.
Embedders use the classes alone, so this module imports nothing of the command line, nor of the loader.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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
class LoaderSettings:
    """What an operator sets of a loader, whichever command it is in."""

    agent_policy: Path | None = setting(None, "File with the operator's policy (TOML).", metavar="FILE")
    workspace_directory: Path | None = setting(None, "Where agents get private directories. [default: below /tmp]")
    cache_directory: Path | None = setting(
        None,
        "Where downloads and conversions are kept between starts. [default: below the user's cache directory]",
    )
    cache_quota_bytes: int = setting(0, "The largest size of the cache; 0 means no limit.", least=0)
    model_config_name: str | None = setting(None, "Read configs/NAME.pbtxt of a model, if it exists.", metavar="NAME")
    allow_config_variables: tuple[str, ...] = setting(
        (), "An environment variable that config.pbtxt may use as ${NAME}; repeat for more.", metavar="NAME"
    )
    repository_timeout: int = setting(
        15, "Seconds that a remote repository may take to answer, and a download may be silent.", least=1
    )
    allow_swap: bool = setting(False, "Allow confidential plaintext in memory that may be swapped to disk.")
    confidential_directory: Path | None = setting(
        None, "Memory filesystem for confidential plaintext.  [default: /dev/shm]"
    )
    allow_exec_keys: bool = setting(False, "Allow key references of models that run programs (exec:COMMAND).")
    converter_environment: tuple[str, ...] = setting(
        (),
        "The virtual environment in which models of the format FROM are converted; repeat for more.",
        metavar="FROM=DIR",
    )
    allow_code_conversion: bool = setting(False, "Convert models that are code, such as pickles, in a jail.")
    conversion_cache: str | None = setting(
        None, "fsspec URL where builders put conversions that a policy may take.", metavar="URL"
    )
    conversion_sign_key: str | None = setting(
        None,
        "Key reference (env:NAME, file:PATH): what is converted here is signed with this private key and put there.",
        metavar="REF",
    )

    def loader_options(self) -> dict[str, Any]:
        """The same as arguments of ``LoaderOptions``.

        Raises:
            InvalidArgumentError: an environment of converters cannot be one.
        """
        from repoagent.config.pbtxt import config_variables
        from repoagent.loader.converting.environments import ConverterSettings

        given = {one.name: getattr(self, one.name) for one in fields(LoaderSettings)}
        given["cache_quota_bytes"] = self.cache_quota_bytes or None
        given["config_variables"] = config_variables(given.pop("allow_config_variables"))
        given["repository_timeout_seconds"] = given.pop("repository_timeout")
        environments, allow_code = given.pop("converter_environment"), given.pop("allow_code_conversion")
        given["converters"] = ConverterSettings.parse(environments, allow_code)
        return given


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
    def settings(self) -> "AttestSettings | None":
        """The same for a loader."""
        if self.key is None:
            return None
        from repoagent.loader.attesting import AttestSettings

        return AttestSettings(
            key=self.key,
            directory=self.directory,
            required=self.required,
            plaintext=self.plaintext,
            verifier=self.verifier,
            in_answers=self.header,
        )
