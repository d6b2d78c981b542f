"""``--http-restricted-api`` and ``--grpc-restricted-protocol``, as Triton reads them. No message repeats a value."""

import re
from collections.abc import Sequence
from typing import Any, Final

import click

from repoagent.errors import did_you_mean
from repoagent_server.handlers.headers import Api, Restriction

#: What the key of a restricted protocol is prefixed with to make the name of its header.
GRPC_PREFIX: Final = "triton-grpc-protocol-"

Restricted = tuple[tuple[Api, ...], Restriction]

_KEY: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_GRPC_KEY: Final = re.compile(r"[0-9A-Za-z_.-]+")


class _Restricted(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``NAME[,NAME...]:KEY=VALUE``; the value goes on to the end, whatever is in it."""

    def __init__(self, kind: str, key: re.Pattern[str], prefix: str) -> None:
        self.name = kind
        self._key = key
        self._prefix = prefix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Restricted:
        if isinstance(value, tuple):
            return value
        names, _, pair = str(value).partition(":")
        key, _, secret = pair.partition("=")
        if not (names and key and secret) or "=" in names:
            self.fail(f"its format is '<{self.name}>[,<{self.name}>...]:<key>=<value>'", param, ctx)
        if self._key.fullmatch(key) is None:
            self.fail("its key has characters that the name of a header cannot have", param, ctx)
        header = self._prefix + (key.lower() if self._prefix else key)
        apis = tuple(self._api(name, param, ctx) for name in names.split(","))
        return apis, Restriction(header, secret.encode(errors="surrogateescape"))

    def _api(self, name: str, param: click.Parameter | None, ctx: click.Context | None) -> Api:
        try:
            return Api(name)
        except ValueError:
            meant = did_you_mean(name, list(Api))
            self.fail(f"unknown restricted {self.name} '{name}' (there are {', '.join(Api)}){meant}", param, ctx)


RESTRICTED_API: Final = _Restricted("api", _KEY, "")
RESTRICTED_PROTOCOL: Final = _Restricted("protocol", _GRPC_KEY, GRPC_PREFIX)


def restrictions(flag: str, given: Sequence[Restricted]) -> dict[Api, Restriction]:
    """The restrictions that all uses of ``flag`` make together.

    Raises:
        click.UsageError: two are about the same part of the API.
    """
    found: dict[Api, Restriction] = {}
    for apis, restriction in given:
        for api in apis:
            if api in found:
                raise click.UsageError(f"{flag}: restricted '{api}' can not be specified in multiple config groups")
            found[api] = restriction
    return found
