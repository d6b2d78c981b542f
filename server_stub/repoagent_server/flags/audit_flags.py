"""The flags of ``repoagent serve`` for the audit log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from repoagent_server.flags.values import boolean, number
from repoagent_server.shared.audit_options import AuditOptions

__all__ = ["audit_flags", "take_audit_options"]

_F = TypeVar("_F", bound=Callable[..., Any])

_DECORATORS: Final = (
    click.option(
        "--audit-log",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Record in FILE who did what: loads, unloads, decisions of the policy, uses of keys, changes of settings, "
        "denied requests.",
    ),
    boolean(
        "--audit-required",
        default=False,
        help="Refuse loads and changes of settings while the audit log cannot be written.",
    ),
    boolean("--audit-sync", default=True, help="Write each line of the audit log to disk before its event proceeds."),
    number(
        "--audit-rotate-bytes",
        default=0,
        low=0,
        help="Bytes after which a new audit log begins; the former one is kept as FILE.N. 0 means never.",
    ),
    click.option(
        "--audit-key",
        metavar="REF",
        help="Key reference (env:NAME, file:PATH): each line of the audit log carries an HMAC made with this key.",
    ),
)


def audit_flags(command: _F) -> _F:
    """Give ``command`` the flags for the audit log."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def take_audit_options(values: dict[str, Any]) -> AuditOptions:
    """Take the values of these flags out of ``values``.

    Raises:
        click.UsageError: one of them makes no sense without ``--audit-log``.
    """
    options = AuditOptions(
        file=values.pop("audit_log"),
        required=values.pop("audit_required"),
        sync=values.pop("audit_sync"),
        rotate_bytes=values.pop("audit_rotate_bytes"),
        key=values.pop("audit_key"),
    )
    if options.file is None and options != AuditOptions(sync=options.sync):
        raise click.UsageError("--audit-required, --audit-rotate-bytes and --audit-key need --audit-log")
    return options
