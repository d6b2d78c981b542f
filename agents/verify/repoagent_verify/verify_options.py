"""The parameters of the agent, checked."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from repoagent.api import InvalidArgumentError, Parameters
from repoagent_verify.keyless import check_identity

_ONCE: Final = ("subject", "identity", "issuer", "at", "signature", "directory", "strict")
_REFERENCES: Final = ("public_key", "certificate", "sigstore_root")
PARAMETERS: Final = ("trust_root", *_REFERENCES, "unsigned", *_ONCE)


@dataclass(frozen=True, slots=True)
class Options:
    """What to verify, and whom to trust."""

    trust_roots: tuple[str, ...] = ()
    """Names in the operator's policy."""
    references: tuple[str, ...] = ()
    """References to public keys, certificates and a root of Sigstore, for models without a policy."""
    subject: str | None = None
    identity: str | None = None
    issuer: str | None = None
    at: datetime | None = None
    signature: str = "model.sig"
    directory: str = "."
    unsigned: tuple[str, ...] = ()
    anything: bool = False
    strict: bool | None = None
    """None: strict if the operator's policy demands the agent."""


def parse_parameters(parameters: Parameters) -> Options:
    """The options in ``parameters``.

    Raises:
        InvalidArgumentError: a parameter is unknown, is given twice, or has a value that is not allowed.
    """
    parameters.check(PARAMETERS, once=_ONCE)
    unsigned = parameters.get_all("unsigned")
    options = Options(
        trust_roots=tuple(parameters.get_all("trust_root")),
        references=tuple(value for name in _REFERENCES for value in parameters.get_all(name)),
        subject=parameters.get("subject"),
        identity=parameters.get("identity"),
        issuer=parameters.get("issuer"),
        at=_moment(parameters.get("at")),
        signature=plain_path(parameters.get("signature") or "model.sig", "signature"),
        directory=_directory(parameters.get("directory") or "."),
        unsigned=tuple(plain_path(path, "unsigned") for path in unsigned if path != "*"),
        anything="*" in unsigned,
        strict=_boolean(parameters.get("strict"), "strict"),
    )
    if not options.trust_roots and not options.references:
        raise InvalidArgumentError(
            "no key or certificate is given to trust: give 'trust_root' (a name in the operator's policy), "
            "or 'public_key', 'certificate' or 'sigstore_root' (a reference such as file:/etc/keys/vendor.pem)"
        )
    check_identity(options.identity, options.issuer)
    return options


def plain_path(path: str, what: str) -> str:
    """``path`` without a slash at its end.

    Raises:
        InvalidArgumentError: it is not a relative path below the model's directory.
    """
    path = path.rstrip("/")
    if any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
        raise InvalidArgumentError(f"parameter '{what}' is {path!r}, expected a plain relative path inside the model")
    return path


def _directory(path: str) -> str:
    return path if path in {".", "*"} else plain_path(path, "directory")


def _boolean(text: str | None, name: str) -> bool | None:
    if text is None:
        return None
    if text not in {"true", "false"}:
        raise InvalidArgumentError(f"parameter '{name}' is {text!r}, expected 'true' or 'false'")
    return text == "true"


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgumentError(f"parameter 'at' is {text!r}, expected the form 2026-11-22T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def few(names: Iterable[str]) -> str:
    """``names`` for a message."""
    return ", ".join(sorted(names)) or "none"
