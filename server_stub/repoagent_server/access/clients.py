"""The clients of an access file with their grants, and the client behind a request."""

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Any, Final

from repoagent.audit import Actor
from repoagent_server.access.credentials import Given
from repoagent_server.access.rights import Right

_ALL: Final = "*"
_KNOWN_NAMES: Final = 4096
_LONGEST_KNOWN: Final = 256
"""Names whose answers a client remembers, and their length. A client can ask for any number, and for long ones."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights for the models whose names match one of the patterns (as in a shell; case counts)."""

    models: tuple[str, ...]
    rights: frozenset[Right]

    def covers(self, model: str) -> bool:
        """Whether it is for ``model``. Only ``*`` itself matches a slash, which no model's name can have."""
        if _ALL in self.models:
            return True
        return "/" not in model and any(re.match(translate(pattern), model) for pattern in self.models)


class Client:
    """One client of the access file. Thread-safe; never changed."""

    def __init__(self, name: str, grants: Iterable[Grant]) -> None:
        self.name = name
        self.grants = tuple(grants)
        self._all: Final = frozenset(right for grant in self.grants if _ALL in grant.models for right in grant.rights)
        self._known: dict[tuple[Right, str], bool] = {}

    def may(self, right: Right, model: str) -> bool:
        """Whether it has ``right`` for ``model``, which need not exist."""
        known = self._known.get((right, model))
        if known is None:
            known = right in self._all or any(right in one.rights and one.covers(model) for one in self.grants)
            if len(model) > _LONGEST_KNOWN:
                return known
            if len(self._known) >= _KNOWN_NAMES:
                self._known.clear()
            self._known[right, model] = known
        return known

    def serves(self, model: str) -> bool:
        """Whether its requests may bring ``model`` into service, where that happens on demand."""
        return self.may(Right.INFER, model) or self.may(Right.MANAGE, model)

    def may_all(self, right: Right) -> bool:
        """Whether it has ``right`` for all models."""
        return right in self._all


@dataclass(frozen=True, slots=True)
class Asker(Actor):
    """A client for whose request something else is done, with what it has ``given``."""

    given: Given = field(default=Given(), compare=False, repr=False)


class Caller:
    """A client that has shown who it is. Good as long as the rules with ``mark`` are in force and ``expires`` is not
    over. An idle connection keeps its caller, so this must not keep the rules."""

    __slots__ = ("address", "asker", "client", "expires", "given", "kept", "mark", "name", "request")

    def __init__(
        self, client: Client, given: Given, mark: object, *, subject: str = "", expires: float | None = None
    ) -> None:
        """``mark``: that of the rules; ``subject``: whom a token is about; ``expires``: when that ends, by
        ``time.time``."""
        self.client = client
        self.given = given
        self.mark = mark
        self.name: Final = f"{client.name}/{subject}" if subject else client.name
        """For logs: the client's name in the access file, and whom its token is about."""
        self.asker: Final = Asker("on-demand", self.name, manages=client.serves, given=given)
        """For loads on demand, and for the process that has a model."""
        self.expires = expires
        self.kept: Any = None
        """For the front ends: what they make of a caller and need again for its next request."""
        self.address = ""
        """Where its connection comes from, for logs."""
        self.request = ""
        """The ``x-request-id`` among the headers that it came with, for logs."""

    def at(self, address: str, request: str = "") -> "Caller":
        """The same caller on a connection from ``address``, with headers that name ``request``."""
        if address == self.address and request == self.request:
            return self
        there = copy.copy(self)
        there.address, there.request, there.kept = address, request, None
        return there

    def may(self, right: Right, model: str) -> bool:
        return self.client.may(right, model)

    def may_all(self, right: Right) -> bool:
        return self.client.may_all(right)

    def manages(self, model: str) -> bool:
        """Whether this client may load ``model``."""
        return self.client.may(Right.MANAGE, model)

    def sees(self, model: str) -> bool:
        """Whether ``model`` may appear in what this client is shown."""
        return self.client.may(Right.METADATA, model)
