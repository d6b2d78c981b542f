"""The audit log: who did what, one line of JSON each, chained by hashes so that a change shows.

What acts records it through an :class:`Audit`, of which :class:`AuditLog` writes lines to a file. The format of a line
is the contract of docs/reference/audit.md.
"""

from repoagent.audit.sink import NO_AUDIT, OPERATOR, Actor, Audit, AuditError, acting_as, current_actor

__all__ = ["NO_AUDIT", "OPERATOR", "Actor", "Audit", "AuditError", "acting_as", "current_actor"]
